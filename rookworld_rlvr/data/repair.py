"""Repair rows: correct answers that differ from the truth, and name each correction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY, parse_policy_answer, write_policy_answer
from ..tasks.registry import TASKS
from ..tasks.types import values_by_move

_BEST_MOVE = "best_move"


REPAIRS = (POLICY.name, _BEST_MOVE, ENVIRONMENT.name, "duplicates")
"""Names of `repairs`.

- `policy`: policy answers rewritten by the values of the moves.
- `best_move`: B set to the best of the moves of M; the rest of the answer stays.
- `environment`: answers recomputed by python-chess.
- `duplicates`: rows dropped if their prompt has appeared before.
"""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A row's answer after repair."""

    completion: str
    done: str = ""  # the repair that changed it
    refused: str = ""  # a repair that it needs, but that its values do not allow


def repair_row(row: Mapping[str, Any], repairs: Collection[str]) -> Repaired:
    """Repair the answer of one row; a row without an answer gets the right one, if that is known.

    Args:
        row: With the columns that `sources` documents.
        repairs: Names of `REPAIRS`; ``duplicates`` has no effect on a single row.
    """
    task, completion = TASKS[row["task"]], row["completion"]
    values = values_by_move(row["action_values"])
    if not completion or task.name in repairs:
        name = task.name if completion else "answer"
        truth = task.truth(row["prompt"], values)
        if truth is None:
            return Repaired(completion, refused=name)
        return Repaired(truth, done=name if truth != completion else "")
    if task is not POLICY or _BEST_MOVE not in repairs:
        return Repaired(completion)
    answer = parse_policy_answer(completion)
    worth = {move: values[move] for move in answer.moves if move in values} if values else {}
    if not worth:
        return Repaired(completion, refused=_BEST_MOVE)
    best = max(worth, key=worth.__getitem__)
    if worth.get(answer.best_move) == worth[best]:
        return Repaired(completion)
    return Repaired(write_policy_answer(replace(answer, best_move=best)), done=_BEST_MOVE)
