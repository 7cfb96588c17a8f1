"""Suite `closed_loop`: the model moves, and simulates its move; its own answer is the next board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...common.errors import NotationError
from ...data.synthesis import prompt_of
from ...tasks import rules
from ...tasks.environment import parse_environment_answer, write_environment_prompt
from ...tasks.types import EnvironmentAnswer, EnvironmentPrompt
from ..answerers import Answerer
from ..games import Game, GameSuite, ask_moves, game_progress
from ..suite import Judged, Metric

MOVE_ERRORS = ("illegal_move", "unreadable_move")


_FEN_FIELDS = ("board", "side", "castling", "en_passant", "clocks", "clocks")


STATE_ERRORS = ("unreadable_state", *dict.fromkeys(_FEN_FIELDS), "outcome")


@dataclass(slots=True)
class Loop:
    """A game, and the errors that stopped it: names of `MOVE_ERRORS` and `STATE_ERRORS`."""

    game: Game
    errors: set[str] = field(default_factory=set)

    @property
    def running(self) -> bool:
        """Whether there is a ply to go."""
        return self.game.ending is None and not self.errors


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
        "capped": Metric("share", "The game was cut off at `game_plies` plies, without an error."),
        "state_error": Metric(
            "share",
            "The simulated state, reward or flags differed from python-chess's, or could not be read.",
        ),
        "illegal_move": Metric("share", "The game stopped at an illegal move."),
        "unreadable_move": Metric("share", "The game stopped at an unreadable policy answer."),
        "unreadable_state": Metric(
            "share", "The game stopped at an unreadable environment answer."
        ),
        "board": Metric(
            "share",
            "The game stopped at a state with a wrong square; one state may have several errors.",
        ),
        "side": Metric("share", "The game stopped at a state with the wrong side to move."),
        "castling": Metric("share", "The game stopped at a state with wrong castling rights."),
        "en_passant": Metric(
            "share", "The game stopped at a state with a wrong en passant square."
        ),
        "clocks": Metric(
            "share", "The game stopped at a state with a wrong halfmove clock or move number."
        ),
        "outcome": Metric("share", "The game stopped at a wrong reward or flag."),
    }

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        loops = [Loop(game) for game in self.games()]
        with game_progress(f"{model.name}: {self.name}", len(loops), self.plies) as progress:
            while running := [loop for loop in loops if loop.running]:
                _step(model, running, self.plies)
                left = sum(self.plies - loop.game.half_moves for loop in loops if loop.running)
                progress.update(len(loops) * self.plies - left - progress.done)
        for loop in loops:
            yield loop.game.name, judge(loop), ()


def _step(model: Answerer, running: Sequence[Loop], most: int) -> None:
    """Play a ply of each game: ask for all moves, then for all states."""
    replies = ask_moves(model, [loop.game.board for loop in running])
    asked: list[tuple[Loop, EnvironmentPrompt]] = []
    for loop, reply in zip(running, replies, strict=True):
        if reply.move is None:
            loop.errors.add("illegal_move" if reply.readable else "unreadable_move")
        else:
            asked.append((loop, prompt_of(loop.game.board, reply.move.uci())))
        loop.game.take(reply, most)
    if not asked:
        return
    states = model.answers([write_environment_prompt(prompt) for _, prompt in asked])
    for (loop, prompt), state in zip(asked, states, strict=True):
        loop.errors |= state_errors(rules.transition(prompt.fen, prompt.action), state)


def state_errors(truth: EnvironmentAnswer, completion: str) -> set[str]:
    """What is wrong with an environment answer: names of `STATE_ERRORS`."""
    try:
        answer = parse_environment_answer(completion)
    except NotationError:
        return {"unreadable_state"}
    fields = zip(_FEN_FIELDS, answer.fen.split(" "), truth.fen.split(" "), strict=True)
    errors = {name for name, mine, right in fields if mine != right}
    if replace(answer, fen=truth.fen) != truth:
        errors.add("outcome")
    return errors


def judge(loop: Loop) -> dict[str, float]:
    """The suite's metrics for one game that is over."""
    ending = None if loop.errors else loop.game.ending
    state_error = not loop.errors.isdisjoint(STATE_ERRORS)
    return {
        "right_plies": loop.game.half_moves - state_error,
        "finished": ending == "rules",
        "capped": ending == "capped",
        "state_error": state_error,
        **{name: name in loop.errors for name in (*MOVE_ERRORS, *STATE_ERRORS)},
    }
