"""Suite `closed_loop`: the model moves, and simulates its move; its own answer is the next board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...common.errors import NotationError
from ...data.synthesis import prompt_of
from ...tasks import rules
from ...tasks.environment import parse_environment_answer, write_environment_prompt
from ...tasks.types import EnvironmentAnswer, EnvironmentPrompt
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply, ask_moves, by_position, openings
from ..suite import Judged, Metric

MOVE_ERRORS = ("illegal_move", "unreadable_move")


STATE_ERRORS = (
    "unreadable_state",
    "board",
    "side",
    "castling",
    "en_passant",
    "clocks",
    "outcome",
)


_FEN_FIELDS = ("board", "side", "castling", "en_passant", "clocks", "clocks")


@dataclass(slots=True)
class Loop:
    """A game, and what is wrong where it stops: names of `MOVE_ERRORS` and `STATE_ERRORS`."""

    game: Game
    errors: set[str] = field(default_factory=set)

    @property
    def running(self) -> bool:
        """Whether there is a ply to go."""
        return self.game.ending is None and not self.errors

    @property
    def right_plies(self) -> int:
        """Plies whose move was legal and whose simulation was right."""
        return self.game.half_moves - (not self.errors.isdisjoint(STATE_ERRORS))


class ClosedLoopSuite(GameSuite):
    """Games that a model imagines: its policy answer is the action, its environment answer the state.

    A game stops at the first error. Up to there the model's state is python-chess's, so what is fed
    back is both. A fivefold repetition ends a game too, though no prompt can tell of it.

    Args:
        games: How many.
        plies: Half-moves after which a game is cut off.
        seed: What the starting positions follow from.
    """

    name = "closed_loop"
    version = 1
    headline = "right_plies"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "right_plies": Metric(
            "mean",
            "plies before the first error, of move or of state; all plies of a game without one",
        ),
        "finished": Metric("share", "the game ended by the rules, without an error"),
        "capped": Metric("share", "the game was cut off at `game_plies` plies, without an error"),
        "state_error": Metric(
            "share", "the model's state or its outcome was not python-chess's, or unreadable"
        ),
        "illegal_move": Metric("share", "the game stopped at an illegal move"),
        "unreadable_move": Metric("share", "the game stopped at an unreadable policy answer"),
        "unreadable_state": Metric("share", "the game stopped at an unreadable environment answer"),
        "board": Metric(
            "share",
            "the game stopped at a state with a wrong square; a state may err in several ways",
        ),
        "side": Metric("share", "the game stopped at a state with the wrong side to move"),
        "castling": Metric("share", "the game stopped at a state with wrong castling rights"),
        "en_passant": Metric("share", "the game stopped at a state with a wrong en passant square"),
        "clocks": Metric(
            "share", "the game stopped at a state with a wrong halfmove clock or move number"
        ),
        "outcome": Metric("share", "the game stopped at a wrong reward or flag"),
    }

    def __init__(self, games: int, plies: int, seed: int) -> None:
        super().__init__(by_position(openings(games, seed)), plies, seed)

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        loops = [Loop(game) for game in self.games()]
        while running := [loop for loop in loops if loop.running]:
            _step(model, running, self.plies)
        for loop in loops:
            yield loop.game.name, judge(loop), ()


def _step(model: Answerer, running: Sequence[Loop], most: int) -> None:
    """A ply of each game: all moves are asked for, then all states."""
    replies = ask_moves(model, [loop.game.board for loop in running])
    asked: list[tuple[Loop, EnvironmentPrompt]] = []
    for loop, reply in zip(running, replies, strict=True):
        if reply.move is None:
            loop.errors.add(_move_error(reply))
        else:
            asked.append((loop, prompt_of(loop.game.board, reply.move.uci())))
        loop.game.take(reply, most)
    if not asked:
        return
    states = model.answers([write_environment_prompt(prompt) for _, prompt in asked])
    for (loop, prompt), state in zip(asked, states, strict=True):
        loop.errors |= state_errors(rules.transition(prompt.fen, prompt.action), state)


def _move_error(reply: Reply) -> str:
    return "illegal_move" if reply.readable else "unreadable_move"


def state_errors(truth: EnvironmentAnswer, completion: str) -> set[str]:
    """What is wrong with an environment answer: names of `STATE_ERRORS`."""
    try:
        answer = parse_environment_answer(completion)
    except NotationError:
        return {"unreadable_state"}
    fields = zip(_FEN_FIELDS, answer.fen.split(" "), truth.fen.split(" "), strict=True)
    errors = {name for name, mine, right in fields if mine != right}
    if _outcome(answer) != _outcome(truth):
        errors.add("outcome")
    return errors


def _outcome(answer: EnvironmentAnswer) -> tuple[float, bool, bool]:
    return answer.reward, answer.terminated, answer.truncated


def judge(loop: Loop) -> dict[str, float]:
    """The suite's metrics for one game that is over."""
    ending = None if loop.errors else loop.game.ending
    return {
        "right_plies": loop.right_plies,
        "finished": float(ending == "rules"),
        "capped": float(ending == "capped"),
        "state_error": float(not loop.errors.isdisjoint(STATE_ERRORS)),
        **{name: float(name in loop.errors) for name in (*MOVE_ERRORS, *STATE_ERRORS)},
    }
