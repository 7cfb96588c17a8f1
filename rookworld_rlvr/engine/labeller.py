"""Label positions with the values of their legal moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ..common.errors import RookWorldError
from ..tasks.types import PositionValues
from .cache import ValueCache
from .pool import EngineArguments, EnginePool, position_asked


class Labeller:
    """Values positions: it takes them from the cache on disk, or else asks the engine.

    Close it, or use it as a context manager. It does not survive a fork: open one in each process.

    Args:
        args: Engine, limit and cache.

    Attributes:
        source: Engine and limit of all values.
        searched: How many positions the engine has searched.
        seconds: How long that took.
        given_up: Positions that were given up, with the reason; they are not searched again.

    Raises:
        EngineError: No engine was found, or it does not speak UCI.
        RookWorldError: The cache cannot be used.
    """

    def __init__(self, args: EngineArguments) -> None:
        self._pool = EnginePool(args)
        try:
            self._cache = ValueCache(args.engine_cache, self._pool.source)
        except RookWorldError:
            self._pool.close()
            raise
        self._lock = threading.Lock()
        self.source = self._pool.source
        self.given_up: Mapping[str, str] = self._pool.given_up
        self.searched = 0
        self.seconds = 0.0

    def values(
        self, fens: Sequence[str], on_value: Callable[[], object] | None = None
    ) -> list[PositionValues | None]:
        """The values of each position; None for a position that was given up.

        Args:
            fens: Any number of positions, in any order. Repeated ones are searched once.
            on_value: Called for each position that the engine has searched, for a progress bar.

        Raises:
            IllegalPositionError: A position is illegal, or has no legal move. Nothing was searched then.
            EngineError: The engine failed at several positions in a row.
            RookWorldError: The cache cannot be used.
        """
        positions = [position_asked(fen) for fen in fens]
        with self._lock:
            known = self._cache.get(dict.fromkeys(positions))
            waiting = [
                position
                for position in dict.fromkeys(positions)
                if position not in known and position not in self.given_up
            ]

            def keep(position: str, values: PositionValues) -> None:
                self._cache.put(position, values)
                known[position] = values
                self.searched += 1
                if on_value is not None:
                    on_value()

            started = time.perf_counter()
            self._pool.values(waiting, keep)
            self.seconds += time.perf_counter() - started
        return [known.get(position) for position in positions]

    def close(self) -> None:
        """End the engine's processes and close the cache."""
        self._pool.close()
        self._cache.close()

    def __enter__(self) -> Labeller:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
