"""Positions and moves in the forms in which people give them."""

from __future__ import annotations

import chess

from ..common.errors import NotationError, RookWorldError
from ..tasks import rules
from ..tasks.text import parse_fen, parse_move

Position = str | chess.Board
"""A FEN, or a board of python-chess."""


Move = str | chess.Move
"""A move in UCI or in algebraic notation (SAN), or one of python-chess."""


def read_position(position: Position) -> str:
    """A position's FEN, as python-chess writes it.

    Raises:
        NotationError: The FEN is malformed.
        IllegalPositionError: The position is not legal.
        RookWorldError: It is neither a FEN nor a board.
    """
    fen = position.fen() if isinstance(position, chess.Board) else position
    if not isinstance(fen, str):
        raise RookWorldError(f"{fen!r} is not a position; give a FEN or a chess.Board")
    return rules.canonical_fen(parse_fen(fen))


def read_move(board: chess.Board, move: Move) -> chess.Move:
    """A move in a position; it may be illegal there, unless it is in SAN.

    Raises:
        RookWorldError: It is not a move, or in SAN illegal or ambiguous.
    """
    if isinstance(move, chess.Move):
        return move
    reason = "unreadable"
    try:
        return chess.Move.from_uci(parse_move(move))
    except (NotationError, TypeError):
        pass
    try:
        return board.parse_san(move)
    except chess.IllegalMoveError:
        reason = "illegal"
    except chess.AmbiguousMoveError:
        reason = "ambiguous"
    except (ValueError, TypeError, AttributeError):  # no text raises the latter two
        pass
    raise RookWorldError(
        f"{move!r} cannot be played here ({reason}); write a legal move as Nf3, or any move as g1f3"
    )


def read_legal_move(board: chess.Board, move: Move) -> chess.Move:
    """A legal move in a position.

    Raises:
        RookWorldError: It is unreadable, illegal or ambiguous.
    """
    found = read_move(board, move)
    try:
        if legal := board.parse_uci(found.uci()):  # python-chess also reads a null move
            return legal
    except ValueError:
        pass
    raise RookWorldError(f"{move!r} cannot be played here (illegal); give a legal move")
