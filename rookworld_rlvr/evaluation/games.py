"""Games played side by side: where they start, how they end; each ply asks for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import chess

from ..common.errors import NotationError
from ..common.progress import Progress
from ..data import synthesis
from ..data.loading import HELDOUT_SHARE, is_held_out
from ..tasks import rules
from ..tasks.policy import parse_policy_answer, write_policy_prompt
from .answerers import Answerer
from .suite import Suite

OPENING_PLIES = 4


Ending = Literal["rules", "illegal", "unreadable", "capped", "stopped"]
"""Why a game is over: by the rules as python-chess ends it, without a claim (checkmate, stalemate,
insufficient material, 75 moves, fivefold repetition); by an illegal or unreadable move; because it was
cut off at the limit of half-moves; or because a suite stopped it, see `Reply`."""


@dataclass(slots=True)
class Game:
    """A game, under way or over.

    Args:
        name: The suite's item.
        board: Its position, with the moves since the start of the game.
        half_moves: Legal moves since the suite's starting position, of both sides.
        ending: None while it is under way.
    """

    name: str
    board: chess.Board
    half_moves: int = 0
    ending: Ending | None = None

    def take(self, reply: Reply, most: int) -> None:
        """Play a move, or end the game if the reply has none.

        Args:
            reply: Of the side to move.
            most: Half-moves after which the game is cut off.
        """
        if reply.move is None:
            self.ending = "illegal" if reply.readable else "unreadable"
            return
        self.board.push(reply.move)
        self.half_moves += 1
        if self.board.is_game_over():
            self.ending = "rules"
        elif self.half_moves == most:
            self.ending = "capped"
        elif reply.is_last:
            self.ending = "stopped"


def play_out(
    games: Sequence[Game],
    replies: Callable[[list[Game]], list[Reply]],
    most: int,
    title: str = "games",
) -> None:
    """Play all games to their ends, one ply of all running games at a time.

    Args:
        games: Changed in place.
        replies: Gives the move of the side to move in each game.
        most: Half-moves after which a game is cut off.
        title: Of a progress bar.
    """
    # A game that ends early counts as played to the limit.
    with Progress(title, len(games) * most, "half-moves at most") as progress:
        while running := [game for game in games if game.ending is None]:
            for game, reply in zip(running, replies(running), strict=True):
                game.take(reply, most)
            left = sum(most - game.half_moves for game in games if game.ending is None)
            progress.update(len(games) * most - left - progress.done)


def openings(count: int, seed: int) -> list[chess.Board]:
    """Different positions of the held-out tenth, after four random plies, with their moves."""
    found: dict[str, chess.Board] = {}
    stream = synthesis.opening_games(seed, OPENING_PLIES)
    while len(found) < count:
        board = next(stream)
        if is_held_out(board.fen(), HELDOUT_SHARE):
            found.setdefault(rules.position_key(board.fen()), board)
    return list(found.values())


class GameSuite(Suite[chess.Board]):
    """A suite whose items are games.

    Args:
        games: How many.
        plies: Half-moves after which a game is cut off.
        seed: Decides the starting positions.
    """

    def __init__(self, games: int, plies: int, seed: int) -> None:
        notes = {
            "positions": f"Games from held-out positions after {OPENING_PLIES} random plies.",
            "game_plies": plies,
        }
        super().__init__(self.starts(games, seed), seed, notes)
        self.plies = plies

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """Where each game starts, by its name."""
        return {board.fen(): board for board in openings(games, seed)}

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {name: board.fen() for name, board in self.items.items()}

    def games(self) -> list[Game]:
        """New games, one for each item."""
        return [Game(name, board.copy()) for name, board in self.items.items()]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model plays.

    Args:
        readable: Whether the answer could be read.
        move: `B` if it is legal, else None.
        is_last: Whether the game stops after this move.
    """

    readable: bool
    move: chess.Move | None
    is_last: bool = False


def ask_moves(model: Answerer, boards: Sequence[chess.Board]) -> list[Reply]:
    """What a model plays in each position, all of them asked at once.

    Args:
        model: Answers policy prompts.
        boards: `N` positions, none of them over.
    """
    if not boards:
        return []
    prompts = [write_policy_prompt(board.fen()) for board in boards]
    return [
        read_reply(board, completion)
        for board, completion in zip(boards, model.answers(prompts), strict=True)
    ]


def read_reply(board: chess.Board, completion: str) -> Reply:
    """A policy answer's `B`, as `rules.transition` would take it."""
    try:
        answer = parse_policy_answer(completion)
    except NotationError:
        return Reply(False, None)
    try:
        return Reply(True, board.parse_uci(answer.best_move))
    except ValueError:
        return Reply(True, None)
