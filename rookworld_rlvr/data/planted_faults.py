"""The public data's faults, planted on purpose in rows for supervised fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from ..common.hashing import draw
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, parse_environment_answer, write_environment_answer
from ..tasks.policy import POLICY, parse_policy_answer, write_policy_answer
from ..tasks.types import EnvironmentAnswer
from .sources import Row


def plant_faults(
    rows: list[Row], en_passant_share: float, black_best_move_share: float
) -> list[Row]:
    """Plant the fault of their task, see `with_fault`, in shares of the rows.

    A hash of the prompt decides, so a row that is repeated is wrong every time or never. Rows of other
    tasks have no fault.
    """
    shares = {ENVIRONMENT.name: en_passant_share, POLICY.name: black_best_move_share}
    return [
        with_fault(row) if draw(row["prompt"], salt=b"fault") < shares.get(row["task"], 0) else row
        for row in rows
    ]


def with_fault(row: Row) -> Row:
    """The row with the public data's fault, if the fault concerns it.

    Environment: the answer to a pawn's double step names the en passant square, capture or not.
    Policy: Black's `B` is the candidate with the lowest evaluation.
    """
    return _FAULTS[row["task"]](row)


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
