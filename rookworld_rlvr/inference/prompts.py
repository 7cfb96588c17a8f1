"""What a model is asked and what it replies; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..common.errors import NotationError
from ..tasks import rules
from ..tasks.environment import parse_environment_prompt, write_environment_prompt
from ..tasks.policy import write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_fen
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer, PolicyPrompt

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


def policy_prompt(fen: str) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The FEN is malformed, or the game is over there.
        IllegalPositionError: The position is not legal.
    """
    position = rules.canonical_fen(parse_fen(fen))
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(position)}", position)
    return write_policy_prompt(PolicyPrompt(position))


def environment_prompt(fen: str, move: str, history: Sequence[str] = ()) -> str:
    """The prompt that asks for the state after a move.

    Raises:
        NotationError: The FEN is malformed, or a move has a space or a ``+``, which separate fields.
        IllegalPositionError: The position is not legal.
    """
    position = rules.canonical_fen(parse_fen(fen))
    told = (*history, move)[-MAX_HISTORY:]
    asked = EnvironmentPrompt(position, move, told)
    text = write_environment_prompt(asked)
    if not move or text.count("+") != 3 or parse_environment_prompt(text) != asked:
        raise NotationError("a move must be one word without '+'", " ".join(told))
    return text


def over(fen: str) -> str:
    """How a game has ended, in a word or two; empty if it goes on."""
    outcome = rules.board_of(fen).outcome()
    return "" if outcome is None else outcome.termination.name.lower().replace("_", " ")
