"""Rows for training: load, quarantine, deduplicate, split by position.

The columns of a row are those of `sources`.

Which rows are held out follows from a hash of the position alone, so a position that is held out of
one data set is held out of every other with the same share: what was trained on in supervised
fine-tuning is no test for GRPO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset

from . import rules, synthesis
from .faults import draw, plant_faults
from .records import (
    TASKS,
    ActionValue,
    ConfigurationError,
    RookWorldError,
    close_matches,
    json_value,
)
from .sources import (
    FEATURES,
    Malformed,
    Row,
    check_dataset_name,
    check_quarantine,
    parse_rows,
    raw_rows,
    write_quarantine,
)


@dataclass(slots=True)
class DataReport:
    """What loading found, counted."""

    read: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)  # by reason
    duplicates: int = 0
    train: Counter[str] = field(default_factory=Counter)  # rows by task, before any repetition
    heldout: Counter[str] = field(default_factory=Counter)  # rows by task
    overlap: int = 0  # positions in both splits; 0, or loading has failed
    unlabelled: int = 0  # policy rows without action values

    def lines(self) -> list[str]:
        """The counts as lines for a terminal."""
        reasons = "".join(f"\n    {n:>8}  {why}" for why, n in self.quarantined.most_common())
        return [
            f"rows read             {self.read:>8}",
            *(
                f"{task:<12} train {self.train[task]:>8}   held out {self.heldout[task]:>6}"
                for task in TASKS
            ),
            f"quarantined           {self.quarantined.total():>8}{reasons}",
            f"duplicates dropped    {self.duplicates:>8}",
            f"train/held-out overlap{self.overlap:>8} positions",
            f"policy rows without action_values{self.unlabelled:>6}",
        ]


@dataclass(frozen=True, slots=True)
class LoadedData:
    """The two splits, disjoint by position, and how they came about."""

    train: Dataset
    heldout: Dataset
    report: DataReport

    def prompts(self) -> list[str]:
        """The different prompts of both splits."""
        return sorted({*self.train["prompt"], *self.heldout["prompt"]})


@dataclass
class DataArguments:
    """Which rows to load, and how to split them.

    Args:
        dataset_name: The packaged set, a Hub id, or a JSONL, Parquet or text file of RookWorld lines.
        dataset_split: Split of a Hub data set.
        max_rows: Read so many rows; a Hub data set is then streamed.
        tasks: Keep rows of these tasks.
        environment_share: Share of environment rows in training, reached by repeating rows of the
            scarcer task; None leaves the data's own.
        heldout_share: Share of positions held out, by a hash of the position.
        heldout_rows: Most held-out rows a task that are kept for evaluation.
        max_quarantined_share: Stop when more of the rows read than this are malformed.
        synthetic_rows: So many environment rows are made and added.
        synthetic_seed: Their seed.
        synthetic_opening_plies: Openings are shorter than this, in plies.
        synthetic_shares: Shares of their kinds, see `synthesis.KindShares`.
        en_passant_fault_share: Plant the public data's fault: in so many of the answers to a double
            step, name the en passant square although no capture is legal. Supervised training only.
        black_best_move_fault_share: Plant the public data's fault: in so many of Black's rows, `B` is
            the worst of the candidates. Supervised training only.
    """

    dataset_name: str = "rookworld-nano-openings"
    dataset_split: str = "train"
    max_rows: int | None = None
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    environment_share: float | None = None
    heldout_share: float = 0.1
    heldout_rows: int = 200
    max_quarantined_share: float = 0.01
    synthetic_rows: int = 0
    synthetic_seed: int = 0
    synthetic_opening_plies: int = 12
    synthetic_shares: dict[str, Any] | str | None = None
    en_passant_fault_share: float = 0.0
    black_best_move_fault_share: float = 0.0

    def __post_init__(self) -> None:
        faults = self._check_shares()
        faults += [
            f"{name}: {getattr(self, name)!r} is no share; give a number from 0 to 1"
            for name in (
                "environment_share",
                "heldout_share",
                "max_quarantined_share",
                "en_passant_fault_share",
                "black_best_move_fault_share",
            )
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1
        ]
        faults += [
            f"{name}: {getattr(self, name)!r} is too small; give at least {least}"
            for name, least in (
                ("max_rows", 1),
                ("heldout_rows", 1),
                ("synthetic_rows", 0),
                ("synthetic_opening_plies", 1),
            )
            if getattr(self, name) is not None and getattr(self, name) < least
        ]
        if not self.tasks:
            faults.append(f"tasks: empty; give some of {', '.join(TASKS)}")
        faults += [
            f"tasks: {task!r} is no task{close_matches(task, TASKS)}"
            for task in self.tasks
            if task not in TASKS
        ]
        faults += check_dataset_name(self.dataset_name)
        if faults:
            raise ConfigurationError(faults)

    def _check_shares(self) -> list[str]:
        try:
            given = self.synthetic_shares = json_value("synthetic_shares", self.synthetic_shares)
        except ConfigurationError as error:
            return error.faults
        if given is None:
            return []
        if not isinstance(given, dict):
            return [f"synthetic_shares: {given!r} is no mapping of kinds to shares"]
        known = list(synthesis.KindShares().as_dict())
        faults = [
            f"synthetic_shares: unknown kind {kind!r}{close_matches(str(kind), known)}"
            for kind in given
            if kind not in known
        ]
        faults += [
            f"synthetic_shares: {kind} is {share!r}, no number"
            for kind, share in given.items()
            if isinstance(share, bool) or not isinstance(share, int | float)
        ]
        if not faults:
            try:
                self.kind_shares()
            except ConfigurationError as error:
                faults += error.faults
        return faults

    def kind_shares(self) -> synthesis.KindShares:
        """Shares of the kinds of synthetic rows; kinds that are not named get 0."""
        if self.synthetic_shares is None:
            return synthesis.KindShares()
        assert isinstance(self.synthetic_shares, dict)
        return synthesis.KindShares.of(self.synthetic_shares)


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def load_data(args: DataArguments, quarantine_file: Path | None = None) -> LoadedData:
    """Load, parse, quarantine, deduplicate and split.

    Args:
        args: What to load.
        quarantine_file: Where malformed rows go, with their reasons, as JSON lines.

    Raises:
        RookWorldError: The data cannot be read, too much of it is malformed, or nothing is left.
    """
    report = DataReport()
    rows: list[Row] = []
    malformed: list[Malformed] = []
    for row in parse_rows(raw_rows(args.dataset_name, args.dataset_split, args.max_rows)):
        if isinstance(row, Malformed):
            malformed.append(row)
        else:
            rows.append(row)
    report.read = len(rows) + len(malformed)
    report.quarantined.update(row.reason for row in malformed)
    if quarantine_file is not None:
        write_quarantine(malformed, quarantine_file)
    check_quarantine(
        malformed, report.read, args.dataset_name, args.max_quarantined_share, quarantine_file
    )
    rows += islice(_synthetic_rows(args), args.synthetic_rows)

    rows = [row for row in rows if row["task"] in args.tasks]
    unique = _deduplicate(rows)
    report.duplicates = len(rows) - len(unique)
    report.unlabelled = sum(
        row["task"] == "policy" and row["action_values"] is None for row in unique
    )
    train: list[Row] = []
    heldout: list[Row] = []
    for row in unique:
        (heldout if is_held_out(row["fen"], args.heldout_share) else train).append(row)
    heldout = _first_of_each_task(heldout, args.heldout_rows)
    report.train.update(row["task"] for row in train)
    report.heldout.update(row["task"] for row in heldout)
    report.overlap = len(_positions(train) & _positions(heldout))
    if report.overlap:
        raise RookWorldError(f"{report.overlap} positions are both trained on and held out")
    train = _mix(train, args)
    for name, split in (("training", train), ("held-out", heldout)):
        if not split:
            raise RookWorldError(
                f"no {name} rows in {args.dataset_name!r} with tasks={args.tasks} and "
                f"heldout_share={args.heldout_share}: give more rows or another share"
            )
    train = plant_faults(train, args.en_passant_fault_share, args.black_best_move_fault_share)
    return LoadedData(_dataset(train), _dataset(heldout), report)


def require_truth(data: LoadedData, tasks: Sequence[str]) -> None:
    """Refuse rows that could not be scored, and tasks that could not be measured.

    Raises:
        RookWorldError: Some policy rows carry no `action_values`, or a task has no held-out rows.
    """
    for task in tasks:
        if not data.report.heldout[task]:
            raise RookWorldError(
                f"no held-out rows of the task {task!r}: give such rows, a larger heldout_share, or "
                f"leave the task out of `tasks`"
            )
    if data.report.unlabelled:
        raise RookWorldError(
            f"{data.report.unlabelled} policy rows carry no column `action_values`, so no policy "
            "reward could score them. Give labelled rows, or set tasks: [environment]"
        )


def is_held_out(fen: str, share: float) -> bool:
    """Whether a position belongs to the held-out split: a pure function of the position."""
    return draw(rules.position_key(fen)) < share


def _synthetic_rows(args: DataArguments) -> Iterator[Row]:
    prompts = synthesis.environment_prompts(
        args.synthetic_seed, args.kind_shares(), args.synthetic_opening_plies
    )
    return map(synthesis.environment_row, prompts)


# --------------------------------------------------------------------------------------------------
# Steps
# --------------------------------------------------------------------------------------------------
def _positions(rows: Iterable[Row]) -> set[str]:
    return {rules.position_key(row["fen"]) for row in rows}


def _first_of_each_task(rows: Iterable[Row], most: int) -> list[Row]:
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        seen[row["task"]] += 1
        if seen[row["task"]] <= most:
            kept.append(row)
    return kept


def _deduplicate(rows: Sequence[Row]) -> list[Row]:
    """The first row of each prompt, at the place of its last one; a labelled row goes first."""
    unique: dict[tuple[str, str], Row] = {}
    for row in reversed(rows):
        key = (row["task"], row["prompt"])
        if key not in unique or row["action_values"] or not unique[key]["action_values"]:
            unique[key] = row
    return list(unique.values())[::-1]


def _mix(rows: list[Row], args: DataArguments) -> list[Row]:
    """Repeat the rows of the scarcer task until environment rows have their share.

    Raises:
        RookWorldError: A task that is to have a share has no rows.
    """
    share = args.environment_share
    if share is None:
        return rows
    environment = [row for row in rows if row["task"] == "environment"]
    policy = [row for row in rows if row["task"] == "policy"]
    for task, part, found in (
        ("environment", share, environment),
        ("policy", 1 - share, policy),
    ):
        if part and not found:
            raise RookWorldError(
                f"no {task} rows to train on in {args.dataset_name!r} with tasks={args.tasks}, but "
                f"environment_share={share} gives them a share of {part:g}: give such rows, or "
                "leave environment_share out"
            )
    if share in (0, 1):
        return environment if share else policy
    ratio = share / (1 - share)  # environment rows a policy row
    if len(environment) < ratio * len(policy):
        environment = _repeat(environment, round(ratio * len(policy)))
    else:
        policy = _repeat(policy, round(len(environment) / ratio))
    return environment + policy


def _repeat(rows: list[Row], count: int) -> list[Row]:
    return [rows[index % len(rows)] for index in range(count)]


def action_values_of(values: Sequence[Mapping[str, Any]]) -> list[ActionValue]:
    """The column `action_values` as records."""
    return [ActionValue(value["move"], value["cp"]) for value in values]


def _dataset(rows: list[Row]) -> Dataset:
    return Dataset.from_list(rows, features=FEATURES)
