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
from typing import Literal, get_args

import chess

from ..common.errors import IllegalPositionError, NotationError
from .types import EnvironmentAnswer

SIDES = ("white", "black")


Phase = Literal["opening", "middlegame", "endgame"]


PHASES: tuple[Phase, ...] = get_args(Phase)


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


def side_to_move(fen: str) -> str:
    """The side to move in a FEN, one of `SIDES`."""
    return "white" if fen.split(" ")[1] == "w" else "black"


def phase(fen: str) -> Phase:
    """The phase of the game, by the pieces on the board.

    An endgame has at most six queens, rooks, bishops and knights. A middlegame has at most ten, or one
    side has fewer than four pieces or pawns left on its first rank.

    Source: `Divider` of lila, the code of lichess.org, without its measure of how mixed the sides are.

    Raises:
        IllegalPositionError: See `board_of`.

    >>> phase(chess.STARTING_FEN)
    'opening'
    """
    board = board_of(fen)
    pieces = (board.occupied & ~(board.pawns | board.kings)).bit_count()
    if pieces <= 6:
        return "endgame"
    black, white = board.occupied_co
    home = white & chess.BB_RANK_1, black & chess.BB_RANK_8
    sparse = any(side.bit_count() < 4 for side in home)
    return "middlegame" if pieces <= 10 or sparse else "opening"


@lru_cache(maxsize=4_096)
def legal_moves(fen: str) -> tuple[str, ...]:
    """All legal moves in UCI notation, in python-chess's order.

    The result is cached: reading a row asks twice, for the prompt and for its values.

    Raises:
        IllegalPositionError: See `board_of`.
    """
    return tuple(move.uci() for move in board_of(fen).legal_moves)


def mating_moves(fen: str) -> tuple[str, ...]:
    """The legal moves that give checkmate, in UCI notation and python-chess's order.

    Raises:
        IllegalPositionError: See `board_of`.

    >>> mating_moves("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    ('a1a8',)
    """
    board = board_of(fen)
    return tuple(move.uci() for move in board.legal_moves if gives_mate(board, move))


def mirrored(fen: str) -> str:
    """The same position with the colours swapped and the board turned; it is worth the same.

    Raises:
        IllegalPositionError: See `board_of`.

    >>> mirrored("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b Qkq - 0 1")
    'rnbqkbnr/pppp1ppp/8/4p3/8/8/PPPPPPPP/RNBQKBNR w KQq - 0 1'
    """
    return board_of(fen).mirror().fen()


def mirrored_move(move: str) -> str:
    """A move of that position, in UCI notation.

    >>> mirrored_move("e7e8q")
    'e2e1q'
    """
    return move.translate(_MIRRORED_RANKS)


_MIRRORED_RANKS = str.maketrans("12345678", "87654321")


def gives_mate(board: chess.Board, move: chess.Move) -> bool:
    """Whether a legal move gives checkmate."""
    if not board.gives_check(move):
        return False
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


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
    try:
        move = read_legal(board, action)
    except ValueError:  # unreadable and illegal alike
        move = chess.Move.null()
    if not move:  # the null move 0000 is not legal in chess
        return EnvironmentAnswer(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)
    board.push(move)
    return EnvironmentAnswer(board.fen(), *_ending(board), truncated=False)


def played_on(fen: str, action: str) -> EnvironmentAnswer:
    """What the public data's generator answers, which does not ask whether a move is legal.

    It plays any move of any piece. If the first square is empty, or the text is not a move, the action
    is illegal for it too; but in the first case it counts the move in the clocks.

    Raises:
        IllegalPositionError: See `board_of`.

    >>> played_on("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "e1e5").fen
    '4k3/8/8/4K3/8/8/8/8 b - - 1 1'
    """
    board = board_of(fen)
    try:
        move = chess.Move.from_uci(action)
    except ValueError:
        return EnvironmentAnswer(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)
    if not move or board.piece_at(move.from_square) is not None:  # 0000 passes
        board.push(move)
        return EnvironmentAnswer(board.fen(), *_ending(board), truncated=False)
    board.push(chess.Move.null())
    board.turn = not board.turn
    return EnvironmentAnswer(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)


def double_step_square(fen: str, action: str) -> str | None:
    """The square that a pawn's double step passes over; None for other moves.

    >>> double_step_square("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "e2e4")
    'e3'
    """
    board = board_of(fen)
    try:
        board.push(read_legal(board, action))
    except ValueError:
        return None
    return None if board.ep_square is None else chess.square_name(board.ep_square)


def _ending(board: chess.Board) -> tuple[float, bool]:
    """Reward and `terminated` of the side that has just moved."""
    outcome = board.outcome(claim_draw=False)
    if outcome is None:
        return REWARD_CONTINUES, False
    if outcome.termination is chess.Termination.CHECKMATE:
        return REWARD_CHECKMATE, True
    return REWARD_DRAW, True
