"""Rows for training: load, quarantine, deduplicate, split by position.

Rows have the columns that `sources` describes.

A hash of the position alone decides which rows are held out. A position that is held out of one data
set is held out of every other with the same share, so GRPO is never tested on positions that
supervised fine-tuning has trained on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import chess
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Value
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher

from .. import __version__
from ..common.errors import ConfigurationError, RookWorldError
from ..common.progress import shown
from ..common.settings import record_faults, setting, share_bounds
from ..common.stats import draw
from ..engine.truth import PolicyTruth
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import DECISIVE, POLICY, is_decisive
from ..tasks.registry import TASKS
from ..tasks.types import action_values_column, values_by_move
from . import sources
from .sources import Malformed, Row, RowArguments

logger = logging.getLogger(__name__)


T = TypeVar("T")


_KEEPABLE = Features({**sources.FEATURES, "malformed": Value("string")})  # JSON


LARGE_FILE = 500_000  # bytes; what is smaller is parsed in a second


WORTH_KEEPING = 1_000  # made rows; fewer are made in a few seconds


HELDOUT_SHARE = 0.1
"""Share of positions; it includes the test positions of the evaluation suites."""


# Ends the name of the file of malformed rows of `eval_dataset_name`.
EVAL_QUARANTINE = ".eval.jsonl"


FEWEST_HELDOUT = 100
"""With fewer rows of a task, a 95% interval is wider than twenty points."""


@dataclass(slots=True)
class DataReport:
    """What loading found, counted."""

    read: int = 0  # without empty lines and comments
    comments: int = 0  # lines that were passed over
    quarantined: Counter[str] = field(default_factory=Counter)  # could not be read, by reason
    unjudgeable: Counter[str] = field(default_factory=Counter)  # by what no rule of chess allows
    corrected: int = 0  # environment answers to learn that the rules contradicted
    duplicates: int = 0
    train: Counter[str] = field(default_factory=Counter)  # rows by task, before any repetition
    heldout: Counter[str] = field(default_factory=Counter)  # rows by task
    overlap: int = 0  # positions in both splits; loading fails unless it is 0
    left_out: Counter[str] = field(default_factory=Counter)  # rows by task that is not trained
    shared: int = 0  # rows not trained on because eval_dataset_name has their positions
    withheld: int = 0  # held-out rows that are not measured: over heldout_rows, or others are
    unlabelled: int = 0  # policy rows without action values
    values: str = ""  # who valued the moves, if the data set says so

    def lines(self) -> list[str]:
        """The counts as lines for a terminal."""
        lines = [f"rows read             {self.read:>8}"]
        for name in TASKS:
            if rows := self.train[name] + self.heldout[name]:
                held_out = self.heldout[name]
                lines.append(f"{name:<12} train {rows - held_out:>8}   held out {held_out:>6}")
        for title, reasons in (
            ("quarantined", self.quarantined),
            ("left out, as no rule of chess can judge them", self.unjudgeable),
            ("left out by `tasks`", self.left_out),
        ):
            if reasons:
                lines.append(f"{title:<22}{reasons.total():>8}")
                lines += [f"    {rows:>8}  {why}" for why, rows in reasons.most_common()]
        for title, rows in (
            ("comments passed over", self.comments),
            ("duplicates dropped", self.duplicates),
            ("environment answers replaced by the rules'", self.corrected),
            ("not trained on, as their positions are in eval_dataset_name", self.shared),
            ("held out, but not measured", self.withheld),
            ("policy rows without action_values, which measuring needs", self.unlabelled),
        ):
            if rows:
                lines.append(f"{title:<22}{rows:>8}")
        lines.append(f"train/held-out overlap{self.overlap:>8} positions")
        if self.values:
            lines.append(f"action_values: {self.values}")
        lines += [
            f"warning: only {rows} held-out {name} rows are measured, so few that chance decides much: "
            "raise heldout_rows or heldout_share, or give a larger eval_dataset_name"
            for name, rows in self.heldout.items()
            if 0 < rows < FEWEST_HELDOUT
        ]
        return lines


@dataclass(frozen=True, slots=True)
class LoadedData:
    """The two splits, disjoint by position, and how they came about."""

    train: Dataset
    heldout: Dataset
    report: DataReport
    others: Sequence[Row] = ()
    """Held-out rows of tasks that are not trained."""

    def prompts(self) -> list[str]:
        """The different prompts of both splits."""
        return sorted({*self.train["prompt"][:], *self.heldout["prompt"][:]})


@dataclass
class DataArguments(RowArguments):
    """Which rows to train on, and how they are split."""

    tasks: list[str] = setting(
        lambda: [name for name, task in TASKS.items() if task.is_default],
        "Tasks to train on: environment, policy, fill_in, or your own from tasks_from; rows of other "
        "tasks are left out.",
        among=TASKS,
        of="task",
        filled=True,
    )
    tasks_from: list[str] = setting(
        [], "Your own tasks, each as path/to/file.py:Class; name them in `tasks` too."
    )
    task_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each task in training, {policy: 0.4, environment: 0.6}, reached by repeating rows of "
        "the scarcer tasks; tasks that `tasks` leaves out do not count. Without it, the data keep the "
        "shares that they have.",
        **share_bounds(TASKS, "task"),
    )
    first_plies_share: float = setting(
        0.0,
        "Share of the environment rows in training that are about a game's first two plies. All 420 "
        "such rows are added, but those of held-out positions are not trained on; the scarcer kind is "
        "repeated. 0 adds none.",
        least=0,
        most=1,
    )
    decisive_share: float = setting(
        0.0,
        "Share of the policy rows in training in which the choice matters: the best move keeps over "
        f"{DECISIVE} more win probability than the mean legal move. The scarcer kind is repeated, "
        "and 1 leaves the other kind out; held-out rows stay as they are. 0 leaves all rows as they "
        "are.",
        least=0,
        most=1,
    )
    mirror: bool = setting(
        False,
        "Also train on the mirror image of each policy row, with the colours swapped and the board "
        "turned: its moves are worth the same. Images of held-out positions are left out.",
    )
    heldout_share: float = setting(
        HELDOUT_SHARE,
        "Share of positions that are never trained on, chosen by a hash of the position. Their rows "
        "measure the model, unless eval_dataset_name gives other rows for that.",
        least=0,
        most=1,
    )
    eval_dataset_name: str = setting(
        "",
        "A held-out data set of its own to measure on, read like dataset_name; its positions are not "
        "trained on.",
        check=sources.check_dataset_name,
    )
    heldout_rows: int = setting(
        200,
        "Largest number of held-out rows of each task that are measured; more rows give narrower "
        "intervals, and each evaluation takes longer.",
        least=1,
    )


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def load_data(
    args: DataArguments,
    quarantine_file: Path | None = None,
    other_task_rows: int = 0,
    is_learnt: bool = False,
) -> LoadedData:
    """Load, parse, quarantine, deduplicate and split.

    Args:
        args: What to load.
        quarantine_file: Where rows go that cannot be read or judged, with their reasons.
        other_task_rows: The largest number of rows of each task that `tasks` leaves out to keep, of the
            positions that a hash holds out.
        is_learnt: Whether a model learns the completions. Environment answers that the rules contradict
            are then replaced by the rules', and counted. Rewards need no completions.

    Raises:
        RookWorldError: The data cannot be read, too much of it is malformed, or nothing is left.
    """
    has_values = any(TASKS[name].needs_values for name in args.tasks)
    names = filter(None, (args.dataset_name, args.eval_dataset_name) if has_values else ())
    values = dict.fromkeys(sources.values_line(sources.dataset_file(name)) for name in names)
    report = DataReport(values="; ".join(filter(None, values)))
    rows = _read(args, report, quarantine_file)
    rows += made_rows(args)
    if args.first_plies_share:
        from . import synthesis

        rows += map(synthesis.environment_row, synthesis.first_plies())
    chosen = _chosen_heldout(args, report, quarantine_file)

    left_out = [row for row in rows if row["task"] not in args.tasks]
    report.left_out.update(row["task"] for row in left_out)
    others = _others(left_out, args.heldout_share, other_task_rows)
    rows = [row for row in rows if row["task"] in args.tasks]
    if is_learnt:
        rows, chosen = _judged(rows, report), chosen and _judged(chosen, report)
    unique = _deduplicate(rows)
    report.duplicates = len(rows) - len(unique)
    report.unlabelled = sum(
        TASKS[row["task"]].needs_values and row["action_values"] is None
        for row in [*unique, *(chosen or ())]
    )
    train: list[Row] = []
    heldout: list[Row] = []
    for row in unique:
        (heldout if is_held_out(row["fen"], args.heldout_share) else train).append(row)
    if chosen is not None:
        report.withheld = len(heldout)
        tested, heldout = _positions(chosen), chosen
        kept = [row for row in train if rules.position_key(row["fen"]) not in tested]
        report.shared, train = len(train) - len(kept), kept
    if args.mirror:
        from . import synthesis

        apart = _positions(train) | _positions(heldout)
        train += [
            row
            for row in synthesis.mirror_images(train)
            if rules.position_key(row["fen"]) not in apart
            and not is_held_out(row["fen"], args.heldout_share)
        ]
    measured = first_of_each_task(heldout, args.heldout_rows)
    report.withheld += len(heldout) - len(measured)
    heldout = measured
    report.train.update(row["task"] for row in train)
    report.heldout.update(row["task"] for row in heldout)
    report.overlap = len(_positions(train) & _positions(heldout))
    if report.overlap:
        raise RookWorldError(f"{report.overlap} positions are both trained on and held out")
    for name, split in (("training", train), ("held-out", heldout)):
        if not split:
            reasons = (report.quarantined + report.unjudgeable + report.left_out).items()
            absent = "".join(f", {rows} are left out ({why})" for why, rows in reasons)
            if name == "training" and report.shared:
                absent += (
                    f", {report.shared} are of positions that eval_dataset_name has too, which are not "
                    "trained on"
                )
            raise RookWorldError(
                f"no {name} rows in {_read_of(args)} with tasks={args.tasks} and heldout_share="
                f"{args.heldout_share}: {report.read} rows were read{absent}. Give more rows, "
                "another share or other tasks; rookworld audit says more about the rows"
            )
    train = _mix(train, args)
    return LoadedData(_dataset(train), _dataset(heldout), report, others)


def load_rows(dataset_name: str = RowArguments.dataset_name, **keys: Any) -> DatasetDict:
    """The rows that `rookworld grpo` and `sft` take, for any trainer, in the splits `train` and `test`.

    The columns are `task`, `prompt`, `completion`, `fen`, `action`, `history` and `action_values`. No
    position is in both splits; `test` has at most `heldout_rows` (200) rows of each task. Rows that
    cannot be read or judged are left out with a warning, and environment answers that the rules
    contradict are replaced by the rules'.

    Args:
        dataset_name: A packaged name, a file or a Hub id; by default the packaged openings.
        keys: Further keys of `DataArguments`, such as `tasks`, `text_column`, `max_rows`.

    Raises:
        ConfigurationError: There is no such key, or its value is not valid.
        RookWorldError: See `load_data`.
    """
    if faults := record_faults(DataArguments, keys, "load_rows"):
        raise ConfigurationError(faults)
    data = load_data(DataArguments(dataset_name, **keys), is_learnt=True)
    report = data.report
    if report.quarantined or report.unjudgeable or report.unlabelled:
        said = "; ".join(" ".join(line.split()) for line in report.lines())
        logger.warning("%r: %s. rookworld audit says what to do about it", dataset_name, said)
    return DatasetDict(train=data.train, test=data.heldout)


def _read(args: DataArguments, report: DataReport, quarantine_file: Path | None) -> list[Row]:
    """The parsed rows of the data set; malformed ones are counted, and kept in a file."""
    parsed = parsed_rows(args, args.tasks)
    left_out = [row for row in parsed if isinstance(row, Malformed)]
    malformed = [row for row in left_out if row.kind != "comment"]
    comments = len(left_out) - len(malformed)
    read = len(parsed) - comments
    report.read += read
    report.comments += comments
    report.quarantined.update(row.reason for row in malformed if row.kind == "unreadable")
    report.unjudgeable.update(row.reason for row in malformed if row.kind == "unjudgeable")
    if malformed or (quarantine_file and quarantine_file.exists()):
        from .parsing import quarantine

        quarantine(malformed, read, args, quarantine_file)
    return [row for row in parsed if not isinstance(row, Malformed)]


def _judged(rows: Sequence[Row], report: DataReport) -> list[Row]:
    """The rows with the rules' answers to environment prompts; answers that differed are counted."""
    judged = []
    for row in rows:
        if row["task"] == ENVIRONMENT.name:
            truth = ENVIRONMENT.truth(row["prompt"])
            report.corrected += truth != row["completion"]
            row = {**row, "completion": truth}
        judged.append(row)
    return judged


def _chosen_heldout(
    args: DataArguments, report: DataReport, quarantine_file: Path | None
) -> list[Row] | None:
    """The rows of `eval_dataset_name`; None if it is not given."""
    if not args.eval_dataset_name:
        return None
    own = replace(args, dataset_name=args.eval_dataset_name, max_rows=None)
    file = quarantine_file and quarantine_file.with_suffix(EVAL_QUARANTINE)
    rows = _read(own, report, file)
    return _deduplicate([row for row in rows if row["task"] in args.tasks])


def require_answers(data: LoadedData) -> None:
    """Refuse rows that supervised training could learn nothing from: prompts without an answer.

    Raises:
        RookWorldError: There are such rows.
    """
    without = Counter(row["task"] for row in data.train if not row["completion"].strip())
    if without:
        counts = " and ".join(f"{count} {task}" for task, count in without.items())
        raise RookWorldError(
            f"{counts} rows are prompts without an answer, which supervised training cannot learn "
            "from: label them first (rookworld prepare), or leave their task out of `tasks`"
        )


def require_truth(data: LoadedData, tasks: Sequence[str], labels: str = "stored") -> None:
    """Refuse rows that could not be scored, and tasks that could not be measured.

    Args:
        data: What was loaded.
        tasks: The tasks that the recipe trains.
        labels: See `engine.truth.LabelArguments`.

    Raises:
        RookWorldError: Some policy rows have no `action_values` and no engine may be asked, or a
            task has no held-out rows.
    """
    for task in tasks:
        if not data.report.heldout[task]:
            others = " ".join(other for other in tasks if data.report.heldout[other])
            raise RookWorldError(
                f"no held-out rows of the task {task!r}: give such rows, a larger heldout_share, or "
                f"leave the task out{f': --tasks {others}' if others else ' of `tasks`'}"
            )
    if data.report.unlabelled and labels == "stored":
        raise RookWorldError(
            f"{data.report.unlabelled} policy rows have no `action_values`, by which held-out moves are "
            "measured and policy rewards are scored. Label them (rookworld prepare), or ask an engine "
            "during training (labels: stored_or_engine), or leave the policy out of `tasks`"
        )


def label_heldout(data: LoadedData, truth: PolicyTruth) -> LoadedData:
    """The data with values for the held-out policy rows, asked from the engine if there is one.

    Rows that the engine gives up on are left out: they cannot be measured.

    Raises:
        RookWorldError: See `PolicyTruth.values`.
    """
    if truth.labeller is None:
        return data
    rows = data.heldout.to_list()
    policy = [row for row in rows if TASKS[row["task"]].needs_values]
    found = truth.values([row["fen"] for row in policy], [row["action_values"] for row in policy])
    for row, values in zip(policy, found, strict=True):
        row["action_values"] = values and action_values_column(values)
    kept = [row for row in rows if row["action_values"] or not TASKS[row["task"]].needs_values]
    report = replace(data.report, heldout=Counter(row["task"] for row in kept))
    return replace(data, heldout=_dataset(kept), report=report)


def is_held_out(fen: str, share: float) -> bool:
    """Whether a position belongs to the held-out split: a pure function of the position."""
    return draw(rules.position_key(fen)) < share


# --------------------------------------------------------------------------------------------------
# Steps
# --------------------------------------------------------------------------------------------------
def first_of_each_task(rows: Iterable[Row], most: int) -> list[Row]:
    """At most so many rows of each task, the first ones."""
    places = defaultdict[str, Iterator[int]](count)  # among the rows of its task, from 0
    return [row for row in rows if next(places[row["task"]]) < most]


def _others(rows: Sequence[Row], heldout_share: float, most: int) -> list[Row]:
    """Rows of tasks that are not trained, of positions that are not trained on either."""
    if not most:
        return []
    apart = [row for row in rows if is_held_out(row["fen"], heldout_share)]
    return first_of_each_task(_deduplicate(apart), most)


def _positions(rows: Iterable[Row]) -> set[str]:
    return {rules.position_key(row["fen"]) for row in rows}


def _deduplicate(rows: Sequence[Row]) -> list[Row]:
    """One row of each prompt: its first labelled row, else its first, in the place of its last."""
    unique: dict[tuple[str, str], Row] = {}
    for row in reversed(rows):
        key = (row["task"], row["prompt"])
        if key not in unique or row["action_values"] or not unique[key]["action_values"]:
            unique[key] = row
    return list(unique.values())[::-1]


def _read_of(args: DataArguments) -> str:
    """What was read, for a message."""
    first = f"the first {args.max_rows} rows (max_rows) of " if args.max_rows else ""
    return f"{first}{args.dataset_name!r}"


def _mix(rows: list[Row], args: DataArguments) -> list[Row]:
    """The rows in the shares of first plies, decisive positions and tasks that are asked for.

    Raises:
        RookWorldError: No position is decisive, or whether one is cannot be told; or a task has a
            share, but no rows.
    """
    if share := args.first_plies_share:
        from . import synthesis

        rows = _with_share(rows, ENVIRONMENT.name, synthesis.is_first_ply, share)
    if share := args.decisive_share:
        _check_decisive([row for row in rows if row["task"] == POLICY.name], args)
        rows = _with_share(rows, POLICY.name, _is_decisive, share)
    if args.task_shares:
        given: Any = args.task_shares
        of_task = {task: given[task] for task in TASKS if task in args.tasks and given.get(task)}
        if missing := set(of_task) - (there := {row["task"] for row in rows}):
            raise RookWorldError(
                f"no rows of {', '.join(missing)} to train on in {_read_of(args)}, but task_shares="
                f"{args.task_shares} (yours or the recipe's) gives them a share: give such rows, or "
                f"train without them: --tasks {' '.join(sorted(there))}"
            )
        if of_task:  # all shares may be of tasks that `tasks` leaves out
            rows = _repeat(rows, lambda row: row["task"], of_task)
    return rows


def _with_share(
    rows: list[Row], task: str, is_kind: Callable[[Row], bool], share: float
) -> list[Row]:
    """The rows, with this share of a task's rows of one kind; all of them if there is no other kind."""
    asked = [row for row in rows if row["task"] == task]
    rest = [row for row in rows if row["task"] != task]
    has_others = share < 1 and not all(map(is_kind, asked))
    shares = {True: share, False: 1 - share} if has_others else {True: 1.0}
    return _repeat(asked, is_kind, shares) + rest


def _check_decisive(policy: Sequence[Row], args: DataArguments) -> None:
    """Refuse a share of decisive positions among policy rows of which none, or not all, can be told."""
    unknown = sum(values_by_move(row["action_values"]) is None for row in policy)
    if unknown:
        why = f"{unknown} of {len(policy)} policy rows to train on have no action_values"
    elif policy and not any(map(_is_decisive, policy)):
        why = "no position to train on is decisive"
    else:
        return
    raise RookWorldError(
        f"{why} in {_read_of(args)}, but decisive_share={args.decisive_share} gives decisive positions "
        "a share: give rows with action_values (rookworld prepare), or train without it: "
        "--decisive_share 0"
    )


def _is_decisive(row: Row) -> bool:
    """Whether a policy row has values, and its best move matters."""
    values = values_by_move(row["action_values"])
    return values is not None and is_decisive(values)


def _repeat(rows: list[Row], part_of: Callable[[Row], T], shares: Mapping[T, float]) -> list[Row]:
    """Repeat the rows of scarce parts until each part has its share, which is above 0."""
    parts = defaultdict[T, list[Row]](list)
    for row in rows:
        parts[part_of(row)].append(row)
    fullest = max(shares, key=lambda part: len(parts[part]) / shares[part])
    whole = len(parts[fullest])
    return [
        row
        for part, share in shares.items()
        for row in islice(cycle(parts[part]), round(whole * (share / shares[fullest])))
    ]


def _dataset(rows: list[Row]) -> Dataset:
    # `Dataset.from_list` encodes each value by itself, which takes four times as long.
    return Dataset(pa.Table.from_pylist(rows, schema=sources.FEATURES.arrow_schema))


# --------------------------------------------------------------------------------------------------
# Rows that are parsed or made, and kept by datasets
# --------------------------------------------------------------------------------------------------
def parsed_rows(args: RowArguments, tasks: Sequence[str] = ()) -> list[Row | Malformed]:
    """A data set's rows, see `parsing.parse_rows`; of a large file, datasets keeps them on disk.

    A prompt that came alone has the truth as its completion, empty if that is not known.
    """

    def parse() -> Iterator[Row | Malformed]:
        from .parsing import parse_rows, raw_rows  # a file that was kept needs no parsing

        return map(_answered, parse_rows(raw_rows(args), tasks))

    file = sources.dataset_file(args.dataset_name)
    ours = __name__.partition(".")[0]  # `_source_digest` does not know the code of a user's task
    has_own = any(type(task).__module__.partition(".")[0] != ours for task in TASKS.values())
    if has_own or file is None or not file.is_file() or file.stat().st_size < LARGE_FILE:
        return list(parse())
    with file.open("rb") as opened:  # it may be larger than the memory
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    asked = ["parsed", content, args.text_column, args.max_rows, list(tasks)]
    kept = _kept(lambda: map(_keepable, parse()), _KEEPABLE, asked)
    return [
        Malformed(**json.loads(fault)) if (fault := row.pop("malformed")) else row for row in kept
    ]


def made_rows(args: RowArguments) -> list[Row]:
    """The synthetic rows: environment rows, then fill-in rows; datasets keeps many on disk."""
    kinds: Any = args.synthetic_shares or sources.KIND_SHARES
    seed, plies = args.synthetic_seed, args.synthetic_opening_plies
    counts = args.synthetic_rows, args.synthetic_fill_in_rows

    def make() -> Iterator[Row]:
        from . import synthesis  # most runs make none

        asked = synthesis.environment_prompts(seed, kinds, plies)
        environment = map(synthesis.environment_row, islice(asked, counts[0]))
        hidden = synthesis.fill_in_rows(seed, sources.FIELD_SHARES, kinds, plies)
        fill_in = islice(hidden, counts[1])
        yield from shown(chain(environment, fill_in), "making synthetic rows", sum(counts))

    if sum(counts) < WORTH_KEEPING:
        return list(make()) if sum(counts) else []
    return _kept(make, sources.FEATURES, [counts, seed, plies, dict(kinds)])


def _kept(make: Callable[[], Iterable[Row]], features: Features, asked: Any) -> list[Row]:
    """The rows that a function makes, kept by datasets under what is asked and the code's digest."""
    key = Hasher.hash([asked, __version__, chess.__version__, _source_digest()])
    try:
        kept = Dataset.from_generator(lambda: iter(make()), features, fingerprint=key)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    return list(kept.to_list())


def _keepable(row: Row | Malformed) -> Row:
    """A parsed row with the columns `_KEEPABLE`."""
    if isinstance(row, Malformed):
        return {"malformed": json.dumps(asdict(row), default=str)}
    return row


@cache
def _source_digest() -> str:
    """Digest of the code that made rows depend on: they are made anew if it changes."""
    package = Path(__file__).parents[1]
    rooms = ("common", "tasks", "data")
    files = sorted(path for room in rooms for path in (package / room).glob("*.py"))
    return str(Hasher.hash([path.read_bytes() for path in files]))


def _answered(row: Row | Malformed) -> Row | Malformed:
    """The row, with the truth as its completion if it has none."""
    if isinstance(row, Malformed) or row["completion"]:
        return row
    truth = TASKS[row["task"]].truth(row["prompt"], values_by_move(row["action_values"]))
    return {**row, "completion": truth or ""}
