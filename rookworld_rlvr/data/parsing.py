"""Raw rows as parsed rows: RookWorld lines and prompts, and positions (FENs, EPDs, games).

What a parsed row is, and what becomes of others, is said in `sources`.
"""

from __future__ import annotations

import codecs
import json
import logging
import operator
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import datasets
from datasets.exceptions import DatasetGenerationError

from ..common.errors import IllegalPositionError, NotationError, RookWorldError, UnjudgeableError
from ..common.settings import Checked, setting
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, split_row, task_of
from ..tasks.text import MAX_HISTORY, clean, parse_move
from ..tasks.types import EnvironmentPrompt, action_values_column
from . import sources
from .pgn import read_game, split_games
from .sources import Malformed, Row, RowArguments, SourceArguments

# They print what a row's `fault` or an error says better.
for _name in ("json.json", "csv.csv", "parquet.parquet"):
    logging.getLogger(f"datasets.packaged_modules.{_name}").setLevel(logging.CRITICAL)
logging.getLogger("chess.pgn").setLevel(logging.CRITICAL)


_LOGGER = logging.getLogger(__name__)


# What datasets, pandas and pyarrow say of a file without rows.
_WITHOUT_ROWS = (
    "corresponds to no data",
    "No columns to parse",
    "BatchSize must be greater than 0",
)


# Operations of EPD and of perft suites. Behind a position these names begin its operations, even if no
# semicolon ends them. Other words without a semicolon may be the clocks of a broken FEN, as may single
# letters; a name with a colon may be ``M:``, of a policy row that has lost its prefix.
_OPCODES = (
    "ac[dns]|[ab]m|ce|dm|draw_\\w+|eco|fmvn|hmvc|id|nic|noop|p[mv]|rc|resign|sm|tc\\w+|D[0-9]+"
)


# A FEN of four or six fields, and perhaps operations, of which only the beginning is checked.
_POSITION = re.compile(
    rf"""
    \s* (?P<fields> [^\s+;]+ (?: \s+ [^\s+;]+ ){{3}} )
    (?: \s+ (?P<clocks> [0-9]+ \s+ [0-9]+ ) (?=[\s;]|$) )?
    (?: \s+ - (?=[\s;]|$) )*  # python-chess passes over a dash in the place of an operation
    (?P<operations>
        \s* ;.*
        | \s+ (?: {_OPCODES} ) (?: [\s;].* )?
        | \s+ [A-Za-z][^\s+;:]+ (?: \s*;.* | \s[^;]*;.* | \s+".* )
    )?
    \s*
    """,
    re.VERBOSE | re.DOTALL,
)
_LIST_SIGNS = str.maketrans(dict.fromkeys("[],'\"", " "))  # pandas writes "['e2e4', 'e7e5']"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_CLOCK = re.compile(r"\s*(?:-\s+)*(hmvc|fmvn)\s+([0-9]+)\s*")


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


def raw_rows(args: SourceArguments) -> Iterator[Row]:
    """The raw rows of a data set, their lines in the column `text`.

    Names of columns are read in any case: ``FEN`` is `fen`.

    Raises:
        RookWorldError: The data set cannot be read, or has no row or no column to read.
    """
    column, is_empty = args.text_column, True
    known = sources.COLUMNS if column == "text" else (column,)
    names: Mapping[str, str] = {}
    try:
        for number, row in enumerate(islice(_open_dataset(args), args.max_rows)):
            if number == 0:
                names = _other_spellings(row, (*sources.COLUMNS, *sources.OTHER_COLUMNS, column))
            if names:
                row = {names.get(key, key): value for key, value in row.items()}
            if number == 0 and row.keys().isdisjoint(known):
                found = ", ".join(row)
                raise RookWorldError(
                    f"no column {column!r} in {args.dataset_name!r}; found: {found}. "
                    f"{_column_remedy(found)}"
                )
            is_empty = is_empty and (_is_blank(row.get(column)) or _is_comment(row.get(column)))
            yield row if column == "text" else {**row, "text": row.get(column), column: None}
    except RookWorldError:
        raise
    except (OSError, ValueError, StopIteration, DatasetGenerationError) as error:
        if not any(words in str(error.__cause__ or error) for words in _WITHOUT_ROWS):
            raise _cannot_load(args.dataset_name, error) from error
    if is_empty and args.dataset_name:
        raise RookWorldError(f"dataset_name: no rows in {args.dataset_name!r}; give others")


def _other_spellings(row: Row, known: Iterable[str]) -> dict[str, str]:
    """The columns that are spelled in another case than a known one, and how that spells them."""
    known = set(known)
    wanted = {name.lower(): name for name in known - row.keys()}
    return {key: wanted[key.lower()] for key in row.keys() - known if key.lower() in wanted}


def _column_remedy(found: str) -> str:
    """What to do about a data set without a column that can be read."""
    if "\t" in found:
        return "Its columns are separated by tabs: name the file .tsv"
    if ";" in found:
        return "Its columns are separated by semicolons: put commas between them"
    return (
        "Name the column that holds the rows in text_column, or give columns prompt and completion, or "
        "fen"
    )


def _is_blank(text: Any) -> bool:
    return isinstance(text, str) and not text.strip("\0").strip()


def _cannot_load(name: str, error: Exception) -> RookWorldError:
    """Why a data set cannot be loaded, and what to do."""
    cause = error.__cause__ or error
    why = str(cause).strip() or "no rows"
    if (file := sources.dataset_file(name)) is None:
        remedy = "check its name and the network"
    elif isinstance(cause, UnicodeError) or encoding_of(file) == "utf-16":
        remedy = "the file is not text in UTF-8: save it in UTF-8, or give another file"
    elif broken := _broken_line(file):
        why, remedy = broken, "check what is in the file, and mend or delete the line"
    else:
        remedy = "check what is in the file"
    return RookWorldError(f"cannot load the data set {name!r} ({why}); {remedy}")


def _broken_line(file: Path) -> str:
    """The first line of a file of JSON lines that is no JSON, in words; datasets counts otherwise."""
    if file.suffix.lower() != ".jsonl":
        return ""
    with file.open(encoding=encoding_of(file), errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    json.loads(line)
            except json.JSONDecodeError as error:
                return f"line {number} is not JSON: {error.msg}"
    return ""


def _open_dataset(args: SourceArguments) -> Any:
    if not args.dataset_name:
        return []
    file = sources.dataset_file(args.dataset_name)
    if file is None:
        streaming = args.max_rows is not None
        return datasets.load_dataset(
            args.dataset_name, split=args.dataset_split, streaming=streaming
        )
    if not file.stat().st_size:  # datasets has no word for it
        return []
    if file.suffix.lower() == ".pgn":
        return pgn_positions(file)
    loader = sources.FILE_LOADERS[file.suffix.lower()]
    options = encoding_options(file) if loader in ("text", "csv") else {}
    if file.suffix.lower() == ".tsv":
        options["sep"] = "\t"
    return datasets.load_dataset(loader, data_files=str(file), split="train", **options)


# --------------------------------------------------------------------------------------------------
# Parsing
# --------------------------------------------------------------------------------------------------
def parse_rows(
    raws: Iterable[Mapping[str, Any]], tasks: Sequence[str] = ()
) -> Iterator[Row | Malformed]:
    """Each raw row as a parsed row, or as what is wrong with it; empty lines are left out.

    A line that begins with ``#`` or ``%`` is a comment, which is a `Malformed` of its own kind.

    Args:
        raws: See `parse_raw`.
        tasks: Make prompts of positions, see `asked_of`; without tasks these are malformed.
    """
    for number, raw in enumerate(map(_without_nul, raws), 1):
        text = raw.get("text")
        if _is_blank(text):
            continue
        if _is_comment(text):
            yield Malformed(number, "a comment", f"a comment: {text}", {"text": text}, "comment")
            continue
        if number == 1 and ENVIRONMENT.name in tasks and "fen" in raw:
            _say_what_is_drawn(raw)
        try:
            asked = asked_of(raw, tasks) if tasks and not _is_row(raw) else [raw]
            yield from [parse_raw(row) for row in asked]
        except (NotationError, IllegalPositionError) as error:
            kind = getattr(error, "kind", None)  # of a position that is not legal
            reason = str(kind or getattr(error, "reason", "not a FEN"))
            shown = {key: raw[key] for key in (*sources.COLUMNS, "completion") if key in raw}
            is_readable = kind is not None or isinstance(error, UnjudgeableError)
            yield Malformed(
                number, reason, str(error), shown, "unjudgeable" if is_readable else "unreadable"
            )


def _without_nul(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A raw row without the NUL with which programs in C end their texts."""
    return {
        key: value.strip("\0") if isinstance(value, str) else value for key, value in raw.items()
    }


def _say_what_is_drawn(raw: Mapping[str, Any]) -> None:
    """Warn that moves are drawn, if a data set has columns but not those of the moves to ask about."""
    others = sorted(raw.keys() - {*sources.COLUMNS, "action_values"})
    if others and not {"action", "history"} & {*others}:
        _LOGGER.warning(
            "no column action: environment prompts ask about random legal moves (columns: %s)",
            ", ".join(others),
        )


def _is_row(raw: Mapping[str, Any]) -> bool:
    """Whether it has the mark of a row: a task's prefix, or the ``+`` between fields.

    In the operations of an EPD a ``+`` is a check, ``bm Qd1+;``.
    """
    text = raw.get("text") or raw.get("prompt")
    return isinstance(text, str) and (
        ("+" in text and not _POSITION.fullmatch(text)) or _has_prefix(text)
    )


def _has_prefix(text: str) -> bool:
    return clean(text).startswith(TASKS[task_of(text)].prefix)


def _is_comment(text: Any) -> bool:
    is_marked = isinstance(text, str) and text.lstrip().startswith(("#", "%"))
    return is_marked and not _has_prefix(text)


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
    if "\ufffd" in text:
        raise NotationError("a byte that is not UTF-8, read as U+FFFD", text)
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
        found = {str(value["move"]): operator.index(value["cp"]) for value in values}
    except (KeyError, TypeError) as error:
        raise NotationError(
            "action_values must be a list of {move, cp}, cp in whole centipawns", str(values)
        ) from error
    if len(found) < len(values) or sorted(found) != sorted(rules.legal_moves(fen)):
        raise NotationError("action_values do not name every legal move once", fen)
    if [*found.values()] != sorted(found.values(), reverse=True):
        raise NotationError("action_values are not ordered best first", fen)
    return action_values_column(found)


# --------------------------------------------------------------------------------------------------
# Positions that are not rows yet
# --------------------------------------------------------------------------------------------------
def fen_of(text: str) -> str:
    """The FEN of a line that holds a FEN or an EPD.

    Of the operations only the clocks ``hmvc`` and ``fmvn`` are read, so a fault in another does not cost
    the position. Without clocks a position has ``0 1``.

    Raises:
        NotationError: python-chess cannot read it, or would change it, see `rules.check_fields`.

    >>> fen_of('7k/8/8/8/8/8/8/K7 w - - bm Ka2; hmvc 7; id "corner";')
    '7k/8/8/8/8/8/8/K7 w - - 7 1'
    >>> fen_of("7k/8/8/8/8/8/8/K7 w - - 0 1 ;D1 3 ;D2 9")
    '7k/8/8/8/8/8/8/K7 w - - 0 1'
    """
    board, position = chess.Board(), _POSITION.fullmatch(text)
    try:
        if position:
            board.set_fen(_with_clocks(**position.groupdict(default="")))
        elif len(text.split()) < 4:  # python-chess would fill in what is missing
            raise ValueError("fewer than four fields")
        else:
            board.set_fen(text)
    except ValueError as error:
        reason = "neither a RookWorld row, a FEN nor an EPD"
        if "\t" in text:
            reason += (
                "; a table with tabs belongs in a .tsv file, its columns named in the first line"
            )
        raise NotationError(reason, f"{text} ({error})") from error
    rules.check_fields(board, text)
    return board.fen()


def _with_clocks(fields: str, clocks: str, operations: str) -> str:
    """A FEN of its first four fields, the clocks that may follow them, and those among operations."""
    found = dict(zip(("hmvc", "fmvn"), clocks.split(), strict=False))
    for operation in _STRING.sub(";", operations).split(";"):
        if clock := _CLOCK.fullmatch(operation):
            found[clock[1]] = clock[2]
    return f"{fields} {found.get('hmvc', '0')} {found.get('fmvn', '1')}"


def prompt_of(board: chess.Board, action: str) -> EnvironmentPrompt:
    """The prompt that asks what `action` does in a game's position, with the moves before it."""
    played = [move.uci() for move in board.move_stack[-(MAX_HISTORY - 1) :]]
    return EnvironmentPrompt(board.fen(), action, (*played, action))


def pgn_positions(path: Path) -> Iterator[dict[str, Any]]:
    """Raw rows of a PGN file: the position before each move of each game's main line.

    `action` is the move played and `history` the last moves up to and including it. A game without
    moves that starts from a FEN, such as a puzzle or a chapter of a study, gives that position. Where a
    game cannot be read, there is a row with the reason as `fault` instead.

    Raises:
        RookWorldError: No game has a move or a FEN.
    """
    number, has_rows = 0, False
    options = encoding_options(path)
    with path.open(encoding=options["encoding"], errors="replace") as file:
        for number, text in enumerate(split_games(file), 1):
            try:
                for row in game_positions(read_game(text)):
                    has_rows = True
                    yield row
            except ValueError as error:
                has_rows = True
                yield {"fault": f"game {number}: {error}"}
    if number and not has_rows:
        raise RookWorldError(
            f"dataset_name: none of the {number} games in {str(path)!r} has a move or a FEN; give others"
        )


def encoding_of(file: Path) -> str:
    """UTF-16 if the file begins with its byte order mark, else UTF-8, with or without one."""
    with file.open("rb") as opened:
        is_wide = opened.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return "utf-16" if is_wide else "utf-8-sig"


def encoding_options(file: Path) -> dict[str, str]:
    """How datasets decodes a text file. Bytes that are not UTF-8 are replaced, and a warning says so.

    Positions and RookWorld's rows are ASCII, so such bytes are mostly in names, which nothing reads. The
    encoding is not guessed, as a wrong guess gives wrong letters. `parse_raw` refuses a row whose own
    text has a replaced byte.
    """
    encoding = encoding_of(file)
    if encoding == "utf-16":
        return {"encoding": encoding}
    try:
        with file.open(encoding=encoding) as opened:
            for _ in opened:
                pass
    except UnicodeDecodeError as error:
        _LOGGER.warning(
            "%s is not in UTF-8 (%s): bytes that cannot be read are replaced by U+FFFD. In names and "
            "comments this does not matter; a row with such a byte is quarantined. If you need these "
            "rows, save the file in UTF-8",
            file,
            error,
        )
        return {"encoding": encoding, "encoding_errors": "replace"}
    return {"encoding": encoding}


def game_positions(game: chess.pgn.Game) -> Iterator[dict[str, Any]]:
    """The raw rows of a game of `read_game`, as `pgn_positions` has them.

    Raises:
        ValueError: It is of a variant, has a null move, begins in a position that python-chess would
            change (see `rules.check_fields`), or python-chess could not read all of it.
    """
    board = game.board()
    if type(board) is not chess.Board or board.chess960:
        # Without this header, Chess960 shows in the castling rights.
        raise ValueError(f"it is of the variant {game.headers.get('Variant', 'Chess960')!r}")
    rules.check_fields(board, game.headers.get("FEN", board.fen()))
    for move in game.mainline_moves():
        if not move:
            raise ValueError(f"a null move after {board.fen()}")
        yield asdict(prompt_of(board, move.uci()))
        board.push(move)
    if "FEN" in game.headers and not (game.variations or game.errors):
        yield {"fen": game.headers["FEN"]}
    if game.errors:
        raise ValueError(game.errors[0])


def asked_of(raw: Mapping[str, Any], tasks: Sequence[str]) -> list[Mapping[str, Any]]:
    """The prompts that tasks make of a raw row that is only a position.

    Args:
        raw: A FEN or EPD as `text` or `fen`. Columns `action` (UCI) and `history` (UCI, the action last,
            of which the last ten moves are taken) are optional; without an action a legal one is drawn,
            always the same for a position.
        tasks: The tasks that make prompts.

    Returns:
        Raw rows with a prompt and no completion.

    Raises:
        NotationError: The text is not a position, or the moves do not fit.
        IllegalPositionError: The position is not legal.
    """
    if raw.get("fault"):
        raise NotationError("a game that cannot be read to its end", str(raw["fault"]))
    given = raw.get("text") or raw.get("fen") or raw.get("prompt") or ""
    if not isinstance(given, str):
        raise NotationError(
            "a prompt that is not text, such as a list of messages, which only your own script can use",
            str(given),
        )
    fen = fen_of(given)
    position = EnvironmentPrompt(fen, *_played(fen, raw.get("action"), raw.get("history")))
    prompts = [prompt for task in tasks if (prompt := TASKS[task].ask(position)) is not None]
    if not prompts:
        raise UnjudgeableError("a position that the tasks ask nothing about: no legal move", fen)
    values = raw.get("action_values")
    return [{"prompt": prompt, "completion": None, "action_values": values} for prompt in prompts]


def _played(fen: str, action: Any, history: Any) -> tuple[str, tuple[str, ...]]:
    """The move to ask about, a random legal one if none is given, and the moves up to it."""
    if not isinstance(history, str | Sequence | None):
        raise NotationError("a history that is neither text nor a list of moves", str(history))
    moves = (
        history.translate(_LIST_SIGNS).split() if isinstance(history, str) else list(history or ())
    )
    if not (action or moves):
        if not (legal := rules.legal_moves(fen)):
            return "", ()
        action = random.Random(fen).choice(legal)
    action = action or moves[-1]
    moves = moves or [action]
    for move in (action, *moves):
        parse_move(str(move))
    if moves[-1] != action:
        raise NotationError(f"a history that does not end with the action, {action}", str(moves))
    return action, tuple(moves[-MAX_HISTORY:])


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
        RookWorldError: More than that share cannot be read, or no row is left.
    """
    if path and not malformed:
        path.unlink(missing_ok=True)  # of an earlier try; the data have been mended since
    elif path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [{"row": row.number, "reason": row.message, **row.text} for row in malformed]
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in content)
        path.write_text("".join(lines), encoding="utf-8")
    unreadable = [row for row in malformed if row.kind == "unreadable"]
    is_none_left = 0 < len(malformed) == read
    if len(unreadable) <= args.max_quarantined_share * read and not is_none_left:
        return
    if is_none_left:  # whatever the share
        bad = malformed
        verbs = dict.fromkeys("read" if row.kind == "unreadable" else "judged" for row in bad)
        fault = f"no row of {args.dataset_name!r} can be {' and '.join(verbs)}"
        remedy = "Mend the data"
    else:
        bad = unreadable
        fault = (
            f"{len(bad)} of {read} rows of {args.dataset_name!r} are malformed, more than "
            f"max_quarantined_share={args.max_quarantined_share}"
        )
        remedy = "Mend the data or raise the share"
    reasons = dict(Counter(row.reason for row in bad).most_common(5))
    where = f"see {path}" if path else "a run without --dry_run writes all of them to a file"
    raise RookWorldError(
        f"{fault}: {reasons}; the first is row {bad[0].number}: {bad[0].message}; {where}. {remedy}"
    )
