"""Values that were searched once, kept on disk for every process and run of this machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ..common.errors import RookWorldError
from ..tasks.types import ActionValue, PositionValues, ValueSource

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, engine TEXT NOT NULL, search TEXT NOT NULL, UNIQUE (engine, search)
);
CREATE TABLE IF NOT EXISTS action_values (
    source INTEGER NOT NULL, position TEXT NOT NULL, depth INTEGER NOT NULL, moves TEXT NOT NULL,
    PRIMARY KEY (source, position)
) WITHOUT ROWID;
"""


_WAIT_S = 60.0  # for another process's write


def default_cache_path() -> Path:
    """``$XDG_CACHE_HOME/rookworld-rlvr/action_values.sqlite``, under ``~/.cache`` without it."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rookworld-rlvr" / "action_values.sqlite"


class ValueCache:
    """A SQLite file of `PositionValues`, keyed by engine, limit and position.

    Each row is a transaction of its own, so a crash loses at most the row being written. The
    rollback journal, unlike SQLite's write-ahead log, also works where the folder is shared by
    several machines.

    Args:
        path: The file; made where it is missing. ``:memory:`` keeps nothing.
        source: Whose values they are.

    Raises:
        RookWorldError: The file cannot be written, or is no such cache. So do the methods.
    """

    def __init__(self, path: str | Path, source: ValueSource) -> None:
        self._path = os.path.expanduser(path)
        self._source = source
        try:
            if self._path != ":memory:":
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            # The event loop's thread writes, the caller's reads, never at once.
            self._file = sqlite3.connect(
                self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
            self._source_id = self._register(source)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error

    def get(self, positions: Iterable[str]) -> dict[str, PositionValues]:
        """The values of those positions that are known."""
        found = {}
        try:
            for position in positions:
                row = self._file.execute(
                    "SELECT depth, moves FROM action_values WHERE source = ? AND position = ?",
                    (self._source_id, position),
                ).fetchone()
                if row is not None:
                    found[position] = self._read(*row)
        except sqlite3.Error as error:
            raise self._fault(error) from error
        return found

    def missing(self, positions: Iterable[str]) -> list[str]:
        """Those positions that are not known, in their order."""
        query = "SELECT 1 FROM action_values WHERE source = ? AND position = ?"
        try:
            return [
                position
                for position in positions
                if self._file.execute(query, (self._source_id, position)).fetchone() is None
            ]
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def put(self, position: str, values: PositionValues) -> None:
        """Keep a position's values; those that another process has put before stay."""
        moves = " ".join(f"{value.move} {value.cp}" for value in values.values)
        try:
            self._file.execute(
                "INSERT OR IGNORE INTO action_values VALUES (?, ?, ?, ?)",
                (self._source_id, position, values.depth, moves),
            )
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _register(self, source: ValueSource) -> int:
        key = (source.engine, source.limit)
        self._file.execute("INSERT OR IGNORE INTO sources (engine, search) VALUES (?, ?)", key)
        rows = self._file.execute("SELECT id FROM sources WHERE engine = ? AND search = ?", key)
        return int(rows.fetchone()[0])

    def _read(self, depth: int, moves: str) -> PositionValues:
        words = moves.split(" ")
        pairs = zip(words[::2], words[1::2], strict=True)
        values = tuple(ActionValue(move, int(cp)) for move, cp in pairs)
        return PositionValues(values, depth, self._source)

    def _fault(self, error: Exception) -> RookWorldError:
        return RookWorldError(
            f"engine_cache: cannot use {self._path!r} ({error}); give another path, or ':memory:' to "
            "keep nothing"
        )
