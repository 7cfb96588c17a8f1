"""What a model is asked, in the forms in which people give it, and the move that it plays; no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import chess

from ..common.errors import NotationError, RookWorldError
from ..tasks import rules
from ..tasks.environment import write_environment_prompt
from ..tasks.policy import write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_fen, parse_move
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer

Position = str | chess.Board
"""A FEN, or a board of python-chess."""


Move = str | chess.Move
"""A move in UCI or in algebraic notation (SAN), or one of python-chess."""


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


# --------------------------------------------------------------------------------------------------
# Positions and moves
# --------------------------------------------------------------------------------------------------
def read_position(position: Position) -> str:
    """A position's FEN, as python-chess writes it.

    Raises:
        NotationError: The FEN is malformed.
        IllegalPositionError: The position is not legal.
    """
    fen = position.fen() if isinstance(position, chess.Board) else position
    return rules.canonical_fen(parse_fen(fen))


def read_move(board: chess.Board, move: Move) -> chess.Move:
    """A move in a position; it may be illegal there, unless it is in SAN.

    Raises:
        RookWorldError: It is not a move, or in SAN illegal or ambiguous.
    """
    if isinstance(move, chess.Move):
        return move
    try:
        return chess.Move.from_uci(parse_move(move))
    except NotationError:
        pass
    try:
        if found := board.parse_san(move):  # python-chess also reads a null move
            return found
    except ValueError as error:
        raise RookWorldError(f"{error}; {_LEGAL_MOVE}") from None
    raise RookWorldError(f"{move!r} is not a move; {_LEGAL_MOVE}")


def read_legal_move(board: chess.Board, move: Move) -> chess.Move:
    """A legal move in a position.

    Raises:
        RookWorldError: It is unreadable, illegal or ambiguous.
    """
    try:
        return board.parse_uci(read_move(board, move).uci())
    except chess.IllegalMoveError as error:
        raise RookWorldError(f"{error}; {_LEGAL_MOVE}") from None


_LEGAL_MOVE = "give a legal move, as Nf3 or g1f3"


# --------------------------------------------------------------------------------------------------
# Prompts
# --------------------------------------------------------------------------------------------------
def policy_prompt(asked: Position) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The game is over there.
        RookWorldError: See `read_position`.
    """
    position = read_position(asked)
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(rules.board_of(position))}", position)
    return write_policy_prompt(position)


def environment_prompt(asked: Position, move: Move, history: Sequence[Move] = ()) -> str:
    """The prompt that asks for the state after a move.

    Args:
        asked: The position.
        move: A move there.
        history: The moves before it, in UCI or of python-chess.

    Raises:
        RookWorldError: See `read_position` and `read_move`, or the history is not in UCI.
    """
    position = read_position(asked)
    action = read_move(rules.board_of(position), move).uci()
    before = [one.uci() if isinstance(one, chess.Move) else parse_move(one) for one in history]
    told = (*before, action)[-MAX_HISTORY:]
    return write_environment_prompt(EnvironmentPrompt(position, action, told))


def over(board: chess.Board) -> str:
    """How a game has ended, in a word or two; empty if it goes on."""
    outcome = board.outcome()
    return "" if outcome is None else outcome.termination.name.lower().replace("_", " ")


# --------------------------------------------------------------------------------------------------
# Replies
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Choice:
    """The move that is played for an answer.

    Args:
        move: A legal move.
        pawns: What the model says that it is worth, from the side to move; None if it does not say.
        fault: Why it is not the model's best move, a sentence; empty if it is.
    """

    move: chess.Move
    pawns: float | None = None
    fault: str = ""


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
        return Choice(best, candidates.get(best))
    fault = f"the model's best move {reply.record.best_move} is illegal"
    if not candidates:
        return no_answer(board, f"{fault}, and none of its candidates can be played")
    evaluated = [move for move, pawns in candidates.items() if pawns is not None]
    move = max(evaluated, key=lambda move: candidates[move] or 0.0, default=next(iter(candidates)))
    why = f"{fault}; its best legal candidate {move.uci()} is played"
    return Choice(move, candidates[move], why)


def no_answer(board: chess.Board, why: str) -> Choice:
    """The first legal move in python-chess's order, for a model that gives none."""
    move = next(iter(board.legal_moves))
    return Choice(move, fault=f"{why}; {move.uci()}, the first legal move, is played")


def _candidates(board: chess.Board, answer: PolicyAnswer) -> dict[chess.Move, float | None]:
    """The legal moves of `M`, each with its first `E`."""
    candidates: dict[chess.Move, float | None] = {}
    for text, pawns in itertools.zip_longest(answer.moves, answer.evaluations):
        move = _legal(board, text) if text else None
        if move is not None:
            candidates.setdefault(move, pawns)
    return candidates


def _legal(board: chess.Board, text: str) -> chess.Move | None:
    try:
        return board.parse_uci(text)
    except ValueError:  # unreadable and illegal alike
        return None
