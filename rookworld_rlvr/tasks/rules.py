"""The rules, by python-chess: legal moves, the next state, its reward and flags, how a FEN is written.

Rewards and flags follow the public data's generator:

======================================================  ==========  ==========  =========
the action                                              reward      terminated  truncated
======================================================  ==========  ==========  =========
is legal and the game goes on                           ``0.001``   0           0
gives checkmate                                         ``1.0``     1           0
ends in stalemate, insufficient material or 75 moves    ``0.5``     1           0
is illegal or unreadable (state unchanged)              ``-1.0``    0           1
======================================================  ==========  ==========  =========

A FEN names an en passant square only if a capture there is legal (`chess.Board.fen`), so ``e2e4`` from
the start gives ``-``. A FEN does not show repetitions, so a fivefold repetition is never detected.
"""

from __future__ import annotations

from functools import lru_cache

import chess

from ..common.errors import IllegalPositionError, NotationError
from .types import EnvironmentAnswer

REWARD_CONTINUES, REWARD_CHECKMATE = 0.001, 1.0
REWARD_DRAW, REWARD_ILLEGAL = 0.5, -1.0
REWARDS = (REWARD_CONTINUES, REWARD_CHECKMATE, REWARD_DRAW, REWARD_ILLEGAL)


def board_of(fen: str) -> chess.Board:
    """The position of a FEN.

    Raises:
        IllegalPositionError: python-chess cannot read the FEN, or the position is not legal.
    """
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise IllegalPositionError(f"not a FEN: {fen!r} ({error})") from error
    # A wrong en passant square or castling right is dropped, not refused.
    status = board.status()
    if status & chess.STATUS_INVALID_EP_SQUARE:
        board.ep_square = None
    status &= ~(chess.STATUS_INVALID_EP_SQUARE | chess.STATUS_BAD_CASTLING_RIGHTS)
    if status:
        kinds = (kind for flag, kind in _ILLEGAL.items() if status & flag)
        names = (flag.name or "" for flag in chess.Status if status & flag)
        why = ", ".join(names).lower().replace("_", " ")
        raise IllegalPositionError(
            f"not a legal chess position: {fen!r} ({why})", next(kinds, "an impossible position")
        )
    return board


_ILLEGAL = {
    chess.STATUS_NO_WHITE_KING: "a king is missing",
    chess.STATUS_NO_BLACK_KING: "a king is missing",
    chess.STATUS_OPPOSITE_CHECK: "the side that is not to move is in check",
    chess.STATUS_PAWNS_ON_BACKRANK: "a pawn is on the first or last rank",
}


def canonical_fen(fen: str) -> str:
    """The FEN as python-chess writes it.

    >>> canonical_fen("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1")
    'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1'
    """
    return board_of(fen).fen()


def check_fields(board: chess.Board, text: str) -> None:
    """Refuse what python-chess would leave out when it writes the position: it is another one then.

    An en passant square is fine wherever a pawn has just gone two squares, even if none can capture.

    Args:
        board: The position as it was read.
        text: What it was read from, for the message.

    Raises:
        NotationError: The castling rights need other kings and rooks, as those of Chess960 do, or the en
            passant square is impossible.

    >>> check_fields(chess.Board(), chess.STARTING_FEN)
    """
    status = board.status()
    for flag, fault in _LEFT_OUT.items():
        if status & flag:
            raise NotationError(fault, text)


_LEFT_OUT = {
    chess.STATUS_BAD_CASTLING_RIGHTS: "castling rights without king and rook at home (there is no "
    "Chess960 here)",
    chess.STATUS_INVALID_EP_SQUARE: "an en passant square that no pawn has just passed",
}


def position_key(fen: str) -> str:
    """Board, side to move, castling and en passant: if these are equal, two FENs are the same position.

    As for repetitions under the laws of chess, the clocks do not count, nor does an en passant square
    without a legal capture.

    Raises:
        IllegalPositionError: See `board_of`; only if the FEN names an en passant square.
    """
    fields = fen.split(" ")
    if fields[3] != "-":
        fields = canonical_fen(fen).split(" ")
    return " ".join(fields[:4])


@lru_cache(maxsize=4_096)
def legal_moves(fen: str) -> tuple[str, ...]:
    """All legal moves in UCI notation, in python-chess's order.

    The result is cached: reading a row asks twice, for the prompt and for its values.

    Raises:
        IllegalPositionError: See `board_of`.
    """
    return tuple(move.uci() for move in board_of(fen).legal_moves)


def read_legal(board: chess.Board, text: str) -> chess.Move:
    """A legal move in UCI notation. Castling may be written as the king taking its rook.

    Raises:
        ValueError: It is unreadable or illegal. python-chess's `parse_uci` alone would drop the
            promotion of ``e1g1q`` and castle.

    >>> read_legal(chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1"), "e1h1").uci()
    'e1g1'
    """
    move = board.parse_uci(text)
    if len(text) == 5 and move.promotion is None:
        raise chess.IllegalMoveError(f"illegal uci: {text!r} in {board.fen()}")
    return move


def legal_move(board: chess.Board, text: str) -> chess.Move | None:
    """The same; None if it is unreadable or illegal."""
    try:
        return read_legal(board, text)
    except ValueError:
        return None


@lru_cache(maxsize=65_536)
def transition(fen: str, action: str) -> EnvironmentAnswer:
    """What the environment answers to `action` in the position `fen`.

    The result is cached: the completions of a group ask the same question. Castling may be written as
    the king's two steps or as the king taking its rook; python-chess reads both.

    Raises:
        IllegalPositionError: See `board_of`. An illegal or unreadable action does not raise: it has an
            answer of its own.
    """
    board = board_of(fen)
    move = legal_move(board, action)
    if not move:  # the null move 0000 is not legal in chess
        return EnvironmentAnswer(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)
    board.push(move)
    return EnvironmentAnswer(board.fen(), *ending(board), truncated=False)


def ending(board: chess.Board) -> tuple[float, bool]:
    """Reward and `terminated` of the side that has just moved."""
    outcome = board.outcome(claim_draw=False)
    if outcome is None:
        return REWARD_CONTINUES, False
    if outcome.termination is chess.Termination.CHECKMATE:
        return REWARD_CHECKMATE, True
    return REWARD_DRAW, True
