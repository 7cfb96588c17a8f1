"""Suite `closed_loop`: the model moves, and simulates its move; its own answer is the next board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ...common.errors import NotationError
from ...data.positions import prompt_of
from ...tasks import rules
from ...tasks.environment import parse_environment_answer, write_environment_prompt
from ...tasks.types import EnvironmentAnswer, EnvironmentPrompt
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply
from ..suite import Metric

MOVE_ERRORS = {
    "illegal_move": "an illegal move",
    "unreadable_move": "an unreadable policy answer",
}
STATE_ERRORS = {
    "unreadable_state": "an unreadable environment answer",
    "board": "a state with a wrong square; one state may have several errors",
    "side": "a state with the wrong side to move",
    "castling": "a state with wrong castling rights",
    "en_passant": "a state with a wrong en passant square",
    "clocks": "a state with a wrong halfmove clock or move number",
    "outcome": "a wrong reward or flag",
}
_FEN_FIELDS = ("board", "side", "castling", "en_passant", "clocks", "clocks")


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
        **{
            name: Metric("share", f"The game stopped at {what}.")
            for name, what in (MOVE_ERRORS | STATE_ERRORS).items()
        },
    }

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[Reply]:
        """Ask for all moves, then for the states after them; a wrong state stops its game."""
        replies = super().replies(model, running)
        asked: list[tuple[Game, EnvironmentPrompt]] = []
        for game, reply in zip(running, replies, strict=True):
            if reply.move is None:
                game.errors.append("illegal_move" if reply.readable else "unreadable_move")
            else:
                asked.append((game, prompt_of(game.board, reply.move.uci())))
        prompts = [write_environment_prompt(prompt) for _, prompt in asked]
        states = model.answers(prompts) if prompts else []
        for (game, prompt), state in zip(asked, states, strict=True):
            game.errors += state_errors(rules.transition(prompt.fen, prompt.action), state)
        return [
            replace(reply, is_last=bool(game.errors))
            for game, reply in zip(running, replies, strict=True)
        ]

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        state_error = any(name in STATE_ERRORS for name in game.errors)
        return {
            "right_plies": game.half_moves - state_error,
            "finished": game.ending == "rules" and not game.errors,
            "capped": game.ending == "capped" and not game.errors,
            "state_error": state_error,
            **{name: name in game.errors for name in (*MOVE_ERRORS, *STATE_ERRORS)},
        }


def state_errors(truth: EnvironmentAnswer, completion: str) -> set[str]:
    """What is wrong with an environment answer: names of `STATE_ERRORS`."""
    try:
        answer = parse_environment_answer(completion)
    except NotationError:
        return {"unreadable_state"}
    fields = zip(_FEN_FIELDS, answer.fen.split(" "), truth.fen.split(" "), strict=True)
    errors = {name for name, said, right in fields if said != right}
    if replace(answer, fen=truth.fen) != truth:
        errors.add("outcome")
    return errors
