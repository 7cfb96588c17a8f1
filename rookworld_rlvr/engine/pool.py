"""A pool of Stockfish processes that value positions.

`valuation` defines how a position is valued; `labeller` keeps values on disk.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from subprocess import DEVNULL
from typing import Any, TypeVar

import chess.engine

from ..common.errors import EngineError
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import ActionValue, PositionValues, ValueSource
from .arguments import HASH_MB, EngineArguments, find_engine
from .valuation import LastInfoProtocol, NonsenseError, limit_text, value_moves

logger = logging.getLogger(__name__)


_HANDSHAKE_S = 10.0


_REAP_S = 5.0  # how long to wait for a killed process to end


_MOST_IN_A_ROW = 5  # positions given up before the engine itself counts as faulty


T = TypeVar("T")


# --------------------------------------------------------------------------------------------------
# A process
# --------------------------------------------------------------------------------------------------
class _Process(LastInfoProtocol):
    """An engine process that reports its identity and can be killed."""

    @classmethod
    async def start(cls, path: str) -> _Process:
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
        self._processes: list[_Process | None] = [None] * args.workers()
        self._in_a_row = 0
        self._work: asyncio.Task[Any] | None = None
        self.given_up: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        # python-chess complains about searches that were cut short; users need not see that.
        self._loop.set_exception_handler(lambda _, context: logger.debug("%s", context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._processes[0] = first = self._run(self._start())
        except EngineError:
            self._stop_loop()
            raise
        self.source = ValueSource(first.identity(), limit_text(args.engine_depth))
        atexit.register(self.close)  # if nobody closes it before

    def values(
        self, positions: Sequence[str], on_value: Callable[[str, PositionValues], None]
    ) -> None:
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
        self, slot: int, waiting: Iterator[str], on_value: Callable[[str, PositionValues], None]
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
                    f"{reason}); give another engine, or a larger engine_timeout"
                )

    async def _value(self, slot: int, position: str) -> PositionValues | None:
        for attempt in (1, 2):
            try:
                process = self._processes[slot] = self._processes[slot] or await self._start()
                moves = await self._search(process, position)
            except (TimeoutError, chess.engine.EngineError, EngineError, NonsenseError) as error:
                reason = str(error)
                logger.warning("engine replaced at %s (try %d of 2): %s", position, attempt, reason)
                await self._discard(slot)
            except asyncio.CancelledError:  # in the middle of a search
                await self._discard(slot)
                raise
            else:
                depth = min(depth for _, depth in list(moves.values())[:MAX_CANDIDATES])
                values = tuple(ActionValue(move.uci(), cp) for move, (cp, _) in moves.items())
                return PositionValues(values, depth, self.source)
        self.given_up[position] = reason
        return None

    async def _search(self, process: _Process, position: str) -> dict[chess.Move, tuple[int, int]]:
        search = asyncio.create_task(value_moves(process, position, self._args.engine_depth))
        ended = process.returncode
        # Wait for either: python-chess would wait forever if the process dies before the search begins.
        either: list[asyncio.Future[Any]] = [search, ended]
        try:
            await asyncio.wait(
                either, timeout=self._args.engine_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if search.done():
                return search.result()
            if ended.done():
                raise EngineError(f"engine process died (exit code: {ended.result()})")
            raise TimeoutError(f"no answer within {self._args.engine_timeout:g} s")
        finally:
            if not search.done():
                # In this order: python-chess fails if a cancelled search loses its process.
                await process.end()
                search.cancel()
                await asyncio.gather(search, return_exceptions=True)

    async def _start(self) -> _Process:
        """Start a process.

        Raises:
            EngineError: It cannot be started, or does not speak UCI.
        """
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await _Process.start(self._path)
        except (OSError, chess.engine.EngineError) as error:  # a time-out is an OSError
            why = str(error) or f"no answer to 'uci' within {_HANDSHAKE_S:g} s"
            raise EngineError(
                f"{self._path!r} is not a UCI engine that runs here ({why}); give another program"
            ) from error

    async def _discard(self, slot: int) -> None:
        process, self._processes[slot] = self._processes[slot], None
        if process is not None:
            await process.end()
