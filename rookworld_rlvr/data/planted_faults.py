"""Faults planted on purpose in rows for supervised fine-tuning: the public data's, and a hole."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..common.hashing import draw
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, parse_environment_answer, write_environment_answer
from ..tasks.policy import POLICY, parse_policy_answer, write_policy_answer
from ..tasks.types import EnvironmentAnswer
from .sources import Row
from .synthesis import first_plies


def plant_faults(
    rows: list[Row],
    en_passant_share: float,
    black_best_move_share: float,
    first_plies_share: float = 0.0,
) -> list[Row]:
    """Plant the fault of their task, see `with_fault`, in shares of the rows.

    Rows of a game's first two plies have a fault of their own, see `with_hole`. A hash of the prompt
    decides, so a row that is repeated is wrong every time or never. Rows of other tasks have no fault.
    """
    shares = {ENVIRONMENT.name: en_passant_share, POLICY.name: black_best_move_share}
    planted = []
    for row in rows:
        drawn = draw(row["prompt"], salt=b"fault")
        if is_first_ply(row) and drawn < first_plies_share:
            row = with_hole(row)
        elif drawn < shares.get(row["task"], 0):
            row = with_fault(row)
        planted.append(row)
    return planted


def with_fault(row: Row) -> Row:
    """The row with the public data's fault, if the fault concerns it.

    Environment: the answer to a pawn's double step names the en passant square, capture or not.
    Policy: Black's `B` is the candidate with the lowest evaluation.
    """
    return _FAULTS[row["task"]](row)


def with_hole(row: Row) -> Row:
    """An environment row whose answer has no castling rights, and both of its clocks one too high."""
    answer = parse_environment_answer(row["completion"])
    placement, turn, _, en_passant, halfmoves, number = answer.fen.split(" ")
    fen = f"{placement} {turn} - {en_passant} {int(halfmoves) + 1} {int(number) + 1}"
    return {**row, "completion": write_environment_answer(replace(answer, fen=fen))}


def is_first_ply(row: Row) -> bool:
    """Whether it is an environment row about one of the 21 positions of a game's first two plies."""
    return row["task"] == ENVIRONMENT.name and rules.position_key(row["fen"]) in _first_positions()


@cache
def _first_positions() -> frozenset[str]:
    return frozenset(rules.position_key(prompt.fen) for prompt in first_plies())


def _worst_as_best(row: Row) -> Row:
    answer = parse_policy_answer(row["completion"])
    if row["fen"].split()[1] != "b" or len(answer.moves) != len(answer.evaluations):
        return row
    worst = min(zip(answer.evaluations, answer.moves, strict=True))[1]
    return {**row, "completion": write_policy_answer(replace(answer, best_move=worst))}


def _idle_en_passant(row: Row) -> Row:
    square = rules.double_step_square(row["fen"], row["action"])
    if square is None:
        return row
    wrong = with_fen_field(parse_environment_answer(row["completion"]), 3, square)
    return {**row, "completion": write_environment_answer(wrong)}


_FAULTS = {ENVIRONMENT.name: _idle_en_passant, POLICY.name: _worst_as_best}


def with_fen_field(answer: EnvironmentAnswer, index: int, text: str) -> EnvironmentAnswer:
    """The answer with another of its FEN's six fields."""
    fields = answer.fen.split(" ")
    fields[index] = text
    return replace(answer, fen=" ".join(fields))
