"""Suite `self_play`: the model moves for both sides, python-chess is the board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from ..answerers import Answerer
from ..games import Game, GameSuite, ask_moves, by_position, openings, play_out
from ..suite import Judged, Metric


class SelfPlaySuite(GameSuite):
    """Games of a model against itself from different openings: from one position, a greedy model
    plays one game.

    RookWorld's README gives 36.3 legal half-moves, of games that may start elsewhere than these.

    Args:
        games: How many.
        plies: Half-moves after which a game is cut off; such a game, and one that ends by the rules,
            counts with all its half-moves, so the mean is a lower bound.
        seed: What the starting positions follow from.
    """

    name = "self_play"
    version = 1
    headline = "legal_half_moves"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "legal_half_moves": Metric(
            "mean",
            "legal moves from the starting position to the first that is illegal or unreadable; all "
            "moves of a game without one",
        ),
        "finished": Metric("share", "the game ended by the rules"),
        "capped": Metric(
            "share", "the game was cut off at `game_plies` half-moves, all of them legal"
        ),
        "illegal_end": Metric("share", "the game ended with an illegal move"),
        "unreadable_end": Metric("share", "the game ended with an answer that cannot be read"),
    }

    def __init__(self, games: int, plies: int, seed: int) -> None:
        super().__init__(by_position(openings(games, seed)), plies, seed)

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        games = self.games()
        play_out(
            games, lambda running: ask_moves(model, [game.board for game in running]), self.plies
        )
        for game in games:
            yield game.name, judge(game), ()


def judge(game: Game) -> dict[str, float]:
    """The suite's metrics for one game that is over."""
    return {
        "legal_half_moves": game.half_moves,
        "finished": float(game.ending == "rules"),
        "capped": float(game.ending == "capped"),
        "illegal_end": float(game.ending == "illegal"),
        "unreadable_end": float(game.ending == "unreadable"),
    }
