"""The records that the other modules use.

The comment beside a field gives its unit: ``cp`` is in centipawns, ``evaluations`` are in pawns. Both
are from the point of view of the side to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, get_args

FillInField = Literal[
    "action",
    "next_state",
    "rank",
    "side_to_move",
    "castling",
    "en_passant",
    "clocks",
    "history",
    "reward",
    "flags",
]


FILL_IN_FIELDS: tuple[FillInField, ...] = get_args(FillInField)


MATE_CP = 100_000
"""Centipawns for a checkmate on the board; a mate in `n` moves is worth ``±(MATE_CP - n)``."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """``M: moves E: evaluations B: best move``, as written and not yet judged.

    `evaluations[i]` belongs to `moves[i]` if both exist.
    """

    moves: tuple[str, ...]  # UCI, at most five, in no particular order
    evaluations: tuple[float, ...]  # pawns, from the side to move
    best_move: str  # UCI

    @property
    def candidates(self) -> list[tuple[str, float | None]]:
        """Each of `moves` with its evaluation; None where there are fewer evaluations."""
        return [*zip_longest(self.moves, self.evaluations[: len(self.moves)])]


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """``A: state+action+history+``: simulate one move."""

    fen: str
    action: str = ""  # UCI, or any other text as it was written
    history: tuple[str, ...] = ()  # up to ten actions, oldest first, the current action last


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """``next_state+reward+terminated+truncated``."""

    fen: str
    reward: float  # 0.001 the game goes on, 1.0 checkmate, 0.5 draw, -1.0 illegal or unreadable
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where values of moves come from."""

    engine: str  # name and options
    limit: str  # depth or nodes of the search


Score = Mapping[str, float]
"""Scores of one answer by component; `format` is 0 if the answer cannot be read."""


Values = Mapping[str, int]
"""Every legal move's value, in centipawns from the side to move."""


def values_by_move(column: Any) -> Values | None:
    """A row's `action_values` by move; None if the row has none."""
    return {value["move"]: value["cp"] for value in column} if column else None


def action_values_column(values: Values) -> list[dict[str, Any]]:
    """Values by move, best first, as the column `action_values`."""
    return [{"move": move, "cp": cp} for move, cp in values.items()]
