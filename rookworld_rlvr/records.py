"""The records that every other module passes on, and the errors it raises.

Units and points of view stand beside each field: ``cp`` is centipawns, ``evaluations`` are pawns,
and both are seen from the side to move.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Task = Literal["environment", "policy", "fill_in"]
TASKS: tuple[Task, ...] = ("environment", "policy", "fill_in")
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


class RookWorldError(ValueError):
    """Base of this package's errors: bad input, named with its value, the reason and the remedy."""


class NotationError(RookWorldError):
    """A text that the grammar of `notation` does not read.

    Args:
        reason: What is wrong, a short phrase that rows can be counted by.
        text: The offending text; the message quotes its first 120 characters.
    """

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        self.text = text
        shown = text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"
        super().__init__(f"{reason}: {shown!r}")


class IllegalPositionError(RookWorldError):
    """A readable FEN that is no chess position (no king, side not to move in check, ...)."""


class EngineError(RookWorldError):
    """The chess engine is missing, is none, or cannot be kept running."""


class ConfigurationError(RookWorldError):
    """One or several faults of a configuration, reported together.

    Args:
        faults: One sentence each.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = list(faults)
        head = f"{len(faults)} fault{'s' if len(faults) != 1 else ''} in the configuration:"
        super().__init__("\n".join([head, *(f"  - {fault}" for fault in faults)]))


def json_value(key: str, value: Any) -> Any:
    """A key's value; a text, as the command line gives it, is read as JSON.

    Raises:
        ConfigurationError: The text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ConfigurationError([f"{key}: {value!r} is no JSON ({error})"]) from error


def close_matches(name: str, known: Iterable[str]) -> str:
    """A clause that lists the known names, the close ones first; empty without any.

    >>> close_matches("policy_formt", ["policy_format", "environment_exact"])
    '; did you mean policy_format?'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= 20 else ""


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
    action: str  # UCI where it is readable; the text as it stands where it is not
    history: tuple[str, ...]  # up to ten actions, oldest first, the current action last


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


@dataclass(frozen=True, slots=True)
class Score:
    """Component scores of one answer by name; `format` is 0 where the answer cannot be read."""

    components: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.components[name]


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share of `n` trials with its 95% Wilson score interval.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927).
    """

    successes: float
    n: int

    @property
    def value(self) -> float:
        """The share itself, nan without trials."""
        return self.successes / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound, each in [0, 1]; ``(0, 1)`` without trials."""
        if not self.n:
            return 0.0, 1.0
        z = 1.959963984540054
        p = self.value
        centre = p + z * z / (2 * self.n)
        spread = z * math.sqrt(p * (1 - p) / self.n + z * z / (4 * self.n * self.n))
        scale = 1 + z * z / self.n
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
