"""Rows: load, parse, quarantine, deduplicate, split by position.

A row of the data sets made here has the columns

- `task`: ``environment`` or ``policy``;
- `prompt`, `completion`: text as `notation` writes it; the completion is the data's, not the truth;
- `fen`, `action`, `history`: the prompt's fields; action and history are empty for policy rows;
- `action_values`: list of ``{"move": UCI, "cp": centipawns from the side to move}``, best first, one
  for every legal move, or None where the data carries none.

Which rows are held out follows from a hash of the position alone, so a position that is held out of
one data set is held out of every other with the same share: what was trained on in supervised
fine-tuning is no test for GRPO.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features, List, Value

from . import notation, rules, synthesis
from .faults import draw, plant_faults
from .names import asset_path, is_hub_id
from .records import (
    TASKS,
    ActionValue,
    ConfigurationError,
    EnvironmentPrompt,
    IllegalPositionError,
    NotationError,
    RookWorldError,
    close_matches,
    json_value,
)

PACKAGED_DATA = {"rookworld-nano-openings": "nano_openings.parquet"}
_FILE_LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}

FEATURES = Features(
    {
        "task": Value("string"),
        "prompt": Value("string"),
        "completion": Value("string"),
        "fen": Value("string"),
        "action": Value("string"),
        "history": List(Value("string")),
        "action_values": List({"move": Value("string"), "cp": Value("int64")}),
    }
)

Row = dict[str, Any]


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
    quarantined: list[Row] = []
    for number, raw in enumerate(_raw_rows(args)):
        if raw.get("text") == "":
            continue  # an empty line of a text file
        report.read += 1
        try:
            rows.append(parse_raw(raw))
        except (NotationError, IllegalPositionError) as error:
            reason = getattr(error, "reason", "not a legal chess position")
            report.quarantined[reason] += 1
            text = {key: raw[key] for key in ("text", "prompt", "completion") if key in raw}
            quarantined.append({"row": number, "reason": str(error), **text})
    _write_quarantine(quarantined, quarantine_file)
    _check_quarantine(report, args, quarantine_file)
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


def parse_raw(raw: Mapping[str, Any]) -> Row:
    """One row of the columns described above from one raw row.

    Args:
        raw: Column `text` (a RookWorld line), or `prompt` and `completion`; `action_values` may
            come along.

    Raises:
        NotationError: Malformed text, or action values that do not fit the position.
        IllegalPositionError: The position is none.
    """
    text = raw.get("text")
    if text is None:
        # The space parts a policy prompt from its answer; the grammar does not count spaces.
        text = f"{raw.get('prompt') or ''} {raw.get('completion') or ''}"
    if not isinstance(text, str):
        raise NotationError("the column holds no text", str(text))
    task, prompt, completion = notation.split_row(text)
    if task == "policy":
        fen = notation.parse_policy_prompt(prompt).fen
        environment = EnvironmentPrompt(fen, "", ())
        values = _check_action_values(fen, raw.get("action_values"))
    else:
        environment = notation.parse_environment_prompt(prompt)
        rules.board_of(environment.fen)
        values = None
    return {
        "task": task,
        "prompt": prompt,
        "completion": completion,
        "fen": environment.fen,
        "action": environment.action,
        "history": list(environment.history),
        "action_values": values,
    }


def is_held_out(fen: str, share: float) -> bool:
    """Whether a position belongs to the held-out split: a pure function of the position."""
    return draw(rules.position_key(fen)) < share


# --------------------------------------------------------------------------------------------------
# Sources
# --------------------------------------------------------------------------------------------------
def check_dataset_name(name: str) -> list[str]:
    """Faults of a data set's name, found without loading anything."""
    if name in PACKAGED_DATA or name == "":
        return []
    path = Path(name)
    if path.suffix in _FILE_LOADERS:
        if path.is_file():
            return []
        siblings = [str(other) for other in path.parent.glob("*")] if path.parent.is_dir() else []
        return [f"dataset_name: no file {name!r}{close_matches(name, siblings)}"]
    if path.is_file():
        return [f"dataset_name: {name!r} ends in none of {', '.join(_FILE_LOADERS)}; rename it"]
    if is_hub_id(name):
        return []
    return [
        f"dataset_name: {name!r} is neither packaged, a file, nor a Hub id (owner/name)"
        f"{close_matches(name, PACKAGED_DATA)}"
    ]


def _raw_rows(args: DataArguments) -> Iterator[Mapping[str, Any]]:
    if not args.dataset_name:
        return
    try:
        yield from islice(_open_dataset(args), args.max_rows)
    except (
        OSError,
        ValueError,
        StopIteration,  # an empty file
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        raise RookWorldError(
            f"cannot load the data set {args.dataset_name!r} ({str(error) or 'no rows'}); check the "
            "name, the content and the network, or give another file"
        ) from error


def _open_dataset(args: DataArguments) -> Iterable[Mapping[str, Any]]:
    name = args.dataset_name
    if name in PACKAGED_DATA:
        name = asset_path(PACKAGED_DATA[name])
    loader = _FILE_LOADERS.get(Path(name).suffix)
    rows: Iterable[Mapping[str, Any]]
    if loader is None:
        streaming = args.max_rows is not None
        rows = datasets.load_dataset(name, split=args.dataset_split, streaming=streaming)
    else:
        options = {"keep_linebreaks": False} if loader == "text" else {}
        rows = datasets.load_dataset(loader, data_files=name, split="train", **options)
    return rows


def _synthetic_rows(args: DataArguments) -> Iterator[Row]:
    prompts = synthesis.environment_prompts(
        args.synthetic_seed, args.kind_shares(), args.synthetic_opening_plies
    )
    return map(synthesis.environment_row, prompts)


def _check_action_values(fen: str, values: Any) -> list[dict[str, Any]] | None:
    legal = rules.legal_moves(fen)
    if values is None:
        return None
    try:
        moves = [str(value["move"]) for value in values]
        worths = [operator.index(value["cp"]) for value in values]
    except (KeyError, TypeError) as error:
        raise NotationError("action_values are no list of move and cp", fen) from error
    if sorted(moves) != sorted(legal):
        raise NotationError("action_values do not name every legal move once", fen)
    if worths != sorted(worths, reverse=True):
        raise NotationError("action_values are not ordered best first", fen)
    return [{"move": move, "cp": cp} for move, cp in zip(moves, worths, strict=True)]


# --------------------------------------------------------------------------------------------------
# Steps
# --------------------------------------------------------------------------------------------------
def _write_quarantine(rows: Sequence[Row], path: Path | None) -> None:
    if path is None:
        return
    if not rows:
        path.unlink(missing_ok=True)  # of an earlier try, whose data have been mended since
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def _check_quarantine(report: DataReport, args: DataArguments, path: Path | None) -> None:
    bad = report.quarantined.total()
    if report.read and bad / report.read > args.max_quarantined_share:
        where = f"; see {path}" if path else ""
        raise RookWorldError(
            f"{bad} of {report.read} rows of {args.dataset_name!r} are malformed, more than "
            f"max_quarantined_share={args.max_quarantined_share}: "
            f"{dict(report.quarantined.most_common(5))}{where}. Mend the data or raise the share"
        )


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
