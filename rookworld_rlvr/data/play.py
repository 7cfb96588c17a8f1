"""Games played to their end, by an engine that errs now and then or at random, kept in a file.

Each game follows from the seed and its own number alone. So the games are the same whatever the number
of workers, and a run that was stopped goes on with the parts that are missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import chess
import chess.engine
import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import EngineError, RookWorldError
from ..common.files import replace_text
from ..common.progress import Progress
from ..engine.pool import TIMEOUT_S, EngineProcess, find_engine
from . import sources
from .parquet import write_parquet

logger = logging.getLogger(__name__)


T = TypeVar("T")


S = TypeVar("S")


PLAYED, RANDOM = KINDS = ("played", "random")


ENGINE_DEPTH = 4  # plies; a game then takes about a fifth of a second of one core


RANDOM_MOVES = 1 / 7  # of the moves of a played game


MOST_FIRST_PLIES = 8  # random moves before the engine plays


LONGEST_GAME = 300  # plies


GAMES_IN_PART = 100


GAMES = pa.schema([(name, pa.string()) for name in ("kind", "moves", "result", "ending")])
"""Columns of a file of games, a row for each.

- `kind`: ``played`` by the engine, or ``random``;
- `moves`: UCI, with blanks between them, from the start position;
- `result`: ``1-0``, ``0-1``, ``1/2-1/2``, or ``*`` if the game was cut off;
- `ending`: python-chess's name of the termination in lower case, or ``length``.
"""


@dataclass(frozen=True, slots=True)
class Play:
    """How games are played; with a game's number, all that its moves follow from.

    Attributes:
        seed: Any number.
        games: How many games there are.
        random_share: Share of them that are random from the first move to the last.
    """

    seed: int
    games: int
    random_share: float

    def kind(self, number: int) -> str:
        """Whether a game is played or random: both kinds are spread evenly over the numbers."""
        before, after = (int(n * self.random_share) for n in (number, number + 1))
        return RANDOM if after > before else PLAYED


def play_games(path: Path, play: Play, engine_path: str | None, workers: int) -> None:
    """Play games, and keep them in a file that appears when all of them have been played.

    Until then, its parts are in a folder beside it, from which a later start goes on.

    Args:
        path: The Parquet file, with the columns `GAMES`.
        play: How they are played.
        engine_path: See `EngineArguments`.
        workers: Number of processes, each with an engine of its own.

    Raises:
        EngineError: No engine was found, or it fails at a game again and again.
        RookWorldError: The folder holds parts of other games.
    """
    folder = path.with_name(f"{path.name}.parts")
    engine = asyncio.run(_engine_name(find_engine(engine_path))) if play.random_share < 1 else None
    question = {**asdict(play), "engine": engine, "depth": ENGINE_DEPTH}
    check_question(folder, question)
    starts = range(0, play.games, GAMES_IN_PART)
    parts = [folder / f"{start:09d}.parquet" for start in starts]
    missing = [
        (start, part) for start, part in zip(starts, parts, strict=True) if not part.exists()
    ]
    with Progress("playing games", play.games, "games") as progress:
        progress.update(play.games - sum(_games_from(start, play) for start, _ in missing))
        work = partial(_play_part, play, engine_path)
        for count in in_processes(work, missing, workers):
            progress.update(count)
    write_parquet(path, GAMES, map(pq.read_table, parts), lambda: question)
    shutil.rmtree(folder)


def check_question(folder: Path, question: dict[str, Any]) -> None:
    """Keep what is asked in a folder, or compare it with what the folder was made for.

    Raises:
        RookWorldError: They differ.
    """
    path = folder / "question.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        replace_text(path, json.dumps(question))
    elif (before := json.loads(path.read_text(encoding="utf-8"))) != question:
        raise RookWorldError(
            f"games_file: {folder} holds games of a run with other settings ({before}, now {question}); "
            "give those again, remove the folder, or give another games_file"
        )


def _games_from(start: int, play: Play) -> int:
    return min(GAMES_IN_PART, play.games - start)


async def _engine_name(path: str) -> str:
    engine = await EngineProcess.start(path)
    try:
        return engine.identity()
    finally:
        await engine.end()


# --------------------------------------------------------------------------------------------------
# One part
# --------------------------------------------------------------------------------------------------
def _play_part(play: Play, engine_path: str | None, missing: tuple[int, Path]) -> int:
    """Play the games of one part, write its file, and return how many they are."""
    start, path = missing
    numbers = range(start, start + _games_from(start, play))
    games = asyncio.run(_play_all(play, engine_path, numbers))
    write_parquet(path, GAMES, [pa.Table.from_pylist(games, GAMES)], dict)
    return len(games)


async def _play_all(
    play: Play, engine_path: str | None, numbers: Sequence[int]
) -> list[dict[str, str]]:
    player = _Player(engine_path)
    try:
        return [await _game(play, number, player) for number in numbers]
    finally:
        await player.end()


async def _game(play: Play, number: int, player: _Player) -> dict[str, str]:
    kind = play.kind(number)
    for attempt in (1, 2):
        rng = random.Random(f"{play.seed} {number}")
        try:
            board = await _played(rng, number, player) if kind == PLAYED else random_game(rng)
            return _row(kind, board)
        except (TimeoutError, chess.engine.EngineError) as error:
            reason = str(error) or f"no move within {TIMEOUT_S:g} s"
            logger.warning("engine replaced at game %d (try %d of 2): %s", number, attempt, reason)
            await player.end()
    raise EngineError(
        f"the engine failed at game {number} twice ({reason}); give another one in engine_path"
    )


async def _played(rng: random.Random, number: int, player: _Player) -> chess.Board:
    board, first_plies = chess.Board(), rng.randrange(MOST_FIRST_PLIES + 1)
    while board.ply() < LONGEST_GAME and board.outcome() is None:
        if board.ply() < first_plies or rng.random() < RANDOM_MOVES:
            board.push(rng.choice(list(board.legal_moves)))
        else:
            board.push(await player.move(board, number))
    return board


def random_game(rng: random.Random) -> chess.Board:
    """A game of random legal moves, to its end or its longest length."""
    board = chess.Board()
    while board.ply() < LONGEST_GAME and board.outcome() is None:
        board.push(rng.choice(list(board.legal_moves)))
    return board


def _row(kind: str, board: chess.Board) -> dict[str, str]:
    outcome = board.outcome()
    return {
        "kind": kind,
        "moves": " ".join(move.uci() for move in board.move_stack),
        "result": outcome.result() if outcome else "*",
        "ending": outcome.termination.name.lower() if outcome else "length",
    }


class _Player:
    """An engine process that is started when it is first asked for a move."""

    def __init__(self, engine_path: str | None) -> None:
        self._path = engine_path
        self._engine: EngineProcess | None = None

    async def move(self, board: chess.Board, game: int) -> chess.Move:
        """The engine's move; its hash is cleared when the game is another one.

        Raises:
            chess.engine.EngineError: It died, or gave no legal move.
            TimeoutError: It gave none in time.
        """
        if self._engine is None:
            self._engine = await EngineProcess.start(find_engine(self._path))
        limit = chess.engine.Limit(depth=ENGINE_DEPTH)
        asked = asyncio.ensure_future(self._engine.play(board, limit, game=game))
        # Wait for either: python-chess would wait forever if the process dies before the search begins.
        waited: list[asyncio.Future[Any]] = [asked, self._engine.returncode]
        await asyncio.wait(waited, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            has_died = self._engine.returncode.done()
            await self.end()  # before the search is cancelled, as in `EnginePool`
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            raise chess.engine.EngineError("its process died") if has_died else TimeoutError
        move = asked.result().move
        if move is None:
            raise chess.engine.EngineError(f"no move in {board.fen()}")
        return move

    async def end(self) -> None:
        """End the process, if there is one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.end()


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------
def read_play(path: Path) -> dict[str, Any]:
    """How the games of a file were played, as `play_games` noted it.

    Raises:
        RookWorldError: It is no such file.
    """
    note = sources.read_provenance(path)
    if note is None or not {"seed", "games", "random_share"} <= note.keys():
        raise RookWorldError(
            f"games_file: {str(path)!r} was not written by `rookworld prepare --games`; give another "
            "file, or one that does not exist yet to play the games anew"
        )
    return note


# --------------------------------------------------------------------------------------------------
# Processes
# --------------------------------------------------------------------------------------------------
def in_processes(work: Callable[[S], T], items: Sequence[S], workers: int) -> Iterator[T]:
    """The results of `work` for each item, in their order.

    Args:
        work: It and the items can be pickled, unless there is one worker: that is this process.
        items: They are handed out in order, only a few ahead of what has been taken.
        workers: Number of processes.

    Raises:
        RookWorldError: A process was killed. What `work` raises is raised here.
    """
    if workers == 1 or len(items) < 2:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(min(workers, len(items)), context, _follow_parent)
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(executor.submit(work, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RookWorldError(
            "a worker process was killed, perhaps for memory; start again, with fewer engine_workers"
        ) from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _follow_parent() -> None:
    """End this process when its parent ends, and at once on Ctrl-C: it has nothing to tidy up."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()

    def follow() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
