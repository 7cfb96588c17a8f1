"""The players of a rating pool: a ladder from the random mover upwards, and models.

Chance is decided by the seed, the player, its colour, the opening and the ply. So a player plays the
same game against the same moves, whatever else the pool holds.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import chess

from ..inference.replies import Choice, choose, reply_of
from ..tasks.policy import parse_policy_answer, write_policy_prompt
from .engines import SkilledEngine
from .suite import Answerer

PIECE_VALUES: Mapping[int, int] = MappingProxyType(
    {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}
)
"""In pawns."""


MATE = 1_000
"""More pawns than are ever on a board."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A position in a game in which a player has to move.

    Args:
        board: The position, with all moves before it.
        stream: The opening and the player's colour, from which its chances follow.
    """

    board: chess.Board
    stream: str


class Player(ABC):
    """One that plays.

    Args:
        name: As results name it.
        seed: Decides what it leaves to chance.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self._seed = seed

    @abstractmethod
    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """A legal move at each of `N` turns, at least one; a `fault` says that it had to be replaced."""

    def chance(self, turn: Turn) -> random.Random:
        """What decides at a turn; the same whenever it is asked."""
        return random.Random(f"{self._seed} {self.name} {turn.stream} {turn.board.ply()}")


# --------------------------------------------------------------------------------------------------
# The ladder
# --------------------------------------------------------------------------------------------------
class RandomPlayer(Player):
    """Plays random legal moves."""

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        return [Choice(self.chance(turn).choice(list(turn.board.legal_moves))) for turn in turns]


class Negamax(Player):
    """Plays a random one of the `best_moves`.

    Args:
        name: See `Player`.
        seed: See `Player`.
        plies: How far it looks.
    """

    def __init__(self, name: str, seed: int, plies: int) -> None:
        super().__init__(name, seed)
        self.plies = plies

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        return [
            Choice(self.chance(turn).choice(best_moves(turn.board, self.plies))) for turn in turns
        ]


class Diluted(Player):
    """Plays the engine's move with a chance, else a random legal move.

    Args:
        name: See `Player`.
        seed: See `Player`.
        engine: Its opponent may use it, too.
        share: The chance.
    """

    def __init__(self, name: str, seed: int, engine: SkilledEngine, share: float) -> None:
        super().__init__(name, seed)
        self._engine, self._share = engine, share

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        moves: list[chess.Move | None] = []
        for turn in turns:
            chance = self.chance(turn)
            is_asked = chance.random() < self._share
            moves.append(None if is_asked else chance.choice(list(turn.board.legal_moves)))
        asked = [turn.board for turn, move in zip(turns, moves, strict=True) if move is None]
        answers = iter(self._engine.moves(asked) if asked else ())
        return [Choice(next(answers) if move is None else move) for move in moves]


class EnginePlayer(Player):
    """Plays an engine's moves.

    Args:
        name: See `Player`.
        engine: Which.
    """

    def __init__(self, name: str, engine: SkilledEngine) -> None:
        super().__init__(name)
        self._engine = engine

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        return list(map(Choice, self._engine.moves([turn.board for turn in turns])))


# --------------------------------------------------------------------------------------------------
# Models
# --------------------------------------------------------------------------------------------------
class ModelPlayer(Player):
    """A model that answers policy prompts; they have the position, and no moves before it.

    The board has them: a move that brings back a position is worth a draw, see
    `inference.replies.choose`. What it cannot play is replaced by the best legal candidate of its `M`.
    If there is none, it is replaced by the legal move of the highest probability: as `B`, after the
    answer's own `M` and `E`, or, if the answer cannot be read, as the first move of `M`.

    Args:
        name: See `Player`.
        model: The model.
    """

    def __init__(self, name: str, model: Answerer) -> None:
        super().__init__(name)
        self.model = model

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        boards = [turn.board for turn in turns]
        prompts = [write_policy_prompt(board.fen()) for board in boards]
        answers = self.model.policy_answers(boards)
        replies = [reply_of(answer, parse_policy_answer) for answer in answers]
        found = [choose(*pair, _nothing) for pair in zip(boards, replies, strict=True)]
        places = [place for place, choice in enumerate(found) if not choice.move]
        texts = [
            prompts[place]
            + (_BEFORE_FIRST if replies[place].record is None else _before_best(answers[place]))
            for place in places
        ]
        for place, move in zip(
            places, self._likeliest(texts, [boards[p] for p in places]), strict=True
        ):
            why = f"{found[place].fault}; {move.uci()}, the likeliest legal move, is played"
            found[place] = Choice(move, fault=why)
        return found

    def _likeliest(self, texts: Sequence[str], boards: Sequence[chess.Board]) -> list[chess.Move]:
        """The legal move of the highest probability after each text."""
        legal = [list(board.legal_moves) for board in boards]
        named = [[f" {move.uci()}" for move in moves] for moves in legal]
        scored = zip(legal, self.model.log_probs(texts, named), strict=True)
        return [moves[max(range(len(moves)), key=logps.__getitem__)] for moves, logps in scored]


_BEFORE_FIRST = " M:"


_BEFORE_BEST = " B:"


def _before_best(answer: str) -> str:
    return answer.partition(_BEFORE_BEST)[0] + _BEFORE_BEST


def _nothing(board: chess.Board, why: str) -> Choice:
    """No move, for now."""
    return Choice(chess.Move.null(), fault=why)


# --------------------------------------------------------------------------------------------------
# Negamax on material
# --------------------------------------------------------------------------------------------------
def best_moves(board: chess.Board, plies: int) -> list[chess.Move]:
    """The legal moves that lead to the most material after some plies, all of them equally good.

    Both sides play for material, a piece counting as in `PIECE_VALUES`; ties are not broken. Of two
    plies or more, a mate counts more than any material, an earlier one more than a later one, and a
    stalemate nothing. Mates by the last ply are not seen, nor draws of other kinds.

    Args:
        board: It has a legal move; left as it is.
        plies: At least 1, which looks at the move's own capture and promotion alone.
    """
    best, moves, balance = -2 * MATE, list[chess.Move](), material(board)
    for won, move in _by_gain(board):
        if plies == 1:
            value = won
        else:
            board.push(move)
            # A move that is worse by one or more need not be known exactly; one as good must.
            value = -negamax(board, plies - 1, -2 * MATE, 1 - best, -balance - won)
            board.pop()
        if value > best:
            best, moves = value, []
        if value == best:
            moves.append(move)
    return moves


def negamax(board: chess.Board, plies: int, alpha: int, beta: int, balance: int) -> int:
    """What a position is worth to the side to move, in pawns, by alpha and beta; see `best_moves`.

    Args:
        board: Left as it is.
        plies: At least 1.
        alpha: A value of at most this is an upper bound.
        beta: A value of at least this is a lower bound.
        balance: `material` here.
    """
    if plies == 1:
        if not any(board.generate_legal_moves()):
            return _without_moves(board, plies)
        return balance if balance >= beta else balance + _best_gain(board)
    best = -2 * MATE
    for won, move in _by_gain(board):
        board.push(move)
        value = -negamax(board, plies - 1, -beta, -max(alpha, best), -balance - won)
        board.pop()
        best = max(best, value)
        if best >= beta:
            return best
    return best if best > -2 * MATE else _without_moves(board, plies)


def _without_moves(board: chess.Board, plies: int) -> int:
    return -(MATE + plies) if board.is_check() else 0


def material(board: chess.Board) -> int:
    """Own pieces less the opponent's, of the side to move, in pawns.

    >>> material(chess.Board("4k3/8/8/8/8/8/8/4K2R b K - 0 1"))
    -5
    """
    mine, theirs = board.occupied_co[board.turn], board.occupied_co[not board.turn]
    return sum(
        value * ((pieces & mine).bit_count() - (pieces & theirs).bit_count())
        for pieces, value in zip(
            (board.pawns, board.knights, board.bishops, board.rooks, board.queens),
            PIECE_VALUES.values(),
            strict=True,
        )
    )


def gain(board: chess.Board, move: chess.Move) -> int:
    """What a legal move gains at once by its capture and its promotion, in pawns.

    >>> gain(chess.Board("3nk3/2P5/8/8/8/8/8/4K3 w - - 0 1"), chess.Move.from_uci("c7d8q"))
    11
    """
    taken = board.piece_type_at(move.to_square)
    if board.is_en_passant(move):
        taken = chess.PAWN
    won = PIECE_VALUES[taken] if taken and not board.is_castling(move) else 0
    return won + (PIECE_VALUES[move.promotion] - 1 if move.promotion else 0)


def _best_gain(board: chess.Board) -> int:
    """The most that a legal move gains."""
    last = chess.BB_RANK_7 if board.turn else chess.BB_RANK_2
    if board.pawns & board.occupied_co[board.turn] & last:
        return max((won for won, _ in _by_gain(board)), default=0)
    return max((gain(board, move) for move in board.generate_legal_captures()), default=0)


def _by_gain(board: chess.Board) -> list[tuple[int, chess.Move]]:
    """The legal moves with what each gains, the best first: the search has to look at fewer of them."""
    moves = [(gain(board, move), move) for move in board.generate_legal_moves()]
    return sorted(moves, key=lambda pair: -pair[0])
