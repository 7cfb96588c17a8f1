"""Suites of policy answers: `policy`, an analysis; `puzzles`, lines of moves; `mate_in_one`, a move."""

from __future__ import annotations

import heapq
import logging
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import chess
import pyarrow
from pyarrow import csv

from ...common.stats import draw
from ...data import synthesis
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...data.parsing import parse_rows, raw_rows
from ...data.sources import PACKAGED_DATA, SourceArguments, dataset_file, values_line
from ...tasks import policy, positions, rules
from ...tasks.policy import POLICY, win_probability
from ...tasks.registry import task_of
from ...tasks.types import Values, values_by_move
from ..suite import Answerer, Judged, PromptSuite, Suite, SuiteUnavailableError
from .games import ask_moves, read_reply

logger = logging.getLogger(__name__)

MOST_CP = 1_000  # limit of a centipawn loss, as on lichess.org: a mate is not worth 1,000 pawns


class PolicySuite(PromptSuite[Values], packaged="policy"):
    """Positions with the values of all legal moves, a third of them from each phase of the game.

    Args:
        suite_rows: The largest number of positions.
        suite_seed: Decides which.
    """

    groups = (*positions.SIDES, *positions.PHASES)

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        known, files = self.source()
        lines = {line for file in files if (line := values_line(file))}
        items = balanced(known, suite_rows, suite_seed)
        super().__init__(items, suite_seed, {"values": sorted(lines)})

    @staticmethod
    def source() -> tuple[Mapping[str, Values], Sequence[Path | None]]:
        """Values of the positions that are drawn from, by FEN, and the files that hold them."""
        return heldout_values(), [dataset_file(name) for name in PACKAGED_DATA]

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [policy.write_policy_prompt(fen) for fen in self.items]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [positions.side_to_move(name), positions.phase(name)]

    @staticmethod
    def judge(item: Values, completion: str) -> dict[str, float]:
        """See `PromptSuite`.

        Args:
            item: Centipawns from the side to move by move, for every legal move.
            completion: What the model wrote.
        """
        score = policy.score_policy(item, completion)
        values = {
            "invalid": 1 - score["format"],
            "best_move": score["best_move_hit"],
            "top_5_overlap": score["candidates"],
            **{name: score[name] for name in ("expected_score", "legal", "top_five")},
            "candidates_mean": 0.0,
            "candidates_best": 0.0,
        }
        if not score["format"]:
            return values
        answer = policy.parse_policy_answer(completion)
        kept = policy.kept_by_candidates(answer, item)
        values["candidates_mean"], values["candidates_best"] = sum(kept) / len(kept), max(kept)
        if (cp := item.get(answer.best_move)) is not None:
            best = max(item.values())
            values["centipawn_loss"] = min(MOST_CP, best - cp)
            values["win_probability_loss"] = win_probability(best) - win_probability(cp)
        if pairs := policy.evaluation_pairs(answer, item):
            values["evaluation_mae"] = sum(abs(said - true) for said, true in pairs) / len(pairs)
        return values


# --------------------------------------------------------------------------------------------------
# Positions
# --------------------------------------------------------------------------------------------------
@cache
def heldout_values() -> Mapping[str, Values]:
    """Values of the held-out positions of the packaged data, by FEN."""
    values: dict[str, Values] = {}
    for name in PACKAGED_DATA:
        # To parse the others takes longer, and a fill-in record a hundred times as long.
        raws = filter(_is_asked, raw_rows(SourceArguments(dataset_name=name)))
        rows: Any = parse_rows(raws)
        for row in rows:
            if by_move := values_by_move(row["action_values"]):
                values[row["fen"]] = by_move
    return values


def _is_asked(raw: Mapping[str, Any]) -> bool:
    """Whether a packaged row is of the policy task and held out."""
    text = raw["text"]
    if task_of(text) != POLICY.name:
        return False
    return is_held_out(POLICY.position(text.partition(" M:")[0]).fen, HELDOUT_SHARE)


def balanced(known: Mapping[str, Values], rows: int, seed: int) -> dict[str, Values]:
    """At most so many positions, spread over the phases as evenly as possible."""
    by_phase: dict[str, list[str]] = {}
    for fen in sorted(known):
        by_phase.setdefault(positions.phase(fen), []).append(fen)
    for index, phase in enumerate(sorted(by_phase)):
        random.Random(f"{seed} {index}").shuffle(by_phase[phase])
    turns = chain.from_iterable(zip_longest(*(by_phase[phase][::-1] for phase in sorted(by_phase))))
    return {fen: known[fen] for fen in islice(filter(None, turns), rows)}


# --------------------------------------------------------------------------------------------------
# Puzzles
# --------------------------------------------------------------------------------------------------
COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating")


# Group of items → its highest rating.
BANDS = {"below_1000": 999, "1000_to_1499": 1499, "1500_to_1999": 1999, "2000_on": math.inf}

_WHAT_TO_GIVE = (
    "give lichess_db_puzzle.csv or .csv.zst, from https://database.lichess.org/#puzzles, as "
    "puzzles_file"
)


class Puzzle(NamedTuple):
    """A position, and the line to be found.

    Args:
        name: Its id.
        fen: The position after the opponent's move that the database begins with.
        line: Moves of solver and opponent in turn; the first and the last are the solver's.
        rating: Glicko-2.
    """

    name: str
    fen: str
    line: tuple[chess.Move, ...]
    rating: int


class PuzzlesSuite(Suite[Puzzle], packaged="puzzles"):
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

    groups = tuple(BANDS)

    def __init__(self, suite_rows: int, suite_seed: int, puzzles_file: str | None) -> None:
        if puzzles_file is None:
            raise SuiteUnavailableError(f"no puzzles are packaged; {_WHAT_TO_GIVE}")
        puzzles = read_puzzles(puzzles_file, suite_rows, suite_seed)
        items = {puzzle.name: puzzle for puzzle in puzzles}
        super().__init__(items, suite_seed, {"file": puzzles_file})

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        puzzles = list(self.items.values())
        for puzzle, values in zip(puzzles, solve(model, puzzles), strict=True):
            band = next(name for name, most in BANDS.items() if puzzle.rating <= most)
            yield puzzle.name, values, [band]


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
                reply.move == rest[0] or positions.gives_mate(board, reply.move)
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


# --------------------------------------------------------------------------------------------------
# The file
# --------------------------------------------------------------------------------------------------
def read_puzzles(file: str, rows: int, seed: int) -> list[Puzzle]:
    """Puzzles drawn from the database; rows that hold none, or have other columns, are left out.

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
    # Not text: one byte that is not UTF-8 would refuse the whole file.
    options = csv.ConvertOptions(
        include_columns=list(COLUMNS), column_types=dict.fromkeys(COLUMNS, pyarrow.binary())
    )
    ragged: Counter[int] = Counter()

    def leave_out(row: csv.InvalidRow) -> str:
        ragged[row.expected_columns] += 1
        return "skip"

    parsing = csv.ParseOptions(invalid_row_handler=leave_out)
    try:
        with csv.open_csv(file, parse_options=parsing, convert_options=options) as batches:
            table = (_decoded(row) for batch in batches for row in batch.to_pylist())
            drawn = heapq.nsmallest(rows, table, key=lambda row: draw(f"{seed} {row['PuzzleId']}"))
    except (OSError, pyarrow.ArrowException) as error:
        raise SuiteUnavailableError(
            f"puzzles_file: {file!r} could not be read ({error}); {_WHAT_TO_GIVE}"
        ) from error
    for columns, count in ragged.items():
        said = "puzzles_file: rows with more or fewer than %d columns are left out: %d"
        logger.warning(said, columns, count)
    found = [puzzle for puzzle in map(_puzzle, drawn) if puzzle is not None]
    if not found:
        raise SuiteUnavailableError(f"puzzles_file: {file!r} holds no puzzle; {_WHAT_TO_GIVE}")
    if left_out := len(drawn) - len(found):
        said = "puzzles_file: %d of %d rows hold no puzzle, and are left out"
        logger.warning(said, left_out, len(drawn))
    return found


def _decoded(row: Mapping[str, bytes]) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in row.items()}


def _puzzle(row: Mapping[str, str]) -> Puzzle | None:
    """A row's puzzle; None if the position or a move is not legal."""
    try:
        board = rules.board_of(row["FEN"])
        first, *rest = row["Moves"].split()
        board.push_uci(first)
        fen = board.fen()
        line = tuple(map(board.push_uci, rest))
        return Puzzle(row["PuzzleId"], fen, line, int(row["Rating"])) if len(line) % 2 else None
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# Mates in one
# --------------------------------------------------------------------------------------------------
class MateInOneSuite(PromptSuite[str], packaged="mate_in_one"):
    """Positions made from a seed: half are from games, half small endgames, all from the held-out tenth.

    Args:
        suite_rows: The number of positions.
        suite_seed: Decides which.
    """

    groups = positions.SIDES

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_mates(suite_rows, suite_seed), suite_seed)

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [policy.write_policy_prompt(fen) for fen in self.items]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [positions.side_to_move(name)]

    @staticmethod
    def judge(item: str, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        reply = read_reply(rules.board_of(item), completion)
        move = reply.move.uci() if reply.move else None
        return {
            "invalid": float(not reply.readable),
            "legal": float(move is not None),
            "mate": float(move in positions.mating_moves(item)),
        }


def _mates(rows: int, seed: int) -> dict[str, str]:
    """Positions, each by its FEN."""
    stream = synthesis.mate_in_one_positions(seed, lambda fen: is_held_out(fen, HELDOUT_SHARE))
    fens: dict[str, str] = {}
    while len(fens) < rows:
        fen = next(stream)
        fens.setdefault(rules.position_key(fen), fen)
    return {fen: fen for fen in fens.values()}
