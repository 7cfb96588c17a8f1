"""Suite `versus_stockfish`: games against Stockfish's skill levels, or a random mover."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from subprocess import DEVNULL
from typing import Any, ClassVar, TypeVar

import chess
import chess.engine
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...common.errors import EngineError
from ...common.stats import Estimate, Proportion
from ...engine.pool import EngineArguments, find_engine
from ...inference.prompts import Choice, choose, policy_prompt, reply_of
from ...tasks.policy import parse_policy_answer
from ..answerers import Answerer
from ..games import Game, GameSuite, Reply, play_out
from ..suite import (
    RANDOM_LEVEL,
    Judged,
    Metric,
    Observations,
    SuiteResult,
    SuiteUnavailableError,
)

_SKILL = "Skill Level"


T = TypeVar("T")


ELO_SCALE = 400


@dataclass(frozen=True, slots=True)
class Pairing:
    """Whom the model plays, and with which pieces."""

    level: str  # of `suite.LEVELS`
    side: chess.Color  # the model's

    @property
    def group(self) -> str:
        """The level, as results name it."""
        return self.level if self.level == RANDOM_LEVEL else f"stockfish_{self.level}"


class VersusStockfishSuite(GameSuite):
    """Games from openings, each played twice at a level, once with each colour.

    The model plays as in a chess program: `inference.prompts.choose` replaces an illegal or unreadable
    move, as `rookworld uci` does. `strict_score` says what the same games come to if such a move loses.
    A game is a draw if it is cut off, or if python-chess ends it without a mate.

    Args:
        levels: Of `suite.LEVELS`.
        games: How many at each level.
        plies: Half-moves after which a game is cut off.
        seed: Decides openings and random moves, but not Stockfish's moves, see `SkilledEngine`.
        engine_args: Which engine.

    Raises:
        SuiteUnavailableError: A level needs an engine, and none was found.
    """

    name = "versus_stockfish"
    summary = "Plays Stockfish's skill levels 0 to 5, or a random mover (`versus_levels`)."
    version = 2
    headline = "score"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "score": Metric("mean", "1 for a win, 0.5 for a draw, 0 for a loss."),
        "elo_difference": Metric(
            "mean", "Elo rating of the model less the opponent's, from the score; by level only."
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
        "capped": Metric("share", "The game was cut off at `game_plies` half-moves."),
        "half_moves": Metric("mean", "Legal moves of both sides since the starting position."),
    }
    grouped = tuple(metrics)  # by level

    def __init__(
        self,
        levels: Sequence[str],
        games: int,
        plies: int,
        seed: int,
        engine_args: EngineArguments,
    ) -> None:
        self._levels = levels
        self._pairings: dict[str, Pairing] = {}
        super().__init__(games, plies, seed)
        self._engine_args = None
        if set(levels) - {RANDOM_LEVEL}:
            try:
                with SkilledEngine(engine_args) as engine:
                    self._engine_args = engine_args
                    self.notes["engine"] = f"{engine.name}, depth 1 + level; it chooses by chance"
            except EngineError as error:
                raise SuiteUnavailableError(
                    f"{error}; or set versus_levels: {RANDOM_LEVEL}, which needs no engine"
                ) from error

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """See `GameSuite`; both games of a pair start at the same board."""
        boards = list(super().starts(math.ceil(games / 2), seed).values())
        found = {}
        for level in self._levels:
            for number in range(games):
                pairing = Pairing(level, side=number % 2 == 0)
                board = boards[number // 2]
                name = f"{pairing.group} {chess.COLOR_NAMES[pairing.side]} {board.fen()}"
                found[name], self._pairings[name] = board, pairing
        return found

    def groups(self) -> list[str]:
        """See `Suite`; the levels."""
        return list(dict.fromkeys(pairing.group for pairing in self._pairings.values()))

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`.

        Raises:
            EngineError: See `SkilledEngine`.
        """
        games = self.games()
        replaced: Counter[str] = Counter()
        with SkilledEngine(self._engine_args) if self._engine_args else nullcontext() as engine:
            play_out(
                games,
                lambda running: self._replies(model, engine, running, replaced),
                self.plies,
                f"{model.name}: {self.name}",
            )
        for game in games:
            pairing = self._pairings[game.name]
            yield game.name, judge(game, pairing.side, replaced[game.name]), [pairing.group]

    def run(self, model: Answerer) -> SuiteResult:
        """See `Suite`; adds ratings, which are not a mean over games."""
        result = super().run(model)
        estimates, notes = _ratings(result.observations, self.groups())
        return replace(result, estimates=estimates, notes={**notes, **self.notes})

    def _replies(
        self,
        model: Answerer,
        engine: SkilledEngine | None,
        running: Sequence[Game],
        replaced: Counter[str],
    ) -> list[Reply]:
        pairings = [self._pairings[game.name] for game in running]
        mine, skilled = {}, {}
        replies: dict[str, Reply] = {}
        for game, pairing in zip(running, pairings, strict=True):
            if game.board.turn == pairing.side:
                mine[game.name] = game.board
            elif pairing.level == RANDOM_LEVEL:
                replies[game.name] = Reply(True, random_move(game.board, self.seed))
            else:
                skilled[game.name] = (int(pairing.level), game.board)
        for name, choice in zip(mine, ask_choices(model, list(mine.values())), strict=True):
            replies[name] = Reply(True, choice.move)
            replaced[name] += bool(choice.fault)
        if engine is not None:
            moves = engine.moves(list(skilled.values()))
            replies |= zip(skilled, (Reply(True, move) for move in moves), strict=True)
        return [replies[game.name] for game in running]


def ask_choices(model: Answerer, boards: Sequence[chess.Board]) -> list[Choice]:
    """What `rookworld uci` would play with a model's answers, all of them asked at once."""
    prompts = [policy_prompt(board) for board in boards]
    answers = model.answers(prompts) if prompts else []
    return [
        choose(board, reply_of(answer, parse_policy_answer))
        for board, answer in zip(boards, answers, strict=True)
    ]


def judge(game: Game, side: chess.Color, replaced: int) -> dict[str, float]:
    """The suite's metrics for one game that is over.

    Args:
        game: Over.
        side: The model's.
        replaced: How many of its moves were illegal or unreadable.
    """
    outcome = game.board.outcome()
    winner = outcome.winner if outcome else None
    score = 0.5 if winner is None else float(winner == side)
    began = game.board.turn ^ (game.half_moves % 2 == 1)  # who made the first of the moves
    moves = (game.half_moves + (began == side)) // 2
    return {
        "score": score,
        "win": float(score == 1),
        "draw": float(score == 0.5),
        "strict_score": 0.0 if replaced else score,
        "illegal_moves": replaced,
        "illegal_share": replaced / max(1, moves),
        "capped": float(game.ending == "capped"),
        "half_moves": game.half_moves,
    }


# --------------------------------------------------------------------------------------------------
# Scores and ratings
# --------------------------------------------------------------------------------------------------
def _ratings(
    seen: Observations, groups: Sequence[str]
) -> tuple[dict[str, Estimate], dict[str, Any]]:
    """Scores with intervals that hold for few games, Elo differences, and why some are missing."""
    estimates = {
        name: score_estimate(list(seen.values[name].values()))
        for metric in ("score", "strict_score")
        for name in (metric, *(f"{metric}/{group}" for group in groups))
        if name in seen.values
    }
    missing = {}
    for group in groups:
        score = estimates.get(f"score/{group}")
        if score is None:
            continue
        rating = elo_difference(score)
        if rating is None:
            missing[group] = f"a score of {score.value:g} has no finite Elo difference"
        else:
            estimates[f"elo_difference/{group}"] = rating
    return estimates, {"elo_difference": missing} if missing else {}


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
# Opponents
# --------------------------------------------------------------------------------------------------
def random_move(board: chess.Board, seed: int) -> chess.Move:
    """A random legal move, decided by seed and position; `RandomMover` chooses differently."""
    return random.Random(f"opponent {seed} {board.fen()}").choice(list(board.legal_moves))


class SkilledEngine:
    """Stockfish at its skill levels, started once, by the main process; a context manager.

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

    def moves(self, asked: Sequence[tuple[int, chess.Board]]) -> list[chess.Move]:
        """A move for each level and position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        if not asked:
            return []
        return from_main(lambda: [self._move(level, board) for level, board in asked])

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
            wanted = {"Threads": 1, "Hash": self._args.engine_hash_mb}
            engine.configure({key: value for key, value in wanted.items() if key in engine.options})
        except (TimeoutError, OSError, chess.engine.EngineError) as error:
            self.close()
            raise EngineError(
                f"{path!r} does not run here as a UCI engine ({str(error) or 'no answer'}); give another"
            ) from error
        if _SKILL not in engine.options:
            self.close()
            raise EngineError(f"{path!r} has no option {_SKILL!r}; give Stockfish")
        return str(engine.id.get("name", "unnamed engine"))

    def _move(self, level: int, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        protocol = self._engine.protocol
        search = protocol.play(
            board,
            chess.engine.Limit(depth=1 + level),
            game=object(),  # a new one, so that the engine forgets the last
            options={_SKILL: level},
        )
        # Not `SimpleEngine.play`, which waits for ever if the limit is not a time.
        future = asyncio.run_coroutine_threadsafe(search, protocol.loop)
        try:
            move = future.result(self._args.engine_timeout).move
        except TimeoutError as error:
            limit = self._args.engine_timeout
            raise EngineError(
                f"no move within {limit:g} s at {board.fen()!r}; give another engine, or a larger "
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
    found: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = ask()
        except EngineError as error:
            found[1] = str(error)
    answer, failure = broadcast_object_list(found)
    if failure is not None:
        raise EngineError(failure)
    return answer
