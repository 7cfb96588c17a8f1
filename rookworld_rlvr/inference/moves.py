"""Which move a model plays: its best one, or what replaces it if that is illegal or unreadable."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chess

from ..tasks.types import PolicyAnswer

if TYPE_CHECKING:
    from .prompts import Reply


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal move, and what the model says that it is worth."""

    move: chess.Move
    pawns: float | None  # from the side to move; None if the model gives no evaluation


@dataclass(frozen=True, slots=True)
class Choice:
    """The legal candidates of an answer.

    Args:
        candidates: Each move once, at least one; the first is played, the others follow by evaluation.
        fault: Why the first is not the model's best move, a sentence; empty if it is.
    """

    candidates: tuple[Candidate, ...]
    fault: str = ""

    @property
    def move(self) -> chess.Move:
        """What is played."""
        return self.candidates[0].move


def choose(board: chess.Board, reply: Reply[PolicyAnswer]) -> Choice:
    """The model's best move; else its best legal candidate; else the first legal move.

    Args:
        board: The position; it has a legal move.
        reply: What the model said of it.
    """
    if reply.record is None:
        return no_answer(board, f"the model's answer cannot be read ({reply.fault})")
    candidates = _candidates(board, reply.record)
    best = _legal(board, reply.record.best_move)
    if best is not None:
        first = [one for one in candidates if one.move == best] or [Candidate(best, None)]
        others = (one for one in candidates if one.move != best)
        return Choice((first[0], *others))
    fault = f"the model's best move {reply.record.best_move} is illegal"
    if not candidates:
        return no_answer(board, f"{fault}, and none of its candidates can be played")
    move = candidates[0].move.uci()
    return Choice(candidates, f"{fault}; its best legal candidate {move} is played")


def no_answer(board: chess.Board, why: str) -> Choice:
    """The first legal move in python-chess's order, for a model that gives none."""
    move = next(iter(board.legal_moves))
    return Choice((Candidate(move, None),), f"{why}; {move.uci()}, the first legal move, is played")


def _candidates(board: chess.Board, answer: PolicyAnswer) -> tuple[Candidate, ...]:
    """The legal moves of `M`, each once, by `E`; equal ones in the model's order."""
    found: dict[chess.Move, Candidate] = {}
    for text, pawns in itertools.zip_longest(answer.moves, answer.evaluations):
        move = _legal(board, text) if text else None
        if move is not None:
            found.setdefault(move, Candidate(move, pawns))
    return tuple(
        sorted(found.values(), key=lambda one: math.inf if one.pawns is None else -one.pawns)
    )


def _legal(board: chess.Board, text: str) -> chess.Move | None:
    try:
        return board.parse_uci(text)
    except ValueError:  # unreadable and illegal alike
        return None
