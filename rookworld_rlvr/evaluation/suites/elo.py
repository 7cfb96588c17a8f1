"""Suite `elo`: models and a ladder of players in one pool, rated together.

The models meet everyone; of the ladder, neighbours meet. Every two that meet play each opening twice,
once with each colour. Illegal and unreadable moves of a model are replaced, see `players.ModelPlayer`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any

import chess
import numpy as np

from ...common.errors import EngineError, RookWorldError
from ...common.progress import Progress
from ...common.stats import Paired
from ...engine import EngineArguments
from ..engines import FairyEngine, FullEngine, open_referee
from ..players import (
    Diluted,
    EnginePlayer,
    ModelPlayer,
    Negamax,
    Player,
    RandomPlayer,
    Turn,
    material,
    negamax,
)
from ..ratings import Ratings
from ..registry import LADDER, RANDOM_MOVER
from ..results import SuiteResult
from ..suite import Answerer, Judged, SuiteUnavailableError
from . import games
from .games import Game, MoveReply, PlayedSuite, adjudication, score_games

LOST_PAWNS = 3
"""An opening in which a side wins this much within three plies is not played."""


# --------------------------------------------------------------------------------------------------
# Games
# --------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class PoolGame(Game):
    """A game of two players of a pool. Once it is over, `board` is where it started, without moves.

    Args:
        seats: The numbers of the players of Black and of White.
        opening: The number of the opening.
        faulty: Whose illegal or unreadable move came first; None if there was none.
        moves: All moves since the start of the game, once it is over.
    """

    seats: tuple[int, int] = (0, 0)
    opening: int = 0
    faulty: chess.Color | None = None
    moves: tuple[chess.Move, ...] = ()

    @property
    def strict_points(self) -> float:
        """What White scored if the first illegal or unreadable move loses."""
        return self.points if self.faulty is None else float(not self.faulty)

    def close(self) -> None:
        """Keep the moves alone: thousands of boards that remember every ply fill the memory."""
        self.moves = tuple(self.board.move_stack)
        self.board = self.board.root()


def pool_openings(count: int, seed: int) -> list[chess.Board]:
    """Different held-out positions after four random plies, in which neither side is lost at once.

    Args:
        count: How many.
        seed: Decides which.
    """
    wanted = count
    while True:
        boards = games.openings(wanted, seed)
        sound = [board for board in boards if is_sound(board)]
        if len(sound) >= count:
            return sound[:count]
        wanted += 2 * (count - len(sound))


def is_sound(board: chess.Board) -> bool:
    """Whether nobody mates, or wins `LOST_PAWNS` or more, within three plies."""
    return abs(negamax(board, 3, -LOST_PAWNS, LOST_PAWNS, material(board))) < LOST_PAWNS


def pairings(models: int, ladder: int) -> list[tuple[int, int]]:
    """Who meets whom, by number: the ladder comes first, from the weakest to the strongest.

    Args:
        models: How many; each meets everyone.
        ladder: How many other players; neighbours meet.

    >>> pairings(1, 3)
    [(0, 1), (1, 2), (0, 3), (1, 3), (2, 3)]
    >>> pairings(2, 1)
    [(0, 1), (0, 2), (1, 2)]
    """
    steps = [(number, number + 1) for number in range(ladder - 1)]
    return steps + [
        (other, model) for model in range(ladder, ladder + models) for other in range(model)
    ]


def play(
    players: Sequence[Player],
    meetings: Sequence[tuple[int, int]],
    openings: Sequence[chess.Board],
    engine: FullEngine | None = None,
) -> list[PoolGame]:
    """Play a pool's games: all those of two players at once, a ply of each at a time.

    Args:
        players: The players.
        meetings: Which of them meet, by number, see `pairings`.
        openings: Where games start, with the moves before; each is played with both colours.
        engine: Adjudicates games that are cut off; without one they are drawn.

    Raises:
        RookWorldError: There are fewer than two players.
    """
    if len(players) < 2:
        raise RookWorldError(f"a pool needs two players or more, and has {len(players)}")
    played = []
    with Progress("rated games", 2 * len(meetings) * len(openings), "games") as progress:
        for first, second in meetings:
            started = [
                PoolGame(f"{number} {seats}", board.copy(), seats=seats, opening=number)
                for number, board in enumerate(openings)
                for seats in ((first, second), (second, first))
            ]
            _play_out(players, started, progress)
            score_games(started, engine)
            for game in started:
                game.close()
            played += started
    return played


def _play_out(players: Sequence[Player], started: Sequence[PoolGame], progress: Progress) -> None:
    while running := [game for game in started if game.ending is None]:
        by_player = defaultdict(list)
        for game in running:
            by_player[game.seats[game.board.turn]].append(game)
        for seat, waiting in by_player.items():
            turns = [Turn(game.board, f"{game.opening} {game.board.turn}") for game in waiting]
            for game, choice in zip(waiting, players[seat].choices(turns), strict=True):
                if choice.fault:
                    game.errors.append(str(seat))
                    game.faulty = game.board.turn if game.faulty is None else game.faulty
                game.take(MoveReply(True, choice.move, choice.comment))
                progress.update(1 if game.ending else 0)


def points(played: Sequence[PoolGame], players: int, openings: int, strict: bool) -> np.ndarray:
    """What each player scored against each other, by opening: ``(N, P, P)``, see `Ratings`.

    Args:
        played: All games of a pool.
        players: `P`.
        openings: `N`.
        strict: Whether an illegal or unreadable move loses.
    """
    found = np.zeros((openings, players, players))
    for game in played:
        black, white = game.seats
        won = game.strict_points if strict else game.points
        found[game.opening, white, black] += won
        found[game.opening, black, white] += 1 - won
    return found


# --------------------------------------------------------------------------------------------------
# The ladder
# --------------------------------------------------------------------------------------------------
class Ladder:
    """The players of a pool that are no models; a context manager that holds their engines.

    Args:
        wanted: Names of `LADDER`; none takes all whose engine is there.
        seed: Decides what they leave to chance.
        engine_args: Which engine.

    Attributes:
        engine: Adjudicates; None if there is none.
        left_out: Why players are not in the pool, by name, if none were asked for.

    Raises:
        EngineError: An engine that was asked for is missing, or one that is there fails.
    """

    def __init__(self, wanted: Sequence[str], seed: int, engine_args: EngineArguments) -> None:
        self._seed, self._engine_args, self._stack = seed, engine_args, ExitStack()
        self.engine = open_referee(engine_args)
        if self.engine is not None:
            self._stack.enter_context(self.engine)
        self.left_out: dict[str, str] = {}
        self.players: list[Player] = []
        for name in LADDER:
            if wanted and name not in (*wanted, RANDOM_MOVER):
                continue
            try:
                self.players.append(self._player(name))
            except EngineError as error:
                if wanted:
                    self._stack.close()
                    raise EngineError(f"elo_pool: {name}: {error}") from error
                self.left_out[name] = str(error)

    def _player(self, name: str) -> Player:
        kind, _, number = name.partition("_")
        if kind == RANDOM_MOVER:
            return RandomPlayer(name, self._seed)
        if kind == "fairy":
            return EnginePlayer(name, self._stack.enter_context(FairyEngine(int(number))))
        if kind == "stockfish":
            engine = self.engine or FullEngine(self._engine_args)  # which says what is missing
            return Diluted(name, self._seed, engine, int(number) / 100)
        return Negamax(name, self._seed, int(number or 1))

    def __enter__(self) -> Ladder:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


# --------------------------------------------------------------------------------------------------
# The suite
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RatedResult(SuiteResult):
    """A model's outcome in a pool.

    Args:
        seat: Its number in the pool.
        ratings: All players' ratings, by metric.
    """

    seat: int = 0
    ratings: Mapping[str, Ratings] = field(default_factory=dict)

    def compare(self, other: SuiteResult) -> dict[str, Paired]:
        """See `SuiteResult`; with the difference in Elo to a model of the same pool."""
        changes = SuiteResult.compare(self, other)
        if isinstance(other, RatedResult) and other.ratings is self.ratings:
            rated = self.ratings.items()
            changes |= {name: one.difference(self.seat, other.seat) for name, one in rated}
        return changes


class EloSuite(PlayedSuite[PoolGame], packaged="elo"):
    """Ratings of models in one pool with a ladder, see the module and `rate`.

    Args:
        elo_games: Of every two players that meet; an odd number is rounded up.
        elo_pool: The ladder, see `Ladder`.
        suite_seed: Decides the openings, and what the ladder leaves to chance.
        engine_args: Which engine adjudicates, and plays on the ladder.

    Raises:
        SuiteUnavailableError: An engine that `elo_pool` asks for is missing.
    """

    def __init__(
        self,
        elo_games: int,
        elo_pool: Sequence[str],
        suite_seed: int,
        engine_args: EngineArguments,
    ) -> None:
        self._wanted, self._engine_args = elo_pool, engine_args
        boards = pool_openings(math.ceil(elo_games / 2), suite_seed)
        super().__init__({board.fen(): board for board in boards}, suite_seed)
        try:
            with self._ladder() as ladder:
                self.notes |= _how(ladder)
        except EngineError as error:
            raise SuiteUnavailableError(str(error)) from error

    def _ladder(self) -> Ladder:
        return Ladder(self._wanted, self.seed, self._engine_args)

    def rate(self, models: Sequence[Answerer]) -> list[SuiteResult]:
        """Play the whole pool, and rate all of its players together.

        Args:
            models: One may appear twice.

        Returns:
            A result for each model; each note `pool` has the ratings of all players.

        Raises:
            EngineError: An engine failed.
        """
        openings = list(self.items.values())
        with self._ladder() as ladder:
            names = _different([model.name for model in models], LADDER)
            seated = map(ModelPlayer, names, models)
            players = [*ladder.players, *seated]
            meetings = pairings(len(models), len(ladder.players))
            self.played = played = play(players, meetings, openings, ladder.engine)
        self._names = [player.name for player in players]
        ratings = {
            name: Ratings(points(played, len(players), len(openings), strict))
            for name, strict in (("elo", False), ("strict_elo", True))
        }
        pool = {name: _rating(ratings["elo"], seat) for seat, name in enumerate(self._names)}
        results: list[SuiteResult] = []
        for seat, model in enumerate(models, len(ladder.players)):
            self._seat = seat
            result = super().run(model)
            content = {item.name: getattr(result, item.name) for item in fields(SuiteResult)}
            content["n"] = len(result.values["score"])
            content["estimates"] = {name: rated.of(seat) for name, rated in ratings.items()}
            content["notes"] = {**result.notes, "pool": pool}
            results.append(RatedResult(**content, seat=seat, ratings=ratings))
        return results

    def run(self, model: Answerer) -> SuiteResult:
        """See `Suite`; the pool has no other model."""
        return self.rate([model])[0]

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`; of the pool that was played last, the games of one model."""
        starts = list(self.items)
        for game in self.played:
            if self._seat not in game.seats:
                continue
            side = bool(game.seats.index(self._seat))
            opponent = self._names[game.seats[not side]]
            name = f"{chess.COLOR_NAMES[side]} {opponent} {starts[game.opening]}"
            yield name, judge(game, side, str(self._seat)), [opponent]

    def players(self, model: str, game: PoolGame) -> tuple[str, str]:
        """See `PlayedSuite`."""
        black, white = game.seats
        return self._names[white], self._names[black]

    def final_board(self, game: PoolGame) -> chess.Board:
        """See `PlayedSuite`."""
        board = game.board.copy()
        for move in game.moves:
            board.push(move)
        return board


def judge(game: PoolGame, side: chess.Color, seat: str) -> dict[str, float]:
    """The suite's metrics for a game that is over, as one of its players sees it.

    Args:
        game: The game.
        side: Its colour.
        seat: What its errors are noted as.
    """
    white, strict = game.points, game.strict_points
    faults = game.errors.count(seat)
    return {
        "score": white if side else 1 - white,
        "strict_score": strict if side else 1 - strict,
        "illegal_moves": faults,
        "legal_games": not faults,
        "capped": game.ending == "capped",
        "half_moves": game.half_moves,
    }


def _different(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names, with a number behind one that was there before.

    >>> _different(["a", "a", "random"], ["random"])
    ['a', 'a (2)', 'random (2)']
    """
    seen, found = [*taken], []
    for name in names:
        seen.append(name)
        found.append(name if seen.count(name) == 1 else f"{name} ({seen.count(name)})")
    return found


def _rating(ratings: Ratings, seat: int) -> dict[str, Any]:
    found = ratings.of(seat)
    low, high = (None if math.isnan(bound) else round(bound, 1) for bound in found.interval)
    return {"elo": round(found.value, 1), "low": low, "high": high, "games": found.n}


def _how(ladder: Ladder) -> dict[str, Any]:
    """What the notes say of a pool."""
    found: dict[str, Any] = {"adjudication": adjudication(ladder.engine)}
    if any(isinstance(player, Diluted) for player in ladder.players) and ladder.engine:
        found["engine"] = f"{ladder.engine.name}, depth {ladder.engine.depth}"
    if ladder.left_out:
        found["not_in_pool"] = ladder.left_out
    return found
