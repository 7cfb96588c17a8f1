"""Repair rows: correct answers that differ from the truth, and name each correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, parse_environment_answer, write_environment_answer
from ..tasks.policy import POLICY, parse_policy_answer, policy_reference, write_policy_answer
from ..tasks.types import PolicyAnswer, Values
from .loading import action_values_of


@dataclass(frozen=True, slots=True)
class Repaired:
    """A row's answer after repair."""

    completion: str
    done: tuple[str, ...] = ()  # repairs that changed it
    refused: tuple[str, ...] = ()  # repairs that it needs, but that its values do not allow


def repair_row(row: Mapping[str, Any], repairs: Sequence[str]) -> Repaired:
    """Repair the answer of one policy or environment row.

    A policy row without an answer gets the right one, if it has values. Rows of other tasks than these
    two need no repair: a fill-in row whose answer does not fit is malformed (`sources.parse_raw`).

    Args:
        row: With the columns that `sources` documents.
        repairs: Names of `REPAIRS`; ``duplicates`` has no effect on a single row.
    """
    repair = _TASK_REPAIRS.get(row["task"])
    return repair(row, repairs) if repair else Repaired(row["completion"])


def _repair_policy(row: Mapping[str, Any], repairs: Sequence[str]) -> Repaired:
    wanted = [name for name in _POLICY_REPAIRS if name in repairs]
    if row["action_values"] is None:
        return Repaired(
            row["completion"], refused=tuple(wanted if row["completion"] else ["answer"])
        )
    values = action_values_of(row["action_values"])
    right = policy_reference(row["fen"], values)
    if not row["completion"]:
        return Repaired(write_policy_answer(right), ("answer",))
    worth = {value.move: value.cp for value in values}
    answer = parse_policy_answer(row["completion"])
    done: list[str] = []
    refused: list[str] = []
    for name in wanted:
        repaired = _POLICY_REPAIRS[name](answer, worth, right)
        if repaired is None:
            refused.append(name)
        elif repaired != answer:
            answer = repaired
            done.append(name)
    return Repaired(write_policy_answer(answer), tuple(done), tuple(refused))


def _repair_environment(row: Mapping[str, Any], repairs: Sequence[str]) -> Repaired:
    if ENVIRONMENT.name in repairs:
        truth = rules.transition(row["fen"], row["action"])
        if parse_environment_answer(row["completion"]) != truth:
            return Repaired(write_environment_answer(truth), (ENVIRONMENT.name,))
    return Repaired(row["completion"])


def _repair_candidates(answer: PolicyAnswer, worth: Values, right: PolicyAnswer) -> PolicyAnswer:
    # A move worth as much as the last of the best five may be named instead of it.
    least = min(worth[move] for move in right.moves)
    good = {move for move, cp in worth.items() if cp >= least}
    named = set(answer.moves)
    is_right = len(answer.moves) == len(named) == len(right.moves) and named <= good
    return answer if is_right else right


def _repair_evaluations(
    answer: PolicyAnswer, worth: Values, right: PolicyAnswer
) -> PolicyAnswer | None:
    if not set(answer.moves) <= set(worth):
        return None  # an illegal move has no value to write
    return replace(answer, evaluations=tuple(worth[move] / 100 for move in answer.moves))


def _repair_best_move(
    answer: PolicyAnswer, worth: Values, right: PolicyAnswer
) -> PolicyAnswer | None:
    legal = [move for move in answer.moves if move in worth]
    if not legal:
        return None
    best = max(legal, key=worth.__getitem__)
    if answer.best_move in legal and worth[answer.best_move] == worth[best]:
        return answer
    return replace(answer, best_move=best)


_POLICY_REPAIRS = {
    "candidates": _repair_candidates,
    "evaluations": _repair_evaluations,
    "best_move": _repair_best_move,
}


REPAIRS = (*_POLICY_REPAIRS, ENVIRONMENT.name, "duplicates")
"""Names of `repairs`.

- `candidates`: M rewritten to the best five moves if it names others, and E and B with it.
- `evaluations`: E rewritten to what the moves of M are worth, in pawns from the side to move.
- `best_move`: B set to the best of the moves of M.
- `environment`: answers recomputed by python-chess.
- `duplicates`: rows dropped if their prompt has appeared before.
"""


_TASK_REPAIRS = {ENVIRONMENT.name: _repair_environment, POLICY.name: _repair_policy}
