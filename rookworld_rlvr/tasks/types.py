"""The records that every other module passes on, and the errors it raises.

Units and points of view stand beside each field: ``cp`` is centipawns, ``evaluations`` are pawns,
and both are seen from the side to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

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
"""Centipawns of a mate on the board; a mate in `n` moves is worth ``±(MATE_CP - n)``."""


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """``P: FEN``: analyse a position."""

    fen: str


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """``M: moves E: evaluations B: best move``, as written: nothing here has been judged.

    `evaluations[i]` belongs to `moves[i]` where both are there.
    """

    moves: tuple[str, ...]  # UCI, at most five, in no particular order
    evaluations: tuple[float, ...]  # pawns, from the side to move
    best_move: str  # UCI


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """``A: state+action+history+``: simulate one move."""

    fen: str
    action: str = ""  # UCI where it is readable; the text as it stands where it is not
    history: tuple[str, ...] = ()  # up to ten actions, oldest first, the current action last


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """``next_state+reward+terminated+truncated``."""

    fen: str
    reward: float  # 0.001 game goes on, 1.0 checkmate, 0.5 draw, -1.0 illegal or unreadable
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class FillInPrompt:
    """``F: state+action+history+next_state+reward+terminated+truncated+``: one place is masked.

    The first seven are the record's columns as text, the mask in them. Where the action is masked,
    the last move of `history`, which is the action, is masked too.
    """

    state: str  # a FEN
    action: str  # UCI where it is readable
    history: tuple[str, ...]  # up to ten actions, oldest first, the current action last
    next_state: str  # a FEN, or the mask alone
    reward: str
    terminated: str  # "0" or "1"
    truncated: str
    field: FillInField  # what kind of thing is masked
    column: str  # in which of the seven
    part: int | None  # of the column: a move of `history`, one of a FEN's 13 parts; None: all of it


@dataclass(frozen=True, slots=True)
class ActionValue:
    """What one legal move is worth."""

    move: str  # UCI
    cp: int  # centipawns from the side to move; mates are ±(MATE_CP - moves to mate)


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Who says what moves are worth."""

    engine: str  # name and options
    limit: str  # of the search


@dataclass(frozen=True, slots=True)
class PositionValues:
    """What every legal move of a position is worth, and who says so."""

    values: tuple[ActionValue, ...]  # one a legal move, best first
    depth: int  # plies reached by each of the best five moves, or fewer to the end of the game
    source: ValueSource

    def by_move(self) -> dict[str, int]:
        """Centipawns from the side to move by move."""
        return {value.move: value.cp for value in self.values}


Score = Mapping[str, float]
"""Component scores of one answer by name; `format` is 0 where the answer cannot be read."""
