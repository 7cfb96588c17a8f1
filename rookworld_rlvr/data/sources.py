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
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import chess
import datasets
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from datasets.exceptions import DatasetGenerationError
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
from ..common.settings import Checked, setting, share_bounds
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, split_row, task_of
from ..tasks.text import clean
from ..tasks.types import values_by_move
from .shares import FIELD_SHARES, KIND_SHARES

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
        files = map(str, path.parent.glob("*"))
        return [] if path.is_file() else [f"{key}: no file {name!r}{close_matches(name, files)}"]
    if is_hub_id(name) and not path.exists():
        return []
    return [
        f"{key}: {name!r} is neither packaged, a Hub id (owner/name), nor a file that ends in "
        f"{', '.join(_FILE_LOADERS)}{close_matches(name, PACKAGED_DATA)}"
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
        try:
            for number, row in enumerate(islice(_open_dataset(self), self.max_rows)):
                if not number:
                    _check_columns(self, row)
                yield row if column == "text" else {**row, "text": row.get(column), column: None}
        except RookWorldError:
            raise
        except (OSError, ValueError, StopIteration, DatasetGenerationError) as error:
            raise RookWorldError(
                f"cannot load the data set {self.dataset_name!r} "
                f"({error.__cause__ or str(error) or 'no rows'}); check name, content and network"
            ) from error


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
        **share_bounds(KIND_SHARES, "kind"),
    )
    synthetic_fill_in_rows: int = setting(
        0,
        "Number of fill-in rows to make and add; kinds, openings and seed are those of synthetic "
        "environment rows.",
        least=0,
    )

    def made_rows(self) -> list[Row]:
        """The synthetic rows: environment rows, then fill-in rows; datasets keeps many on disk."""
        kinds: Any = self.synthetic_shares or KIND_SHARES
        seed, plies = self.synthetic_seed, self.synthetic_opening_plies
        counts = self.synthetic_rows, self.synthetic_fill_in_rows

        def make() -> Iterator[Row]:
            from . import synthesis  # most runs make none

            asked = synthesis.environment_prompts(seed, kinds, plies)
            environment = map(synthesis.environment_row, islice(asked, counts[0]))
            fill_in = islice(synthesis.fill_in_rows(seed, FIELD_SHARES, kinds, plies), counts[1])
            yield from shown(chain(environment, fill_in), "making synthetic rows", sum(counts))

        if sum(counts) < WORTH_KEEPING:
            return list(make()) if sum(counts) else []
        return _kept(make, FEATURES, [counts, seed, plies, dict(kinds)])

    def parsed_rows(self, tasks: Sequence[str] = ()) -> list[Row | Malformed]:
        """The data set's rows, see `parse_rows`; of a large file, datasets keeps them on disk.

        A prompt that came alone has the truth as its completion, empty if that is not known.
        """

        def parse() -> Iterator[Row | Malformed]:
            return map(_answered, parse_rows(self.raw_rows(), tasks))

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
    except DatasetGenerationError as error:
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
    if column not in row and (column != "text" or row.keys().isdisjoint(_COLUMNS)):
        raise RookWorldError(
            f"no column {column!r} in {args.dataset_name!r}; found: {', '.join(row)}. Name the column "
            "that holds the rows in text_column, or give columns prompt and completion, or fen"
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
        from .positions import pgn_positions

        return pgn_positions(file)
    loader = _FILE_LOADERS[file.suffix]
    options = {"encoding": "utf-8-sig"} if loader == "text" else {}  # a byte order mark of Windows
    return datasets.load_dataset(loader, data_files=str(file), split="train", **options)


# --------------------------------------------------------------------------------------------------
# Parsing
# --------------------------------------------------------------------------------------------------
def parse_rows(
    raws: Iterable[Mapping[str, Any]], tasks: Sequence[str] = ()
) -> Iterator[Row | Malformed]:
    """Each raw row as a parsed row, or as what is wrong with it; empty lines are left out.

    Args:
        raws: See `parse_raw`.
        tasks: Make prompts of positions, see `positions.asked_of`; without tasks these are malformed.
    """
    for number, raw in enumerate(raws, 1):
        if raw.get("text") == "":
            continue
        try:
            asked = [raw]
            if tasks and not _is_row(raw):
                from .positions import asked_of  # most data sets hold rows

                asked = asked_of(raw, tasks)
            yield from [parse_raw(row) for row in asked]
        except (NotationError, IllegalPositionError) as error:
            kind = getattr(error, "kind", None)  # of a position that is not legal
            reason = str(kind or getattr(error, "reason", "not a FEN"))
            text = {key: raw[key] for key in (*_COLUMNS, "completion") if key in raw}
            is_readable = kind is not None or isinstance(error, UnjudgeableError)
            yield Malformed(number, reason, str(error), text, is_readable)


def _is_row(raw: Mapping[str, Any]) -> bool:
    """Whether it has the mark of a row: a task's prefix, or the ``+`` between fields."""
    text = raw.get("text") or raw.get("prompt")
    return isinstance(text, str) and (
        "+" in text or clean(text).startswith(TASKS[task_of(text)].prefix)
    )


def parse_raw(raw: Mapping[str, Any]) -> Row:
    """One row with the columns described above, from one raw row.

    Args:
        raw: Column `text` (a RookWorld line or a prompt alone), or `prompt` and perhaps `completion`;
            `action_values` is optional.

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
    task = TASKS[task_of(text)]
    try:
        _, prompt, completion = split_row(text)
    except NotationError as error:
        try:
            prompt, completion = task.read_prompt(clean(text)), ""
        except NotationError:
            raise error from None
    position = task.check(prompt, completion or task.truth(prompt) or "")
    values = raw.get("action_values") if task.needs_values else None
    if values is not None:
        values = _checked_values(position.fen, values)
    return task.row(prompt, completion, position, values)


def _checked_values(fen: str, values: Any) -> list[dict[str, Any]]:
    try:
        pairs = [(str(value["move"]), operator.index(value["cp"])) for value in values]
    except (KeyError, TypeError) as error:
        raise NotationError(
            "action_values must be a list of {move, cp}, cp in whole centipawns", str(values)
        ) from error
    if sorted(move for move, _ in pairs) != sorted(rules.legal_moves(fen)):
        raise NotationError("action_values do not name every legal move once", fen)
    worths = [cp for _, cp in pairs]
    if worths != sorted(worths, reverse=True):
        raise NotationError("action_values are not ordered best first", fen)
    return [{"move": move, "cp": cp} for move, cp in pairs]


def _answered(row: Row | Malformed) -> Row | Malformed:
    """The row, with the truth as its completion if it has none."""
    if isinstance(row, Malformed) or row["completion"]:
        return row
    truth = TASKS[row["task"]].truth(row["prompt"], values_by_move(row["action_values"]))
    return {**row, "completion": truth or ""}


# --------------------------------------------------------------------------------------------------
# Quarantine
# --------------------------------------------------------------------------------------------------
def quarantine(
    malformed: Sequence[Malformed], read: int, args: RowArguments, path: Path | None
) -> None:
    """Write malformed rows with their reasons, as JSON lines, and stop if too many cannot be read.

    Args:
        malformed: The malformed rows; without any no file is written.
        read: Rows read, malformed or not.
        args: Which data set it was, and what share of it may be unreadable.
        path: Where the rows go.

    Raises:
        RookWorldError: More than that share cannot be read, or no row can be judged.
    """
    if path and not malformed:
        path.unlink(missing_ok=True)  # of an earlier try; the data have been mended since
    elif path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [{"row": row.number, "reason": row.message, **row.text} for row in malformed]
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in content)
        path.write_text("".join(lines), encoding="utf-8")
    unreadable = [row for row in malformed if not row.is_readable]
    is_none_judgeable = 0 < len(malformed) == read and not unreadable
    if len(unreadable) > args.max_quarantined_share * read or is_none_judgeable:
        bad = unreadable or malformed
        reasons = Counter(row.reason for row in bad)
        where = f"see {path}" if path else "a run without --dry_run writes all of them to a file"
        raise RookWorldError(
            f"{len(bad)} of {read} rows of {args.dataset_name!r} are malformed, more than "
            f"max_quarantined_share={args.max_quarantined_share}: {dict(reasons.most_common(5))}; the "
            f"first is row {bad[0].number}: {bad[0].message}; {where}. Mend the data or "
            "raise the share"
        )
