"""Suite `versus_stockfish`: games against Stockfish at its lowest skill level."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from subprocess import DEVNULL
from typing import Any, ClassVar, TypeVar

import chess
import chess.engine
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...common.errors import EngineError
from ...common.stats import Estimate, Proportion
from ...engine.arguments import HASH_MB, EngineArguments, find_engine
from ...inference.prompts import Choice, choose, policy_prompt, reply_of
from ...tasks.policy import parse_policy_answer
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply
from ..suite import Metric, SuiteResult, SuiteUnavailableError

ELO_SCALE = 400
_LEVEL = "Skill Level"

T = TypeVar("T")


class VersusStockfishSuite(GameSuite):
    """Games from openings, each opening played twice, once with each colour.

    The model plays as in a chess program: `inference.prompts.choose` replaces an illegal or unreadable
    move, as `rookworld uci` does. `strict_score` says what the same games come to if such a move loses.
    A game is a draw if it is cut off, or if python-chess ends it without a mate.

    Args:
        suite_games: How many.
        suite_seed: Decides openings, but not Stockfish's moves, see `SkilledEngine`.
        engine_args: Which engine.

    Raises:
        SuiteUnavailableError: No engine was found, or it has no skill levels.
    """

    name = "versus_stockfish"
    summary = "Plays Stockfish at its lowest skill level, 0."
    version = 2
    headline = "score"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "score": Metric("mean", "1 for a win, 0.5 for a draw, 0 for a loss."),
        "elo_difference": Metric(
            "mean", "Elo rating of the model less the opponent's, from the score."
        ),
        "win": Metric("share", "The model mates."),
        "draw": Metric("share", "Neither side mates; a game that is cut off counts."),
        "strict_score": Metric(
            "mean", "As `score`, but an illegal or unreadable move of the model loses the game."
        ),
        "illegal_moves": Metric(
            "mean", "Illegal and unreadable moves of the model in a game; each is replaced."
        ),
        "illegal_share": Metric("mean", "The same as a share of the model's moves in the game."),
        "capped": Metric("share", "The game was cut off at 200 half-moves."),
        "half_moves": Metric("mean", "Legal moves of both sides since the starting position."),
    }

    def __init__(self, suite_games: int, suite_seed: int, engine_args: EngineArguments) -> None:
        super().__init__(suite_games, suite_seed)
        self._engine_args = engine_args
        try:
            with SkilledEngine(engine_args) as engine:
                self.notes["engine"] = f"{engine.name}, depth 1; it chooses by chance"
        except EngineError as error:
            raise SuiteUnavailableError(str(error)) from error

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """See `GameSuite`; both games of a pair start at the same board."""
        boards = super().starts(math.ceil(games / 2), seed)
        names = [f"{side} {fen}" for fen in boards for side in ("white", "black")]
        return {name: boards[name.split(" ", 1)[1]] for name in names[:games]}

    def run(self, model: Answerer) -> SuiteResult:
        """See `Suite`; scores have intervals that hold for few games, and a rating is added.

        Raises:
            EngineError: See `SkilledEngine`.
        """
        with SkilledEngine(self._engine_args) as self._engine:
            result = super().run(model)
        values = result.observations.values
        estimates: dict[str, Estimate] = {
            name: score_estimate(list(values[name].values()))
            for name in ("score", "strict_score")
            if name in values
        }
        notes = dict(result.notes)
        if score := estimates.get("score"):
            if rating := elo_difference(score):
                estimates["elo_difference"] = rating
            else:
                notes["elo_difference"] = f"a score of {score.value:g} has no finite Elo difference"
        return replace(result, estimates=estimates, notes=notes)

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[Reply]:
        """See `GameSuite`; those of the model and of Stockfish."""
        asked = [game for game in running if game.board.turn == _side(game)]
        others = [game for game in running if game.board.turn != _side(game)]
        moves: dict[str, chess.Move] = {}
        for game, choice in zip(asked, ask_choices(model, asked), strict=True):
            moves[game.name] = choice.move
            game.errors += [choice.fault] if choice.fault else []
        answers = self._engine.moves([game.board for game in others]) if others else []
        moves |= {game.name: move for game, move in zip(others, answers, strict=True)}
        return [Reply(True, moves[game.name]) for game in running]

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        outcome = game.board.outcome()
        winner = outcome.winner if outcome else None
        score = 0.5 if winner is None else float(winner == _side(game))
        began = game.board.turn ^ (game.half_moves % 2 == 1)  # who made the first of the moves
        moves = (game.half_moves + (began == _side(game))) // 2
        return {
            "score": score,
            "win": float(score == 1),
            "draw": float(score == 0.5),
            "strict_score": 0.0 if game.errors else score,
            "illegal_moves": len(game.errors),
            "illegal_share": len(game.errors) / max(1, moves),
            "capped": float(game.ending == "capped"),
            "half_moves": game.half_moves,
        }


def _side(game: Game) -> chess.Color:
    """The model's."""
    return game.name.startswith("white")


def ask_choices(model: Answerer, games: Sequence[Game]) -> list[Choice]:
    """What `rookworld uci` would play with a model's answers, all of them asked at once."""
    prompts = [policy_prompt(game.board) for game in games]
    answers = model.answers(prompts) if prompts else []
    return [
        choose(game.board, reply_of(answer, parse_policy_answer))
        for game, answer in zip(games, answers, strict=True)
    ]


# --------------------------------------------------------------------------------------------------
# Scores and ratings
# --------------------------------------------------------------------------------------------------
def score_estimate(scores: Sequence[float]) -> Estimate:
    """The mean of scores with its Wilson interval, in which a draw is half a win.

    A draw varies less than a win or a loss, so with draws the interval is too wide, never too narrow.
    Unlike the bootstrap's, it has a width even if all games are lost.

    Args:
        scores: 1, 0.5 or 0 a game; at least one game.
    """
    return Proportion(sum(scores), len(scores)).estimate


def elo_difference(score: Estimate) -> Estimate | None:
    """The difference of two players' ratings, from what one scores against the other.

    ``d = 400 log10(s / (1 - s))``, for the score and both ends of its interval; None if the score is 0
    or 1, which no finite difference explains.

    Source: A. E. Elo, "The Rating of Chessplayers, Past and Present" (1978), its logistic form.
    """
    if not 0 < score.value < 1:
        return None
    value, low, high = (
        ELO_SCALE * math.log10(share / (1 - share))
        for share in (score.value, score.low, score.high)
    )
    return Estimate(value, low, high, score.n)


# --------------------------------------------------------------------------------------------------
# The opponent
# --------------------------------------------------------------------------------------------------
class SkilledEngine:
    """Stockfish at skill level 0, started once, by the main process; a context manager.

    At level `n`, Stockfish chooses among its best four moves of depth 1 + `n`, so searches go to that
    depth. The weaker the level, the more chance decides. The time is its seed, so a second game differs
    from the first. It forgets each position before the next.

    Args:
        args: The program, its hash table, and the seconds after which it counts as hanging.

    Attributes:
        name: The engine's.

    Raises:
        EngineError: No engine was found, or it has no skill levels.

    Source: `Skill` in the code of Stockfish's search, https://github.com/official-stockfish/Stockfish.
    """

    def __init__(self, args: EngineArguments) -> None:
        self._args = args
        self._engine: chess.engine.SimpleEngine | None = None
        self.name = from_main(self._start)

    def moves(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """A move in each position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        return from_main(lambda: [self._move(board) for board in boards])

    def close(self) -> None:
        """End the engine's process."""
        if self._engine is not None:
            self._engine.close()

    def _start(self) -> str:
        path = find_engine(self._args.engine_path)
        try:
            # A process group of its own: Ctrl-C is for the program that asks.
            engine = chess.engine.SimpleEngine.popen_uci(path, stderr=DEVNULL, setpgrp=True)
            self._engine = engine
            wanted = {"Threads": 1, "Hash": HASH_MB, _LEVEL: 0}
            engine.configure({key: value for key, value in wanted.items() if key in engine.options})
        except (TimeoutError, OSError, chess.engine.EngineError) as error:
            self.close()
            raise EngineError(
                f"{path!r} does not run here as a UCI engine ({str(error) or 'no answer'}); give another"
            ) from error
        if _LEVEL not in engine.options:
            self.close()
            raise EngineError(f"{path!r} has no option {_LEVEL!r}; give Stockfish")
        return str(engine.id.get("name", "unnamed engine"))

    def _move(self, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        # A time, which depth 1 never needs: without one, `play` would wait for ever.
        limit = chess.engine.Limit(depth=1, time=self._args.engine_timeout)
        try:
            # A new game, so that the engine forgets the last position.
            move = self._engine.play(board, limit, game=object()).move
        except TimeoutError as error:
            raise EngineError(
                f"no move within {limit.time:g} s at {board.fen()!r}; give another engine, or a larger "
                "engine_timeout"
            ) from error
        except chess.engine.EngineError as error:
            raise EngineError(f"the engine failed at {board.fen()!r} ({error})") from error
        if move is None:
            raise EngineError(f"the engine gave no move at {board.fen()!r}; give another")
        return move

    def __enter__(self) -> SkilledEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def from_main(ask: Callable[[], T]) -> T:
    """Call `ask` on the main process alone, and return its result on every process.

    Raises:
        EngineError: On every process, if `ask` raised it; the others would wait for ever.
    """
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = ask()
        except EngineError as error:
            outcome[1] = str(error)
    answer, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise EngineError(failure)
    return answer
