"""A pool of Stockfish processes that value every legal move of a position.

Each legal move is played, and a single-threaded process searches the position after it. There are two
passes: all moves to a shallow limit, then the best five to the full limit, repeated until all of the
best five have been searched to the full limit. The other moves keep their shallow values; engines, too,
search weak moves less deeply. This takes a third of the time of one MultiPV search of all moves to the
same depth. Judged by a search three plies deeper, its best move loses 0.0040 of win probability on
average, that of MultiPV 0.0034 (`benchmarks/engine.py`).

The hash tables are cleared before each position, the order of searches is fixed, and the limit is never
time. So values depend neither on the machine's load nor on earlier searches.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from subprocess import DEVNULL
from typing import Any, TypeVar

import chess.engine

from ..common.errors import EngineError
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import MATE_CP, Values, ValueSource
from . import EngineArguments

logger = logging.getLogger(__name__)


_PATH_VARIABLE = "STOCKFISH_PATH"


_USUAL_PLACES = (
    "/usr/games/stockfish",  # Debian
    "/usr/local/bin/stockfish",
    "/opt/homebrew/bin/stockfish",
)


_FAIRY_VARIABLE = "FAIRY_STOCKFISH_PATH"


_FAIRY_PLACES = ("fairy-stockfish", "/usr/games/fairy-stockfish")  # the second is Debian's


HASH_MB = 16  # of each engine process; values depend on it


TIMEOUT_S = 300.0  # after which the search of a position counts as failed; none comes near it


_HANDSHAKE_S = 10.0


_REAP_S = 5.0  # how long to wait for a killed process to end


_MOST_IN_A_ROW = 5  # positions given up before the engine itself counts as faulty


_INFO = chess.engine.INFO_BASIC | chess.engine.INFO_SCORE


T = TypeVar("T")


def find_engine(path: str | None = None) -> str:
    """Find the engine's program. If a path is given, no other is tried.

    Args:
        path: `EngineArguments.engine_path`.

    Raises:
        EngineError: No engine was found, or it is not executable. The message says what to do.
    """
    return _find(
        path or os.environ.get(_PATH_VARIABLE),
        ("stockfish", *_USUAL_PLACES),
        "install one (Debian and Ubuntu: apt-get install stockfish, macOS: brew install stockfish) or "
        f"give its path in {_PATH_VARIABLE} or engine_path; if it is a file, make it executable",
    )


def find_fairy_stockfish() -> str:
    """Find Fairy-Stockfish, whose ``UCI_Elo`` begins at 500 (in Debian's version 11.1 at 1350).

    Raises:
        EngineError: It was not found. The message says what to do.
    """
    return _find(
        os.environ.get(_FAIRY_VARIABLE),
        _FAIRY_PLACES,
        "install it (Debian and Ubuntu: apt-get install fairy-stockfish) or give its path in "
        f"{_FAIRY_VARIABLE}",
    )


def _find(given: str | None, usual: Sequence[str], remedy: str) -> str:
    """The program that was given, and no other; without one, the first of the usual ones that is there.

    Raises:
        EngineError: None is there, or it is not executable; the message ends with the remedy.
    """
    places = (os.path.expanduser(given),) if given else usual
    found = next(filter(None, map(shutil.which, places)), None)  # paths, or names on the PATH
    if found is None:
        raise EngineError(f"no program {' or '.join(map(repr, places))}; {remedy}")
    return found


# --------------------------------------------------------------------------------------------------
# A process
# --------------------------------------------------------------------------------------------------
class EngineProcess(chess.engine.UciProtocol):
    """An engine process that reports its identity and can be killed.

    Attributes:
        fault: Resolves with the reason if python-chess gives up a search, as at an illegal ``bestmove``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: asyncio.Future[Exception] = asyncio.Future()

    @classmethod
    async def start(cls, path: str) -> EngineProcess:
        # A process group of its own: Ctrl-C should reach only our process, which then ends the engine.
        _, process = await cls.popen(path, stderr=DEVNULL, setpgrp=True)
        try:
            await process.initialize()
            wanted = {"Threads": 1, "Hash": HASH_MB}
            await process.configure({k: v for k, v in wanted.items() if k in process.options})
            await process.ping()
        except BaseException:
            await process.end()
            raise
        return process

    async def end(self) -> None:
        """Kill the process and wait for its end: closing the loop earlier would leave a zombie."""
        assert self.transport is not None
        self.transport.close()
        await asyncio.wait([self.returncode], timeout=_REAP_S)

    def identity(self) -> str:
        """The engine's name, and the options that values depend on."""
        names = [name for name in ("EvalFile", "Hash", "Threads") if name in self.options]
        options = (f"{name} {self.config.get(name, self.options[name].default)}" for name in names)
        return f"{self.id.get('name', 'unnamed engine')} ({', '.join(options)})"


def _keep_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Hand what python-chess can only report to the loop to the process that it is about.

    It also complains about searches that were cut short; users need not see that.
    """
    logger.debug("%s", context)
    process, error = context.get("protocol"), context.get("exception")
    if isinstance(process, EngineProcess) and error and not process.fault.done():
        process.fault.set_result(error)


# --------------------------------------------------------------------------------------------------
# The pool
# --------------------------------------------------------------------------------------------------
class EnginePool:
    """Engine processes behind a blocking interface; close it after use.

    If a process dies, hangs or answers nonsense, it is replaced and its position is tried once more.

    Args:
        args: Program, limit, number of processes.

    Attributes:
        source: Engine and limit.
        given_up: Positions that were given up, with the reason.

    Raises:
        EngineError: No engine was found, or it does not speak UCI.
    """

    def __init__(self, args: EngineArguments) -> None:
        self._path = find_engine(args.engine_path)
        self._args = args
        self._processes: list[EngineProcess | None] = [None] * args.workers()
        self._in_a_row = 0
        self._work: asyncio.Task[Any] | None = None
        self.given_up: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_keep_fault)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._processes[0] = first = self._run(self._start())
        except EngineError:
            self._stop_loop()
            raise
        self.source = ValueSource(first.identity(), limit_text(args.engine_depth))
        atexit.register(self.close)  # if nobody closes it before

    def values(self, positions: Sequence[str], on_value: Callable[[str, Values], None]) -> None:
        """Value positions in parallel; positions that are given up are added to `given_up`.

        Args:
            positions: Positions as `position_asked` writes them.
            on_value: Called in another thread with each position and its values when they are known.

        Raises:
            EngineError: The engine failed at several positions in a row.
        """
        waiting = iter(positions)
        slots = range(min(len(self._processes), len(positions)))
        self._run(self._serve_all([self._serve(slot, waiting, on_value) for slot in slots]))

    def close(self) -> None:
        """End the processes."""
        if self._loop.is_running():
            self._run(self._end())
            self._stop_loop()
            atexit.unregister(self.close)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self._interrupt()
        await asyncio.gather(*(self._discard(slot) for slot in range(len(self._processes))))

    async def _interrupt(self) -> None:
        """Stop the work of a call that Ctrl-C ended; it would go on and restart its processes."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def _serve_all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        await self._interrupt()
        self._work = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                for item in work:
                    group.create_task(item)
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _serve(
        self, slot: int, waiting: Iterator[str], on_value: Callable[[str, Values], None]
    ) -> None:
        for position in waiting:
            values = await self._value(slot, position)
            if values is not None:
                self._in_a_row = 0
                on_value(position, values)
                continue
            self._in_a_row += 1
            if self._in_a_row >= _MOST_IN_A_ROW:
                reason = self.given_up[position]
                raise EngineError(
                    f"{self._path!r} failed at {self._in_a_row} positions in a row (last reason: "
                    f"{reason}); give another engine, or a lower engine_depth"
                )

    async def _value(self, slot: int, position: str) -> Values | None:
        for attempt in (1, 2):
            try:
                process = self._processes[slot] = self._processes[slot] or await self._start()
                return await self._search(process, position)
            except (TimeoutError, chess.engine.EngineError, EngineError, NonsenseError) as error:
                reason = str(error)
                logger.warning("engine replaced at %s (try %d of 2): %s", position, attempt, reason)
                await self._discard(slot)
            except asyncio.CancelledError:  # in the middle of a search
                await self._discard(slot)
                raise
        self.given_up[position] = reason
        return None

    async def _search(self, process: EngineProcess, position: str) -> Values:
        search = asyncio.create_task(value_moves(process, position, self._args.engine_depth))
        ended, fault = process.returncode, process.fault
        # Wait for any: python-chess would wait forever if the process dies before the search begins, and
        # after a fault.
        each: list[asyncio.Future[Any]] = [search, ended, fault]
        try:
            await asyncio.wait(each, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if search.done():
                return search.result()
            if fault.done():
                raise EngineError(f"the engine's answer cannot be right ({fault.result()})")
            if ended.done():
                raise EngineError(f"engine process died (exit code: {ended.result()})")
            raise TimeoutError(f"no answer within {TIMEOUT_S:g} s")
        finally:
            if not search.done():
                # In this order: python-chess fails if a cancelled search loses its process.
                await process.end()
                search.cancel()
                await asyncio.gather(search, return_exceptions=True)

    async def _start(self) -> EngineProcess:
        """Start a process.

        Raises:
            EngineError: It cannot be started, or does not speak UCI.
        """
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await EngineProcess.start(self._path)
        except (OSError, chess.engine.EngineError) as error:  # a time-out is an OSError
            why = str(error) or f"no answer to 'uci' within {_HANDSHAKE_S:g} s"
            raise EngineError(
                f"{self._path!r} is not a UCI engine that runs here ({why}); give another program"
            ) from error

    async def _discard(self, slot: int) -> None:
        process, self._processes[slot] = self._processes[slot], None
        if process is not None:
            await process.end()


# --------------------------------------------------------------------------------------------------
# Valuing
# --------------------------------------------------------------------------------------------------
def first_depth(depth: int) -> int:
    """The depth of the first pass, over all moves; two plies less take about a quarter of the nodes."""
    return max(2, depth - 2)


def limit_text(depth: int) -> str:
    """How far moves are searched, in words.

    >>> limit_text(10)
    'depth 10 for the best 5 moves, 8 for the others'
    """
    shallow = first_depth(depth)
    if shallow == depth:
        return f"depth {depth}"
    return f"depth {depth} for the best {MAX_CANDIDATES} moves, {shallow} for the others"


class NonsenseError(Exception):
    """The engine's answer cannot be right."""


async def value_moves(engine: chess.engine.Protocol, fen: str, depth: int) -> Values:
    """Centipawns from the side to move, by move, best first.

    Args:
        engine: It is asked about the position after each move.
        fen: The position.
        depth: Plies of the search of each of the best five moves, the move included.
    """
    board = chess.Board(fen)
    game = object()  # a new game makes python-chess clear the hash
    first = first_depth(depth)
    values: dict[chess.Move, int] = {}
    for move in board.legal_moves:
        values[move] = await _value_move(engine, board, move, first, game)
    deep: set[chess.Move] = set() if first < depth else set(values)
    while waiting := [move for move in _best_first(values)[:MAX_CANDIDATES] if move not in deep]:
        for move in waiting:
            values[move] = await _value_move(engine, board, move, depth, game)
        deep.update(waiting)
    return {move.uci(): values[move] for move in _best_first(values)}


def _best_first(values: dict[chess.Move, int]) -> list[chess.Move]:
    return sorted(values, key=lambda move: -values[move])  # stable: equal moves keep their order


async def _value_move(
    engine: chess.engine.Protocol, board: chess.Board, move: chess.Move, depth: int, game: object
) -> int:
    """Value of a move in centipawns from the side to move.

    Raises:
        NonsenseError: The engine's answer cannot be right.
    """
    board.push(move)
    try:
        if not any(board.legal_moves):
            return MATE_CP - 1 if board.is_check() else 0
        limit = chess.engine.Limit(depth=depth - 1)
        info = await engine.analyse(board, limit, game=game, info=_INFO)
    finally:
        board.pop()
    if "score" not in info or "depth" not in info:
        raise NonsenseError("the answer has no score or no depth")
    if info["depth"] < depth - 1:
        raise NonsenseError("the search was less deep than asked")
    score = info["score"].relative  # of the side that moves next
    value = -score.score(mate_score=MATE_CP)
    is_mated = score.is_mate() and value > 0
    return value - 1 if is_mated else value  # to mate in n needs the move just played as well
