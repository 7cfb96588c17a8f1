"""Synthetic rows kept on disk: a machine makes them only once for the same arguments.

Nearly all of their time goes into playing random games. Each row's random draws continue those of the
row before, so processes cannot share the work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from .. import __version__
from ..common.files import cache_folder, open_to_others

logger = logging.getLogger(__name__)


WORTH_KEEPING = 1_000  # rows; fewer are made in a few seconds


_SOURCE_ROOMS = ("common", "tasks", "data")  # the rows depend on their code


Rows = list[dict[str, Any]]


def kept_rows(
    asked: Mapping[str, Any], count: int, schema: pa.Schema, make: Callable[[], Iterable[Any]]
) -> Rows:
    """The rows from the cache; if they are not there, they are made and kept.

    A broken file is made anew. If the file cannot be written, a warning says so and the rows are
    returned all the same.

    Args:
        asked: Everything that the rows depend on, as JSON can hold it.
        count: How many rows there are.
        schema: Their columns.
        make: Makes them.
    """
    if count < WORTH_KEEPING:
        return list(make())
    path = cache_folder() / "synthesis" / f"{_key(asked)}.parquet"
    rows = _read(path, count, schema)
    if rows is None:
        rows = list(make())
        try:
            _write(path, rows, schema)
        except OSError as error:
            logger.warning("synthetic rows are not kept for the next time: %s", error)
    return rows


def _key(asked: Mapping[str, Any]) -> str:
    versions = [__version__, chess.__version__, *platform.python_version_tuple()[:2]]
    text = json.dumps([dict(asked), versions, _source_digest()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _source_digest() -> str:
    """Digest of the code that the rows depend on: they are made anew if it changes."""
    package = Path(__file__).parents[1]
    files = (path for room in _SOURCE_ROOMS for path in (package / room).glob("*.py"))
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path, count: int, schema: pa.Schema) -> Rows | None:
    """The rows of a file; None if it is missing or incomplete."""
    if not path.exists():
        return None
    try:
        table = pq.read_table(path, page_checksum_verification=True).cast(schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        logger.warning("%s is broken (%s); the rows are made anew", path, error)
        return None
    return table.to_pylist() if len(table) == count else None


def _write(path: Path, rows: Rows, schema: pa.Schema) -> None:
    """Write a file that appears only when it is complete, even if others write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema)
    with NamedTemporaryFile(dir=path.parent, suffix=".incomplete", delete=False) as file:
        try:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            file.close()
            open_to_others(Path(file.name))
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
