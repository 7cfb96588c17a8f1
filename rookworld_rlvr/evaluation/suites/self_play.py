"""Suite `self_play`: the model moves for both sides, python-chess is the board."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..games import Game, GameSuite
from ..suite import Metric


class SelfPlaySuite(GameSuite):
    """Games of a model against itself, each from another opening.

    From one position, a greedy model always plays the same game. RookWorld's README gives 36.3 legal
    half-moves; its games may start from other positions.

    A game that is cut off, and one that ends by the rules, counts with all its half-moves, so the mean
    is a lower bound.
    """

    name = "self_play"
    summary = "Plays both sides of a game by policy answers, with python-chess as the board."
    version = 1
    headline = "legal_half_moves"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "legal_half_moves": Metric(
            "mean",
            "Half-moves from the starting position to the first illegal or unreadable move, or to the "
            "end of the game.",
        ),
        "finished": Metric("share", "The game ended by the rules."),
        "capped": Metric("share", "The game was cut off at 200 half-moves, all of them legal."),
        "illegal_end": Metric("share", "The game ended with an illegal move."),
        "unreadable_end": Metric("share", "The game ended with an answer that cannot be read."),
    }

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        return {
            "legal_half_moves": game.half_moves,
            "finished": game.ending == "rules",
            "capped": game.ending == "capped",
            "illegal_end": game.ending == "illegal",
            "unreadable_end": game.ending == "unreadable",
        }
