"""Label positions with what their legal moves are worth."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ..common.errors import RookWorldError
from ..tasks.types import PositionValues
from .cache import ValueCache
from .pool import EngineArguments, EnginePool, position_asked


class Labeller:
    """Values of positions: from the cache on disk, else from the engine.

    Close it, or use it as a context manager. It does not survive a fork: open one in each process.

    Args:
        args: Engine, limit and cache.

    Attributes:
        source: Engine and limit, which are the same for all values.
        searched: How many positions the engine has valued.
        given_up: Why the engine gave up on positions, by position; they are not asked again.

    Raises:
        EngineError: No engine, or none that speaks UCI.
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

    def values(
        self, fens: Sequence[str], on_value: Callable[[], object] | None = None
    ) -> list[PositionValues | None]:
        """The values of each position, None where the engine gave up on it.

        Args:
            fens: Positions, in any number and order; one that stands twice is asked once.
            on_value: Called for each position that the engine has valued, for a progress bar.

        Raises:
            IllegalPositionError: One of them is no position, or has no legal move; none was asked.
            EngineError: The engine fails at position after position.
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

            self._pool.values(waiting, keep)
        return [known.get(position) for position in positions]

    def close(self) -> None:
        """End the engine's processes and close the cache."""
        self._pool.close()
        self._cache.close()

    def __enter__(self) -> Labeller:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
