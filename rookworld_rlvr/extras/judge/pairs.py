"""Preference pairs for a judge: a right answer and a wrong one.

Truth comes from python-chess and from the rows' values of moves, never from the data's own answers.
The seed decides everything. Kinds are drawn independently, so shares hold for any prefix of a list.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import chess

from ...common.errors import RookWorldError
from ...common.files import read_asset
from ...common.settings import Checked, setting, share_bounds
from ...data.sources import Row
from ...tasks import positions, rules
from ...tasks.environment import ENVIRONMENT, with_fen_field, write_environment_answer
from ...tasks.registry import TASKS, is_right
from ...tasks.types import EnvironmentAnswer, values_by_move

_Answers = tuple[str, str]  # chosen, rejected

PAIR_SHARES: Mapping[str, float] = read_asset(Path(__file__).with_name("shares.yaml"))
"""Default shares of the kinds of pairs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, the first of which is right."""

    kind: str  # of `PAIR_SHARES`; followed by the row's part if it is a task's name
    prompt: str
    chosen: str
    rejected: str


def task_of_kind(kind: str) -> str:
    """The task from whose rows a kind of pairs is made."""
    return kind if kind in TASKS else ENVIRONMENT.name


@dataclass
class JudgeDataArguments(Checked):
    """Which pairs a judge is trained and measured on."""

    train_pairs: int = setting(
        60_000, "Number of pairs to train on, made from training rows.", least=1
    )
    heldout_pairs: int = setting(
        2_000, "Number of pairs for the report, made from held-out positions.", least=1
    )
    pair_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each kind of pair, {piece: 0.5, clocks: 0.5}; kinds that you do not name get 0. "
        "Without it, the shares of extras/judge/shares.yaml.",
        **share_bounds(PAIR_SHARES, "pair"),
    )

    def shares(self) -> Mapping[str, float]:
        """Shares of the kinds; a kind without a share is not made."""
        shares: Any = self.pair_shares
        return PAIR_SHARES if shares is None else shares


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def make_pairs(
    rows: Iterable[Row], count: int, shares: Mapping[str, float], seed: int
) -> list[Pair]:
    """Pairs with shares of kinds; each kind goes through the rows of its task in an order of its own.

    Args:
        rows: Of the columns that `data` documents; rows of other tasks are passed over.
        count: How many pairs to make.
        shares: Of the kinds; a kind without a share is not made.
        seed: Same seed and rows, same pairs; a smaller count gives the beginning of a larger one.

    Raises:
        RookWorldError: A kind has a share, but no row that it can be made from.
    """
    by_task: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_task[row["task"]].append(row)
    kinds = [kind for kind in PAIR_SHARES if shares.get(kind)]
    pairs = {kind: _pairs(kind, by_task[task_of_kind(kind)], seed) for kind in kinds}
    rng = random.Random(f"{seed} kinds of pairs")
    drawn = rng.choices(kinds, [shares[kind] for kind in kinds], k=count)
    return [next(pairs[kind]) for kind in drawn]


def _pairs(kind: str, rows: Sequence[Row], seed: int) -> Iterator[Pair]:
    """Pairs of one kind, from the rows of its task in turn, without end."""
    rng = random.Random(f"{seed} {kind}")
    in_turn = cycle(rng.sample(rows, len(rows)))
    answered: defaultdict[str, list[str]] = defaultdict(list)  # by part, see `Task.part`
    if kind in TASKS:
        for row in rows:
            answered[TASKS[kind].part(row)].append(row["completion"])
    while True:
        for row in islice(in_turn, len(rows)):
            name = kind
            if kind in TASKS:
                part = TASKS[kind].part(row)
                name = f"{kind}_{part}"
                answers = _right_and_wrong(row, answered[part], rng)
            else:
                truth = rules.transition(row["fen"], row["action"])
                wrong = _wrong_answer(kind, row["fen"], row["action"], truth, rng)
                answers = None
                if wrong is not None and wrong != truth:
                    answers = write_environment_answer(truth), write_environment_answer(wrong)
            if answers is not None:
                yield Pair(name, row["prompt"], *answers)
                break
        else:
            raise RookWorldError(
                f"pair_shares: no {task_of_kind(kind)} row ({len(rows)} found) can become a pair of the "
                f"kind {kind!r}; give more rows or synthetic_rows, or leave the kind out"
            )


_TRIES = 20  # most of them are wrong


def _right_and_wrong(row: Row, answered: Sequence[str], rng: random.Random) -> _Answers | None:
    """The wrong answer begins as the right one, and goes on as a guess or as another row's answer.

    Args:
        row: Of any task that knows a right answer.
        answered: The answers of the rows of the same part, see `Task.part`.
        rng: Chooses.
    """
    task, prompt, values = TASKS[row["task"]], row["prompt"], values_by_move(row["action_values"])
    right = task.right_answer(prompt, values, rng)
    if right is None:
        return None
    for _ in range(_TRIES):
        other = task.guess(prompt, rng) if rng.random() < 0.5 else rng.choice(answered)
        cut = rng.randrange(len(right))
        wrong = right[:cut] + other[cut:]
        if is_right(prompt, wrong, values) is False:
            return right, wrong
    return None


# --------------------------------------------------------------------------------------------------
# Environment: an answer with a single fault
# --------------------------------------------------------------------------------------------------
def _wrong_answer(
    kind: str, fen: str, action: str, truth: EnvironmentAnswer, rng: random.Random
) -> EnvironmentAnswer | None:
    """The right answer with a fault of a kind; None if it cannot have this one."""
    fields = truth.fen.split(" ")
    match kind:
        case "piece":
            return with_fen_field(truth, 0, _other_board(truth.fen, action, rng))
        case "side_to_move":
            return with_fen_field(truth, 1, "b" if fields[1] == "w" else "w")
        case "castling":
            turned = rng.choice("KQkq")
            now = (right for right in "KQkq" if (right in fields[2]) != (right == turned))
            return with_fen_field(truth, 2, "".join(now) or "-")
        case "en_passant":
            square = positions.double_step_square(fen, action)
            if square is None or truth.truncated:
                return None
            return with_fen_field(truth, 3, square if fields[3] == "-" else "-")
        case "clocks":
            index = rng.choice((4, 5))
            right, before = int(fields[index]), int(fen.split(" ")[index])
            wrong = {before, before + 1, right + 1, right - 1, 0 if index == 4 else right + 2}
            number = rng.choice(sorted(n for n in wrong if n != right and n >= 0))
            return with_fen_field(truth, index, str(number))
        case "reward":
            others = [reward for reward in rules.REWARDS if reward != truth.reward]
            return replace(truth, reward=rng.choice(others))
        case "flags" if rng.random() < 0.5:
            return replace(truth, terminated=not truth.terminated)
        case "flags":
            return replace(truth, truncated=not truth.truncated)
        case "stale_state":
            return replace(truth, fen=rules.canonical_fen(fen))
        case _:  # other_move
            moves = rules.legal_moves(fen)
            answers = (rules.transition(fen, move) for move in rng.sample(moves, len(moves)))
            return next((answer for answer in answers if answer.fen != truth.fen), None)


def _other_board(fen: str, action: str, rng: random.Random) -> str:
    """The board with a piece moved, removed or added."""
    board = chess.Board(fen)
    occupied = list(chess.SquareSet(board.occupied))
    empty = list(~chess.SquareSet(board.occupied))
    named = {square for square in chess.SQUARES if chess.square_name(square) in action}
    near = named if rng.random() < 0.5 else set()
    start = rng.choice([square for square in occupied if square in near] or occupied)
    target = rng.choice([square for square in empty if square in near] or empty)
    piece = board.piece_at(start)
    change = rng.choice(("moved", "removed", "added"))
    if change == "added":
        kinds = (chess.PAWN, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN)
        # Models tend to leave a piece that has moved on its old square too; other pieces are random.
        piece = piece if near else chess.Piece(rng.choice(kinds), rng.random() < 0.5)
    else:
        board.remove_piece_at(start)
    if change != "removed":
        board.set_piece_at(target, piece)
    return board.board_fen()
