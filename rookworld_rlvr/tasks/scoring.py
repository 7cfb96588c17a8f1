"""What the tasks' scorers share: values of moves, the most that an answer nearly right gets.

Every component lies in [0, 1] and is 0 where the answer cannot be read. The same scorers serve rewards
and evaluation; they are pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, int]
"""Centipawns from the side to move by move, for every legal move."""


BELOW_EXACT = 0.95
"""The most that an answer nearly right gets, where a component tells it from one that is right."""


def values_by_move(column: Any) -> Values | None:
    """A row's `action_values` by move; None where the row has none."""
    return {value["move"]: value["cp"] for value in column} if column else None
