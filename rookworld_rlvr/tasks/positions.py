"""What data, suites and analysis ask of a position beside `rules`: its phase, mates, mirror image."""

from __future__ import annotations

from typing import Literal, get_args

import chess

from . import rules

SIDES = ("white", "black")


GamePhase = Literal["opening", "middlegame", "endgame"]


PHASES: tuple[GamePhase, ...] = get_args(GamePhase)


_MIRRORED_RANKS = str.maketrans("12345678", "87654321")


def side_to_move(fen: str) -> str:
    """The side to move in a FEN, one of `SIDES`."""
    return "white" if fen.split(" ")[1] == "w" else "black"


def phase(fen: str) -> GamePhase:
    """The phase of the game, by the pieces on the board.

    An endgame has at most six queens, rooks, bishops and knights. A middlegame has at most ten, or one
    side has fewer than four pieces or pawns left on its first rank.

    Source: `Divider` of lila, the code of lichess.org, without its measure of how mixed the sides are.

    Raises:
        IllegalPositionError: See `rules.board_of`.

    >>> phase(chess.STARTING_FEN)
    'opening'
    """
    board = rules.board_of(fen)
    pieces = (board.occupied & ~(board.pawns | board.kings)).bit_count()
    if pieces <= 6:
        return "endgame"
    black, white = board.occupied_co
    home = white & chess.BB_RANK_1, black & chess.BB_RANK_8
    sparse = any(side.bit_count() < 4 for side in home)
    return "middlegame" if pieces <= 10 or sparse else "opening"


def mating_moves(fen: str) -> tuple[str, ...]:
    """The legal moves that give checkmate, in UCI notation and python-chess's order.

    Raises:
        IllegalPositionError: See `rules.board_of`.

    >>> mating_moves("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    ('a1a8',)
    """
    board = rules.board_of(fen)
    return tuple(move.uci() for move in board.legal_moves if gives_mate(board, move))


def gives_mate(board: chess.Board, move: chess.Move) -> bool:
    """Whether a legal move gives checkmate."""
    if not board.gives_check(move):
        return False
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def double_step_square(fen: str, action: str) -> str | None:
    """The square that a pawn's double step passes over; None for other moves.

    >>> double_step_square("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "e2e4")
    'e3'
    """
    board = rules.board_of(fen)
    if not (move := rules.legal_move(board, action)):
        return None
    board.push(move)
    return None if board.ep_square is None else chess.square_name(board.ep_square)


def mirrored(fen: str) -> str:
    """The same position with the colours swapped and the board turned; it is worth the same.

    Raises:
        IllegalPositionError: See `rules.board_of`.

    >>> mirrored("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b Qkq - 0 1")
    'rnbqkbnr/pppp1ppp/8/4p3/8/8/PPPPPPPP/RNBQKBNR w KQq - 0 1'
    """
    return rules.board_of(fen).mirror().fen()


def mirrored_move(move: str) -> str:
    """A move of that position, in UCI notation.

    >>> mirrored_move("e7e8q")
    'e2e1q'
    """
    return move.translate(_MIRRORED_RANKS)
