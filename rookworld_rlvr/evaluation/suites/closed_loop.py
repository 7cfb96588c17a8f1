"""Suite `closed_loop`: the model moves, and simulates its move; its own answer is the next board."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ...common.errors import NotationError
from ...data.synthesis import prompt_of
from ...tasks import rules
from ...tasks.environment import parse_environment_answer, write_environment_prompt
from ...tasks.types import EnvironmentAnswer, EnvironmentPrompt
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply, ask_moves, play_out
from ..suite import Judged, Metric

MOVE_ERRORS = ("illegal_move", "unreadable_move")


_FEN_FIELDS = ("board", "side", "castling", "en_passant", "clocks", "clocks")


STATE_ERRORS = ("unreadable_state", *dict.fromkeys(_FEN_FIELDS), "outcome")


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
        games = self.games()
        errors: dict[str, set[str]] = {game.name: set() for game in games}
        play_out(
            games,
            lambda running: _replies(model, running, errors),
            self.plies,
            f"{model.name}: {self.name}",
        )
        for game in games:
            yield game.name, judge(game, errors[game.name]), ()


def _replies(
    model: Answerer, running: Sequence[Game], errors: Mapping[str, set[str]]
) -> list[Reply]:
    """Ask for all moves, then for the states after them; a wrong state stops its game."""
    replies = ask_moves(model, [game.board for game in running])
    asked: dict[str, EnvironmentPrompt] = {}
    for game, reply in zip(running, replies, strict=True):
        if reply.move is None:
            errors[game.name].add("illegal_move" if reply.readable else "unreadable_move")
        else:
            asked[game.name] = prompt_of(game.board, reply.move.uci())
    states = model.answers(list(map(write_environment_prompt, asked.values()))) if asked else []
    for (name, prompt), state in zip(asked.items(), states, strict=True):
        errors[name].update(state_errors(rules.transition(prompt.fen, prompt.action), state))
    return [
        replace(reply, is_last=bool(errors[game.name]))
        for game, reply in zip(running, replies, strict=True)
    ]


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


def judge(game: Game, errors: Collection[str]) -> dict[str, float]:
    """The suite's metrics for one game that is over.

    Args:
        game: Over.
        errors: Those that stopped it, of `MOVE_ERRORS` and `STATE_ERRORS`.
    """
    state_error = any(name in errors for name in STATE_ERRORS)
    return {
        "right_plies": game.half_moves - state_error,
        "finished": game.ending == "rules" and not errors,
        "capped": game.ending == "capped" and not errors,
        "state_error": state_error,
        **{name: name in errors for name in (*MOVE_ERRORS, *STATE_ERRORS)},
    }
