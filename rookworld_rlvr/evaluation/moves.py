"""The move that a model plays in a position: asked for in one call, read, and held against the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import chess

from .. import notation
from ..records import NotationError, PolicyPrompt
from .answerers import Answerer


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model plays.

    Args:
        readable: Whether the answer could be read.
        move: `B`, where it is legal.
    """

    readable: bool
    move: chess.Move | None


def ask_moves(model: Answerer, boards: Sequence[chess.Board]) -> list[Reply]:
    """What a model plays in each position, all of them asked at once.

    Args:
        model: Answers policy prompts.
        boards: `N` positions, none of them over.
    """
    if not boards:
        return []
    prompts = [notation.write_policy_prompt(PolicyPrompt(board.fen())) for board in boards]
    return [
        read_reply(board, completion)
        for board, completion in zip(boards, model.answers(prompts), strict=True)
    ]


def read_reply(board: chess.Board, completion: str) -> Reply:
    """A policy answer's `B`, as `rules.transition` would take it."""
    try:
        answer = notation.parse_policy_answer(completion)
    except NotationError:
        return Reply(False, None)
    try:
        return Reply(True, board.parse_uci(answer.best_move))
    except ValueError:
        return Reply(True, None)
