"""Label positions with the values of their legal moves, and keep the values on disk.

All processes and runs of a machine share the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..common.errors import IllegalPositionError, RookWorldError
from ..common.progress import Progress
from ..tasks import rules
from ..tasks.types import Values, ValueSource
from . import EngineArguments
from .pool import EnginePool

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, engine TEXT NOT NULL, search TEXT NOT NULL, UNIQUE (engine, search)
);
CREATE TABLE IF NOT EXISTS action_values (
    source INTEGER NOT NULL, position TEXT NOT NULL, depth INTEGER NOT NULL, moves TEXT NOT NULL,
    PRIMARY KEY (source, position)
) WITHOUT ROWID;
"""


_WAIT_S = 60.0  # how long to wait while another process writes


def default_cache_path() -> Path:
    """``$XDG_CACHE_HOME/rookworld-rlvr/action_values.sqlite``, by default in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rookworld-rlvr" / "action_values.sqlite"


class ValueCache:
    """A SQLite file of the values of moves, keyed by engine, limit and position.

    Each row is a transaction of its own, so a crash loses at most the row being written. Unlike SQLite's
    write-ahead log, the rollback journal used here also works in a folder that several machines share.

    Args:
        path: The file, made if it is missing; None takes `default_cache_path`. ``:memory:`` keeps
            nothing.
        source: The engine and limit of the values.

    Attributes:
        path: Path of the file.

    Raises:
        RookWorldError: The file cannot be written or is not such a cache. The methods raise it too.
    """

    def __init__(self, path: str | Path | None, source: ValueSource) -> None:
        self.path = os.path.expanduser(path or default_cache_path())
        try:
            if self.path != ":memory:":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            # The event loop's thread writes and the caller's reads, but never at the same time.
            self._file = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error
        key = (source.engine, source.limit)
        self._ask("INSERT OR IGNORE INTO sources (engine, search) VALUES (?, ?)", *key)
        (self._id,) = self._ask("SELECT id FROM sources WHERE engine = ? AND search = ?", *key)

    def get(self, positions: Iterable[str]) -> dict[str, Values]:
        """The values of the positions that the cache holds."""
        query = "SELECT moves FROM action_values WHERE source = ? AND position = ?"
        rows = ((position, self._ask(query, self._id, position)) for position in positions)
        return {position: _read(*row) for position, row in rows if row is not None}

    def put(self, position: str, values: Values) -> None:
        """Store a position's values, unless another process has stored some already."""
        moves = " ".join(f"{move} {cp}" for move, cp in values.items())
        # The depth, which earlier versions kept for each position, is part of the source's limit.
        query = "INSERT OR IGNORE INTO action_values VALUES (?, ?, 0, ?)"
        self._ask(query, self._id, position, moves)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _ask(self, query: str, *values: str | int) -> Any:
        """The first row of a query's result; None if it is empty."""
        try:
            return self._file.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> RookWorldError:
        return RookWorldError(
            f"engine_cache: cannot use {self.path!r} ({error}); give another path, or ':memory:' to "
            "keep nothing"
        )


def _read(moves: str) -> Values:
    words = moves.split(" ")
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


class Labeller(AbstractContextManager["Labeller"]):
    """Values positions: it takes them from the cache on disk, or else asks the engine.

    Close it, or use it as a context manager. It does not survive a fork: open one in each process.

    Args:
        args: Engine, limit and cache.

    Attributes:
        source: Engine and limit of all values.
        searched: How many positions the engine has searched.
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

    def values(self, fens: Sequence[str]) -> list[Values | None]:
        """The values of each position, best first; None for a position that was given up.

        Args:
            fens: Any number of positions, in any order. Repeated ones are searched once.

        Raises:
            IllegalPositionError: A position is illegal, or has no legal move. Nothing was searched then.
            EngineError: The engine failed at several positions in a row.
            RookWorldError: The cache cannot be used.
        """
        positions = [position_asked(fen) for fen in fens]
        with self._lock:
            asked = dict.fromkeys(positions)
            known = self._cache.get(asked)
            waiting = [one for one in asked if one not in known and one not in self.given_up]

            def keep(position: str, values: Values) -> None:
                self._cache.put(position, values)
                known[position] = values
                self.searched += 1
                progress.update()

            with Progress("valuing positions", len(waiting), "positions") as progress:
                self._pool.values(waiting, keep)
        return [known.get(position) for position in positions]

    def close(self) -> None:
        """End the engine's processes and close the cache."""
        self._pool.close()
        self._cache.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def position_asked(fen: str) -> str:
    """The FEN under which a position is searched and cached.

    Values depend on the halfmove clock but not on the move number, which is set to 1.

    Raises:
        IllegalPositionError: The position is not legal, or has no legal move.
    """
    board = rules.board_of(fen)
    if not any(board.legal_moves):
        raise IllegalPositionError(f"no legal move to value in {fen!r}: the game is over")
    board.fullmove_number = 1
    return board.fen()
