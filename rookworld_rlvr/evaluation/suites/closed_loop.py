"""Suite `closed_loop`: the model moves, and simulates its move; its own answer is the next board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ...data.parsing import prompt_of
from ...tasks.environment import score_environment, write_environment_prompt
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply
from ..suite import Metric


class ClosedLoopSuite(GameSuite):
    """Games that a model imagines: its policy answer is the action, its environment answer the state.

    A game stops at the first error. Until then the model's state equals python-chess's, so it does not
    matter which of them is fed back. A fivefold repetition ends a game too, though no prompt shows it.
    """

    name = "closed_loop"
    summary = "Plays and simulates a game: its own environment answer is the next position."
    version = 1
    headline = "right_plies"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "right_plies": Metric(
            "mean",
            "Plies before the first error, of move or state; all plies of a game without an error.",
        ),
        "finished": Metric("share", "The game ended by the rules, without an error."),
        "capped": Metric("share", "The game was cut off at 200 plies, without an error."),
        "state_error": Metric(
            "share",
            "The simulated state, reward or flags differed from python-chess's, or could not be read.",
        ),
        "illegal_move": Metric("share", "The game stopped at an illegal move."),
        "unreadable_move": Metric("share", "The game stopped at an unreadable policy answer."),
    }

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[Reply]:
        """Ask for all moves, then for the states after them; a wrong state stops its game."""
        replies = super().replies(model, running)
        moved = [(game, reply.move) for game, reply in zip(running, replies, strict=True)]
        asked = [(game, prompt_of(game.board, move.uci())) for game, move in moved if move]
        prompts = [write_environment_prompt(prompt) for _, prompt in asked]
        states = model.answers(prompts) if prompts else []
        for (game, prompt), state in zip(asked, states, strict=True):
            if not score_environment(prompt.fen, prompt.action, state)["exact"]:
                game.errors.append("wrong state")
        return [
            replace(reply, is_last=bool(game.errors))
            for game, reply in zip(running, replies, strict=True)
        ]

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        state_error = bool(game.errors)
        return {
            "right_plies": game.half_moves - state_error,
            "finished": game.ending == "rules" and not state_error,
            "capped": game.ending == "capped" and not state_error,
            "state_error": state_error,
            "illegal_move": game.ending == "illegal",
            "unreadable_move": game.ending == "unreadable",
        }
