"""Suite `versus_model`: games against another model."""

from __future__ import annotations

from collections.abc import Sequence

import chess

from ...engine.arguments import EngineArguments
from ..games import Game
from ..matches import MatchSuite, ask_choices
from ..models import ModelArguments, open_model
from ..suite import SuiteUnavailableError


class VersusModelSuite(MatchSuite):
    """Games against another model, which answers greedily; see `MatchSuite`.

    Both play as in a chess program: illegal and unreadable moves are replaced. From one position, two
    greedy models always play the same game, so more games need more openings, not repetitions.

    Args:
        suite_games: How many.
        suite_seed: Decides openings.
        opponent: A packaged model's name, a folder, a Hub id, or ``random``.
        engine_args: For the opponent ``oracle``.

    Raises:
        SuiteUnavailableError: No opponent was given.
        RookWorldError: It could not be loaded.
    """

    name = "versus_model"
    summary = "Plays another model, `opponent`."
    version = 1

    def __init__(
        self, suite_games: int, suite_seed: int, opponent: str | None, engine_args: EngineArguments
    ) -> None:
        super().__init__(suite_games, suite_seed)
        if not opponent:
            raise SuiteUnavailableError("there is no opponent; give one with --opponent")
        self.opponent = opponent
        self._player = open_model(opponent, ModelArguments(), engine_args)

    def opponent_moves(self, games: Sequence[Game]) -> list[chess.Move]:
        """See `MatchSuite`."""
        return [choice.move for choice in ask_choices(self._player, games)]
