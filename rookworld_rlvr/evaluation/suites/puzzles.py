"""Suite `puzzles`: lines of Lichess's puzzle database."""

from __future__ import annotations

import csv
import heapq
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import chess
import pyarrow

from ...common.errors import IllegalPositionError
from ...common.hashing import draw
from ...tasks import rules
from ..answerers import Answerer
from ..games import ask_moves
from ..suite import Judged, Metric, Suite, SuiteUnavailableError

COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")


BANDS = ((1_000, "below_1000"), (1_500, "1000_to_1499"), (2_000, "1500_to_1999"))


TOP_BAND = "2000_on"


MOST_THEMES = 10


_WHAT_TO_GIVE = (
    "give lichess_db_puzzle.csv or .csv.zst, from https://database.lichess.org/#puzzles, as "
    "puzzles_file"
)


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A position, and the line to be found.

    Args:
        name: Its id.
        fen: The position after the opponent's move that the database begins with.
        line: Moves of solver and opponent in turn; the first and the last are the solver's.
        rating: Glicko-2.
        themes: As Lichess names them.
    """

    name: str
    fen: str
    line: tuple[chess.Move, ...]
    rating: int
    themes: tuple[str, ...]


class PuzzlesSuite(Suite[Puzzle]):
    """Puzzles drawn from a file by their ids and a seed.

    A line is played out as far as the model finds it, with the opponent's moves from the file. As on
    lichess.org, only the file's move is right, but any move that mates is right too and ends the line.

    Args:
        suite_rows: The largest number of puzzles.
        suite_seed: Decides which.
        puzzles_file: Lichess's puzzle database, plain or compressed.

    Raises:
        SuiteUnavailableError: No file was given, or it could not be read.
    """

    name = "puzzles"
    summary = (
        "Solves puzzles of Lichess's database (`puzzles_file`): the first move, and the whole line."
    )
    version = 1
    headline = "first_move"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "invalid": Metric("share", "The first answer cannot be read."),
        "legal": Metric("share", "The first move is legal."),
        "first_move": Metric("share", "The first move is right."),
        "whole_line": Metric("share", "All of the solver's moves are right."),
    }
    grouped = ("first_move", "whole_line")  # by rating and the sample's most common themes
    about = "Positions of puzzles from people's games, at any move."

    def __init__(self, suite_rows: int, suite_seed: int, puzzles_file: str | None) -> None:
        if puzzles_file is None:
            raise SuiteUnavailableError(f"no puzzles are packaged; {_WHAT_TO_GIVE}")
        puzzles, malformed = read_puzzles(puzzles_file, suite_rows, suite_seed)
        notes = {"file": puzzles_file, "malformed": malformed}
        super().__init__({puzzle.name: puzzle for puzzle in puzzles}, suite_seed, notes)
        self.groups = (*(name for _, name in BANDS), TOP_BAND, *common_themes(puzzles))

    def positions(self) -> dict[str, str]:
        """See `Suite`; those of the first moves."""
        return {name: puzzle.fen for name, puzzle in self.items.items()}

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        puzzles = list(self.items.values())
        themes = common_themes(puzzles)
        for puzzle, values in zip(puzzles, solve(model, puzzles), strict=True):
            groups = [band(puzzle.rating), *(theme for theme in themes if theme in puzzle.themes)]
            yield puzzle.name, values, groups


def solve(model: Answerer, puzzles: Sequence[Puzzle]) -> list[dict[str, float]]:
    """The suite's metrics of each puzzle; a round asks for a move of all that are still right."""
    solved: list[dict[str, float]] = [{} for _ in puzzles]
    boards = (rules.board_of(puzzle.fen) for puzzle in puzzles)
    running = list(zip(puzzles, boards, solved, strict=True))
    while running:
        replies = ask_moves(model, [board for _, board, _ in running])
        going_on = []
        for (puzzle, board, values), reply in zip(running, replies, strict=True):
            rest = puzzle.line[len(board.move_stack) :]
            right = reply.move is not None and (
                reply.move == rest[0] or rules.gives_mate(board, reply.move)
            )
            if not board.move_stack:
                values["invalid"] = float(not reply.readable)
                values["legal"] = float(reply.move is not None)
                values["first_move"] = float(right)
            if right and len(rest) > 1 and reply.move == rest[0]:
                board.push(rest[0])
                board.push(rest[1])
                going_on.append((puzzle, board, values))
            else:
                values["whole_line"] = float(right)
        running = going_on
    return solved


def band(rating: int) -> str:
    """The group of a rating.

    >>> band(1499), band(2000)
    ('1000_to_1499', '2000_on')
    """
    return next((name for bound, name in BANDS if rating < bound), TOP_BAND)


def common_themes(puzzles: Iterable[Puzzle]) -> list[str]:
    """The most common themes, the most common first."""
    counts = Counter(theme for puzzle in puzzles for theme in dict.fromkeys(puzzle.themes))
    return sorted(counts, key=lambda theme: (-counts[theme], theme))[:MOST_THEMES]


# --------------------------------------------------------------------------------------------------
# The file
# --------------------------------------------------------------------------------------------------
def read_puzzles(file: str, rows: int, seed: int) -> tuple[list[Puzzle], int]:
    """Puzzles drawn from the database, and how many of the rows that were drawn are malformed.

    A row is drawn by its id: its place in the file does not matter, and a larger sample holds the
    smaller ones.

    Args:
        file: CSV with the columns of `COLUMNS`; its suffix says whether it is compressed.
        rows: How many are drawn.
        seed: Decides which.

    Raises:
        SuiteUnavailableError: It could not be read, lacks a column, or holds no puzzle.

    Source: https://database.lichess.org/#puzzles
    """
    try:
        drawn = heapq.nsmallest(
            rows, _rows(file), key=lambda row: draw(f"{seed} {row['PuzzleId']}")
        )
    except (OSError, ValueError, csv.Error) as error:
        raise SuiteUnavailableError(
            f"puzzles_file: {file!r} could not be read ({error}); {_WHAT_TO_GIVE}"
        ) from error
    found = {puzzle.name: puzzle for puzzle in map(_puzzle, drawn) if puzzle is not None}
    malformed = len(drawn) - len(found)
    if not found:
        raise SuiteUnavailableError(
            f"puzzles_file: {file!r} holds no puzzle ({malformed} malformed rows); {_WHAT_TO_GIVE}"
        )
    return list(found.values()), malformed


def _rows(file: str) -> Iterator[dict[str, Any]]:
    # pyarrow, which `datasets` needs anyhow, also reads compressed files.
    with (
        pyarrow.input_stream(file) as stream,
        io.TextIOWrapper(stream, "utf-8", newline="") as text,
    ):
        reader = csv.DictReader(text)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"no column {', '.join(missing)}")
        yield from reader


def _puzzle(row: Mapping[str, Any]) -> Puzzle | None:
    """A row's puzzle; None if a column is missing, or the position or a move is not legal."""
    if any(row[name] is None for name in COLUMNS):
        return None
    try:
        board = rules.board_of(row["FEN"])
        moves = row["Moves"].split()
        line = [board.push_uci(move) for move in moves[:1]]
        fen = board.fen()
        line += [board.push_uci(move) for move in moves[1:]]
        rating = int(row["Rating"])
    except (IllegalPositionError, ValueError):
        return None
    if len(line) < 2 or len(line) % 2 or not all(line):  # 0000 is read as a null move
        return None
    return Puzzle(row["PuzzleId"], fen, tuple(line[1:]), rating, tuple(row["Themes"].split()))
