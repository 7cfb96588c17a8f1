"""What the tasks' scorers share: values of moves, and the highest score of an almost right answer.

Every component is in [0, 1], and 0 if the answer cannot be read, unless its docstring says otherwise.
Rewards and evaluation use the same scorers, which are pure functions without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, int]
"""Every legal move's value, in centipawns from the side to move."""


BELOW_EXACT = 0.95
"""The highest score of an answer that is almost right; only a right answer gets 1."""


def values_by_move(column: Any) -> Values | None:
    """A row's `action_values` by move; None if the row has none."""
    return {value["move"]: value["cp"] for value in column} if column else None
