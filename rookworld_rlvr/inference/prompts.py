"""What a model is asked and what it replies; no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import chess

from ..common.errors import NotationError, RookWorldError
from ..tasks import rules
from ..tasks.environment import write_environment_prompt
from ..tasks.policy import write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_move
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer, PolicyPrompt
from .notation import Move, Position, read_move, read_position

Record = TypeVar("Record", PolicyAnswer, EnvironmentAnswer)


@dataclass(frozen=True, slots=True)
class Reply(Generic[Record]):
    """What a model said, as text and as a record.

    Args:
        text: As the model wrote it.
        record: The same, parsed; None if it cannot be read.
        fault: Why it cannot be read; empty if it can.
    """

    text: str
    record: Record | None
    fault: str = ""


def reply_of(text: str, read: Callable[[str], Record]) -> Reply[Record]:
    """What a model said, read as a record."""
    try:
        return Reply(text, read(text))
    except NotationError as error:
        return Reply(text, None, error.reason)


def policy_prompt(asked: Position) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The game is over there.
        RookWorldError: See `notation.read_position`.
    """
    position = read_position(asked)
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(position)}", position)
    return write_policy_prompt(PolicyPrompt(position))


def environment_prompt(asked: Position, move: Move, history: Sequence[Move] = ()) -> str:
    """The prompt that asks for the state after a move.

    Args:
        asked: The position.
        move: A move there.
        history: The moves before it, in UCI or of python-chess.

    Raises:
        RookWorldError: See `read_position` and `read_move` of `notation`, or the history is not in UCI.
    """
    position = read_position(asked)
    action = read_move(rules.board_of(position), move).uci()
    before = [one.uci() if isinstance(one, chess.Move) else one for one in history]
    try:
        told = (*map(parse_move, before), action)[-MAX_HISTORY:]
    except (NotationError, TypeError):
        raise RookWorldError(
            f"history {before!r} is not in UCI notation; write e2e4, or give each as a chess.Move"
        ) from None
    return write_environment_prompt(EnvironmentPrompt(position, action, told))


def over(fen: str) -> str:
    """How a game has ended, in a word or two; empty if it goes on."""
    outcome = rules.board_of(fen).outcome()
    return "" if outcome is None else outcome.termination.name.lower().replace("_", " ")
