"""Where rows come from: data sets by name, their raw rows, and the parsed rows.

A parsed row has the columns

- `task`: ``environment``, ``policy``, ``fill_in`` or another of `tasks.registry`;
- `prompt`, `completion`: text as the row's task writes it. The completion is the data's, not the
  truth; only a prompt that came alone gets the truth as completion, empty if it is not known;
- `fen`, `action`, `history`: the prompt's fields; action and history are empty for policy rows, and
  unmasked for fill-in rows;
- `action_values`: list of ``{"move": UCI, "cp": centipawns from the side to move}``, best first, one
  for every legal move, or None if the data have none.

A row that cannot be parsed is `Malformed`: it is kept with its reason, never repaired silently. It
either cannot be read, or it can but no rule of chess can judge it: a king is missing, say.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import operator
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import chess
import datasets
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from datasets.fingerprint import Hasher

from .. import __version__
from ..common.errors import (
    IllegalPositionError,
    NotationError,
    RookWorldError,
    UnjudgeableError,
    close_matches,
)
from ..common.files import asset_path, is_hub_id
from ..common.progress import shown
from ..common.settings import Checked, setting
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, split_row, task_of
from ..tasks.text import clean
from ..tasks.types import values_by_move
from . import positions, synthesis
from .synthesis import FIELD_SHARES, KIND_SHARES

PACKAGED_DATA = {
    "rookworld-nano-openings": "nano_openings.parquet",
    "rookworld-nano-fill-in": "nano_fill_in.parquet",
    "rookworld-evaluation": "evaluation_positions.parquet",  # held-out positions only
}


_FILE_LOADERS = {
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".txt": "text",
    ".fen": "text",
    ".epd": "text",
    ".pgn": "",  # python-chess reads it
}


_COLUMNS = ("text", "prompt", "fen", "fault")  # of a raw row, one at least; fault: a broken game


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


_KEEPABLE = Features({**FEATURES, "malformed": Value("string")})  # JSON


LARGE_FILE = 500_000  # bytes; what is smaller is parsed in a second


WORTH_KEEPING = 1_000  # made rows; fewer are made in a few seconds


# It prints what `_loading` says better.
logging.getLogger("datasets.packaged_modules.json.json").setLevel(logging.CRITICAL)


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A raw row that could not be parsed, or that no rule of chess can judge."""

    number: int  # of the row or line in its data set, from 1
    reason: str  # short; rows are counted by it
    message: str  # the reason with the offending text
    text: Mapping[str, Any]  # the raw row's text columns
    is_readable: bool = False  # but no rule of chess can judge it


def check_dataset_name(name: str, key: str = "dataset_name") -> list[str]:
    """Faults of a data set's name, found without loading anything.

    Args:
        name: A packaged name, a file, a Hub id, or empty for no data set.
        key: The configuration key that names it.
    """
    if name in PACKAGED_DATA or name == "":
        return []
    path = Path(name)
    if path.suffix in _FILE_LOADERS:
        if path.is_file():
            return []
        siblings = map(str, path.parent.glob("*"))
        return [f"{key}: no file {name!r}{close_matches(name, siblings)}"]
    if path.is_file():
        remedy = (
            "unpack it" if path.suffix in (".gz", ".bz2", ".xz", ".zst", ".zip") else "rename it"
        )
        return [f"{key}: {name!r} must end in one of {', '.join(_FILE_LOADERS)}; {remedy}"]
    if is_hub_id(name):
        return []
    return [
        f"{key}: {name!r} is neither packaged, a file, nor a Hub id (owner/name)"
        f"{close_matches(name, PACKAGED_DATA)}"
    ]


@dataclass
class SourceArguments(Checked):
    """Which data set to read."""

    dataset_name: str = setting(
        "rookworld-nano-openings",
        "Data to read: a packaged name, a Hub id, or a file. JSONL, Parquet, CSV and text files hold "
        "RookWorld rows, prompts, FENs or EPDs; PGN files hold games. `tasks` decides what is asked "
        "about a position.",
        check=check_dataset_name,
    )
    text_column: str = setting(
        "text",
        "Column that holds the rows; FENs may be in a column `fen` instead.",
        filled=True,
    )
    dataset_split: str = setting("train", "Split to read of a Hub data set.")
    max_rows: int | None = setting(
        None, "Read at most this many rows; a Hub data set is then streamed.", least=1
    )

    def raw_rows(self) -> Iterator[Row]:
        """The raw rows of the data set, their lines in the column `text`.

        Raises:
            RookWorldError: The data set cannot be read, or has no column to read.
        """
        column = self.text_column
        with _loading(self.dataset_name):
            for number, row in enumerate(islice(_open_dataset(self), self.max_rows)):
                if not number:
                    _check_columns(self, row)
                if not number:  # a byte order mark, which programs for Windows write
                    row = {
                        k: v.lstrip("\ufeff") if isinstance(v, str) else v for k, v in row.items()
                    }
                if column != "text":
                    row = {**row, "text": row.get(column), column: None}
                yield row


@dataclass
class PositionArguments(Checked):
    """What is asked about positions that are not rows yet."""

    tasks: list[str] = setting(
        [POLICY.name],
        "What to ask about each position of a FEN, EPD or PGN file, or of a column `fen`: policy, an "
        "analysis; environment, what a move leads to. Rows and prompts keep the task that they have.",
        among=(POLICY.name, ENVIRONMENT.name),
        of="task for positions",
        filled=True,
    )


@dataclass
class RowArguments(SourceArguments):
    """Where rows come from: a data set, and random games."""

    max_quarantined_share: float = setting(
        0.01,
        "Stop if more than this share of the rows cannot be read. Up to it, they are left out and kept "
        "in a file with their reasons. Rows that no rule of chess can judge are left out without limit.",
        least=0,
        most=1,
    )
    synthetic_rows: int = setting(
        0, "Number of environment rows to make from random games and add.", least=0
    )
    synthetic_seed: int = setting(
        0, "Seed of all synthetic rows; the same seed makes the same rows."
    )
    synthetic_opening_plies: int = setting(
        12, "Openings of synthetic rows are shorter than this, in plies.", least=1
    )
    synthetic_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each kind of synthetic environment row, {openings: 0.6, game_ends: 0.4}. Without it, "
        "the shares of assets/shares.yaml.",
        shares=KIND_SHARES,
        of="kind",
    )
    synthetic_fill_in_rows: int = setting(
        0,
        "Number of fill-in rows to make and add; kinds, openings and seed are those of synthetic "
        "environment rows.",
        least=0,
    )
    synthetic_fill_in_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each field that synthetic fill-in rows mask, {action: 0.7, rank: 0.3}. Without it, "
        "the shares of assets/shares.yaml.",
        shares=FIELD_SHARES,
        of="field",
    )

    def made_rows(self) -> list[Row]:
        """The synthetic rows: environment rows, then fill-in rows; datasets keeps many on disk."""
        kinds: Any = self.synthetic_shares or KIND_SHARES
        fields: Any = self.synthetic_fill_in_shares or FIELD_SHARES
        seed, plies = self.synthetic_seed, self.synthetic_opening_plies
        counts = self.synthetic_rows, self.synthetic_fill_in_rows

        def make() -> Iterator[Row]:
            asked = synthesis.environment_prompts(seed, kinds, plies)
            environment = map(synthesis.environment_row, islice(asked, counts[0]))
            fill_in = islice(synthesis.fill_in_rows(seed, fields, kinds, plies), counts[1])
            yield from shown(chain(environment, fill_in), "making synthetic rows", sum(counts))

        if sum(counts) < WORTH_KEEPING:
            return list(make())
        return _kept(make, FEATURES, [counts, seed, plies, dict(kinds), dict(fields)])

    def parsed_rows(self, tasks: Sequence[str] = ()) -> list[Row | Malformed]:
        """The data set's rows, see `parse_rows`; of a large file, datasets keeps them on disk."""

        def parse() -> Iterator[Row | Malformed]:
            return parse_rows(self.raw_rows(), tasks=tasks)

        file = dataset_file(self.dataset_name)
        if file is None or not file.is_file() or file.stat().st_size < LARGE_FILE:
            return list(parse())
        ours = __name__.partition(".")[0]
        if any(type(task).__module__.partition(".")[0] != ours for task in TASKS.values()):
            return list(parse())  # a user's task: `_source_digest` does not know its code
        with file.open("rb") as opened:  # it may be larger than the memory
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        asked = ["parsed", content, self.text_column, self.max_rows, list(tasks)]
        kept = _kept(lambda: map(_keepable, parse()), _KEEPABLE, asked)
        return [
            Malformed(**json.loads(fault)) if (fault := row.pop("malformed")) else row
            for row in kept
        ]


def _kept(make: Callable[[], Iterable[Row]], features: Features, asked: Any) -> list[Row]:
    """The rows that a function makes, kept by datasets under what is asked and the code's digest."""
    key = Hasher.hash([asked, __version__, chess.__version__, _source_digest()])
    try:
        kept = Dataset.from_generator(lambda: iter(make()), features, fingerprint=key)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None
    rows: list[Row] = kept.to_list()
    return rows


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
    digest: str = Hasher.hash([path.read_bytes() for path in files])
    return digest


# --------------------------------------------------------------------------------------------------
# Data sets by name
# --------------------------------------------------------------------------------------------------
def dataset_file(name: str) -> Path | None:
    """The file behind a data set's name; None for a Hub id."""
    if name in PACKAGED_DATA:
        return Path(asset_path(PACKAGED_DATA[name]))
    return Path(name) if Path(name).suffix in _FILE_LOADERS else None


def _check_columns(args: SourceArguments, row: Row) -> None:
    column = args.text_column
    for name in ("prompt", "completion"):
        if isinstance(row.get(name), list):
            raise RookWorldError(
                f"the column {name} of {args.dataset_name!r} holds chat messages; give their text, such "
                'as {"prompt": "P: <FEN> ", "completion": "M: ..."}'
            )
    if column in row or (column == "text" and not row.keys().isdisjoint(_COLUMNS)):
        return
    head = f"no column {column!r} in {args.dataset_name!r}; found: {', '.join(row)}. "
    if len(row) == 1 and any(mark in next(iter(row)) for mark in ";\t|"):
        raise RookWorldError(f"{head}Columns of a CSV file are separated by commas; write it so")
    raise RookWorldError(
        f"{head}Name the column that holds the rows in text_column, or give columns prompt and "
        "completion, or fen"
    )


def on_disk(rows: Iterable[Row], features: Features) -> Dataset:
    """Rows in a temporary file that is mapped into memory, and removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="rookworld-rows-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with ArrowWriter(path=str(Path(folder) / "rows.arrow"), features=features) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    return Dataset.from_file(str(Path(folder) / "rows.arrow"))


@contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        ValueError,
        StopIteration,  # an empty file
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        why = _first_line_not_json(dataset_file(name)) or (
            f"{error.__cause__ or str(error) or 'no rows'}); check the "
            f"{'content' if dataset_file(name) else 'name and the network'}, or give another file"
        )
        raise RookWorldError(f"cannot load the data set {name!r} ({why}") from error


def _first_line_not_json(file: Path | None) -> str:
    """What is wrong with the first line of a JSONL file that is not JSON, if there is one."""
    if file is None or file.suffix != ".jsonl" or not file.is_file():
        return ""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                json.loads(line.strip() or "{}")
            except json.JSONDecodeError as error:
                why = error.msg.removesuffix(" starting at")
                cut = "; the file ends in the middle of it" if not line.endswith("\n") else ""
                return (
                    f"line {number} is not JSON, {why}{cut}): {line[:60].rstrip()!r}; copy the "
                    "file again, or mend or delete the line"
                )
    return ""


def _open_dataset(args: SourceArguments) -> Any:
    if not args.dataset_name:
        return []
    file = dataset_file(args.dataset_name)
    if file is None:
        streaming = args.max_rows is not None
        return datasets.load_dataset(
            args.dataset_name, split=args.dataset_split, streaming=streaming
        )
    if file.suffix == ".pgn":
        return positions.pgn_positions(file)
    return datasets.load_dataset(_FILE_LOADERS[file.suffix], data_files=str(file), split="train")


# --------------------------------------------------------------------------------------------------
# Parsing
# --------------------------------------------------------------------------------------------------
def parse_rows(
    raws: Iterable[Mapping[str, Any]], tasks: Sequence[str] = (), as_given: bool = False
) -> Iterator[Row | Malformed]:
    """Each raw row as a parsed row, or as what is wrong with it; empty lines are left out.

    Args:
        raws: See `parse_raw`.
        tasks: Make prompts of positions, see `positions.asked_of`; without tasks these are malformed.
        as_given: Leave the completion of a prompt that came alone empty.
    """
    for number, raw in enumerate(raws, 1):
        if raw.get("text") == "":
            continue
        try:
            asked = positions.asked_of(raw, tasks) if tasks else [raw]
        except (NotationError, IllegalPositionError) as error:
            yield _malformed(number, raw, error)
            continue
        for row in asked:
            yield parse_row(number, row, as_given)


def parse_row(number: int, raw: Mapping[str, Any], as_given: bool = False) -> Row | Malformed:
    """A raw row as a parsed row, or as what is wrong with it.

    Args:
        number: Of the row in its data set, from 1.
        raw: See `parse_raw`.
        as_given: See `parse_raw`.
    """
    try:
        return parse_raw(raw, as_given)
    except (NotationError, IllegalPositionError) as error:
        return _malformed(number, raw, error)


def _malformed(number: int, raw: Mapping[str, Any], error: Exception) -> Malformed:
    kind = getattr(error, "kind", None)  # of a position that is not legal
    reason = str(kind or getattr(error, "reason", "not a FEN"))
    text = {key: raw[key] for key in ("text", "prompt", "completion", "fen", "fault") if key in raw}
    is_readable = kind is not None or isinstance(error, UnjudgeableError)
    return Malformed(number, reason, str(error), text, is_readable)


def parse_raw(raw: Mapping[str, Any], as_given: bool = False) -> Row:
    """One row with the columns described above, from one raw row.

    Args:
        raw: Column `text` (a RookWorld line or a prompt alone), or `prompt` and perhaps `completion`;
            `action_values` is optional.
        as_given: Leave the completion of a prompt that came alone empty.

    Raises:
        NotationError: The text is malformed, a policy prompt has no legal move, action values do not
            fit the position, or a fill-in record fits no answer or another one than it has.
        IllegalPositionError: The position is not legal.
    """
    text = raw.get("text")
    if text is None:
        # The space separates a policy prompt from its answer; further spaces make no difference.
        text = f"{raw.get('prompt') or ''} {raw.get('completion') or ''}"
    if not isinstance(text, str):
        raise NotationError("the column does not hold text", str(text))
    values = raw.get("action_values") if TASKS[task_of(text)].needs_values else None
    if values is not None:
        _moves_and_worths(values)
    came_alone = False
    try:
        task, prompt, completion = split_row(text)
    except NotationError:
        if (found := _prompt_alone(text, values)) is None:
            raise
        task, prompt, completion = found
        came_alone = True
    position = TASKS[task].check(prompt, completion)
    if values is not None:
        values = _checked_values(position.fen, values)
    given = "" if came_alone and as_given else completion
    return TASKS[task].row(prompt, given, position, values)


def _prompt_alone(text: str, values: Any) -> tuple[str, str, str] | None:
    """Task, prompt and truth (empty if unknown) of a prompt alone; None if it is not one."""
    task = TASKS[task_of(text)]
    try:
        prompt = task.read_prompt(clean(text))
        known = values_by_move(values) if values else None
        return task.name, prompt, task.truth(prompt, known) or ""
    except (NotationError, KeyError, TypeError):  # the last two: from values that are checked later
        return None


def _moves_and_worths(values: Any) -> tuple[list[str], list[int]]:
    try:
        found = [(str(value["move"]), operator.index(value["cp"])) for value in values]
    except (KeyError, TypeError) as error:
        raise NotationError(
            "action_values must be a list of {move, cp}, cp in whole centipawns", str(values)
        ) from error
    return [move for move, _ in found], [cp for _, cp in found]


def _checked_values(fen: str, values: Any) -> list[dict[str, Any]]:
    moves, worths = _moves_and_worths(values)
    if sorted(moves) != sorted(rules.legal_moves(fen)):
        raise NotationError("action_values do not name every legal move once", fen)
    if worths != sorted(worths, reverse=True):
        raise NotationError("action_values are not ordered best first", fen)
    return [{"move": move, "cp": cp} for move, cp in zip(moves, worths, strict=True)]


# --------------------------------------------------------------------------------------------------
# Quarantine
# --------------------------------------------------------------------------------------------------
def quarantine(
    malformed: Sequence[Malformed], read: int, args: RowArguments, path: Path | None
) -> None:
    """Write malformed rows with their reasons, as JSON lines, and stop if too many cannot be read.

    It also stops if no row can be judged.

    Args:
        malformed: The malformed rows; without any no file is written.
        read: Rows read, malformed or not.
        args: Which data set it was, and what share of it may be unreadable.
        path: Where the rows go.

    Raises:
        RookWorldError: More than that share cannot be read.
    """
    if not malformed:
        if path:
            path.unlink(missing_ok=True)  # of an earlier try; the data have been mended since
        return
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [{"row": row.number, "reason": row.message, **row.text} for row in malformed]
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in content)
        path.write_text("".join(lines), encoding="utf-8")
    unreadable = [row for row in malformed if not row.is_readable]
    if len(malformed) == read and not unreadable:
        kinds = Counter(row.reason for row in malformed)
        raise RookWorldError(
            f"none of the {read} rows of {args.dataset_name!r} can be judged by the rules of chess: "
            f"{dict(kinds.most_common(5))}; give other data"
        )
    if len(unreadable) / read > args.max_quarantined_share:
        reasons = Counter(row.reason for row in unreadable)
        where = (
            f"; see {path}" if path else "; a run without --dry_run writes all of them to a file"
        )
        raise RookWorldError(
            f"{len(unreadable)} of {read} rows of {args.dataset_name!r} are malformed, more than "
            f"max_quarantined_share={args.max_quarantined_share}: {dict(reasons.most_common(5))}; the "
            f"first is {place_of(unreadable[0], args.dataset_name)}{where}. Mend the data or raise "
            "the share"
        )


def place_of(row: Malformed, name: str) -> str:
    """Where a row of the data set `name` is, and what is wrong; the lines of a text are its rows."""
    file = dataset_file(name)
    is_text = file is not None and _FILE_LOADERS[file.suffix] == "text"
    return f"{'line' if is_text else 'row'} {row.number}: {row.message}"
