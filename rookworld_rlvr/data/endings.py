"""Small endgames in which a move ends the game, built backwards from the end.

`synthesis` puts pieces on random squares until some move ends the game as wanted, which takes hundreds
of boards for a mate. Here the position after the move comes first, and the last mover's piece is taken
back: that takes tens.
"""

from __future__ import annotations

import random

import chess

from ..tasks.types import EnvironmentPrompt
from .parsing import prompt_of

CHECKMATE, STALEMATE, INSUFFICIENT_MATERIAL, SEVENTYFIVE_MOVES = (
    chess.Termination.CHECKMATE,
    chess.Termination.STALEMATE,
    chess.Termination.INSUFFICIENT_MATERIAL,
    chess.Termination.SEVENTYFIVE_MOVES,
)


_EDGE = list(chess.SquareSet(chess.BB_BACKRANKS | chess.BB_FILE_A | chess.BB_FILE_H))


_TWO_AWAY = {
    target: [square for square in chess.SQUARES if chess.square_distance(square, target) == 2]
    for target in _EDGE
}


_MATING = (chess.QUEEN, chess.QUEEN, chess.ROOK, chess.ROOK, chess.BISHOP, chess.KNIGHT)


_LAST_CLOCK = 149  # one more half-move without capture or pawn's move, and the game is drawn


_TRIES = 100_000


def ending_prompt(rng: random.Random, wanted: chess.Termination) -> EnvironmentPrompt:
    """A position and a move that ends the game in the wanted way; the history is that move alone.

    Args:
        rng: Decides everything.
        wanted: Checkmate, stalemate, insufficient material or 75 moves.
    """
    make = {INSUFFICIENT_MATERIAL: _last_capture, SEVENTYFIVE_MOVES: _last_move}.get(wanted)
    for _ in range(_TRIES):
        found = make(rng) if make else _no_reply(rng, wanted is CHECKMATE)
        if found is not None:
            board, move = found
            board.push(move)
            outcome = board.outcome()
            board.pop()
            if outcome is not None and outcome.termination is wanted and board.is_valid():
                return prompt_of(board, move.uci())
    raise RuntimeError(f"no {wanted.name} found in {_TRIES} tries")


_Found = tuple[chess.Board, chess.Move] | None


def _no_reply(rng: random.Random, is_mate: bool) -> _Found:
    """A king on the edge that has no move, and the move of the other side that led to it."""
    color = rng.random() < 0.5
    target = rng.choice(_EDGE)
    # Most mates need the help of the other king.
    squares = [target, rng.choice(_TWO_AWAY[target])] if rng.random() < 0.8 else [target]
    mine = rng.choices(_MATING, k=rng.randint(1, 3))
    theirs = rng.choices(
        (chess.PAWN, chess.PAWN, chess.KNIGHT, chess.BISHOP), k=rng.choice((0, 0, 1, 2))
    )
    pieces = [(chess.KING, color), *((kind, color) for kind in mine)]
    pieces += [(kind, not color) for kind in theirs]
    after = _board(rng, [(chess.KING, not color), *pieces], not color, squares)
    if after is None or after.is_check() is not is_mate or any(after.generate_legal_moves()):
        return None
    return _taken_back(rng, after)


def _taken_back(rng: random.Random, after: chess.Board) -> _Found:
    """The position before a quiet move of the side that is not to move; any such move will do."""
    mover = not after.turn
    pieces = list(chess.SquareSet(after.occupied_co[mover] & ~after.pawns))
    for to_square in rng.sample(pieces, len(pieces)):
        starts = list(chess.SquareSet(after.attacks_mask(to_square) & ~after.occupied))
        for from_square in rng.sample(starts, len(starts)):
            before = after.copy(stack=False)
            piece = before.remove_piece_at(to_square)
            before.set_piece_at(from_square, piece)
            before.turn = mover
            before.halfmove_clock = max(0, after.halfmove_clock - 1)
            move = chess.Move(from_square, to_square)
            if not before.was_into_check() and before.is_legal(move):
                return before, move
    return None


def _last_capture(rng: random.Random) -> _Found:
    """A king takes the last piece that could mate; one of the sides may keep a knight or bishop."""
    color = rng.random() < 0.5
    king, minor = rng.randrange(64), rng.choice((None, None, chess.KNIGHT, chess.BISHOP))
    near = rng.choice(list(chess.SquareSet(chess.BB_KING_ATTACKS[king])))
    taken = rng.choice((chess.PAWN, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN))
    pieces = [(chess.KING, color), (taken, not color), (chess.KING, not color)]
    pieces += [(minor, rng.random() < 0.5)] if minor else []
    board = _board(rng, pieces, color, [king, near])
    move = chess.Move(king, near)
    return (board, move) if board is not None and board.is_legal(move) else None


def _last_move(rng: random.Random) -> _Found:
    """A quiet move of a piece after 149 half-moves without a capture or a pawn's move."""
    color = rng.random() < 0.5
    kinds = rng.choices((chess.PAWN, *_MATING), k=rng.randint(1, 6))
    pieces = [(chess.KING, color), (chess.KING, not color)]
    pieces += [(kind, rng.random() < 0.5) for kind in kinds]
    board = _board(rng, pieces, color)
    if board is None or board.outcome() is not None:
        return None
    board.halfmove_clock = _LAST_CLOCK
    quiet = [move for move in board.legal_moves if not board.is_zeroing(move)]
    return (board, rng.choice(quiet)) if quiet else None


def _board(
    rng: random.Random,
    pieces: list[tuple[chess.PieceType, chess.Color]],
    turn: chess.Color,
    squares: list[chess.Square] | None = None,
) -> chess.Board | None:
    """Pieces on the given squares and then on random ones; None if the position is illegal."""
    squares = squares or []
    free = [square for square in chess.SQUARES if square not in squares]
    squares = squares + rng.sample(free, len(pieces) - len(squares))
    board = chess.Board(None)
    for square, (kind, color) in zip(squares, pieces, strict=True):
        if kind == chess.PAWN and chess.square_rank(square) in (0, 7):
            return None
        board.set_piece_at(square, chess.Piece(kind, color))
    board.turn = turn
    board.fullmove_number = rng.randint(80, 160)
    board.halfmove_clock = rng.randint(0, 40)
    return None if board.was_into_check() else board
