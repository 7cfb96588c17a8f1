"""Where a data set's values come from: written into its Parquet file, and read from it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import RookWorldError

_KEY = b"rookworld_rlvr"  # in the file's metadata, beside the key that datasets writes


ROW_GROUP = 500  # rows, whose values are in memory at once


Counts = Mapping[str, Mapping[str, int]]  # by group and name


def write_parquet(
    path: Path,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    provenance: Callable[[], Mapping[str, Any]],
) -> None:
    """Write rows to a file that appears only when it is complete.

    Args:
        path: The file; its folder is created.
        schema: Columns of the rows.
        tables: The rows; each table becomes a row group.
        provenance: Where the rows come from and how they were made, as JSON can hold it. Called after
            the last row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    incomplete = path.with_name(f"{path.name}.incomplete")
    with pq.ParquetWriter(incomplete, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
        writer.add_key_value_metadata({_KEY: json.dumps(provenance())})
    incomplete.replace(path)


def read_provenance(path: str | Path | None) -> dict[str, Any] | None:
    """The provenance that `write_parquet` wrote; None for other files, and without a file."""
    if path is None or Path(path).suffix != ".parquet":
        return None
    try:
        note = (pq.read_metadata(path).metadata or {}).get(_KEY)
    except (OSError, pa.ArrowException):
        return None  # loading the rows reports what is wrong with the file
    return None if note is None else dict(json.loads(note))


def join_parquet(parts: Sequence[Path], path: Path, counts: Counts) -> None:
    """Write the rows of several files of `write_parquet` into one, in their order.

    Args:
        parts: Files of the same columns, one at least.
        path: The file to write.
        counts: Added to the counts of the parts.

    Raises:
        RookWorldError: Different engines valued the parts.
    """
    notes = [read_provenance(part) or {} for part in parts]
    sources = {(note["engine"], note["limit"]): note for note in notes if note["engine"]}
    if len(sources) > 1:
        raise RookWorldError(
            f"{path}: its parts were valued by different engines: "
            f"{'; '.join(sorted(engine for engine, _ in sources))}. Install the same engine on every "
            "machine, and start again in another folder"
        )
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for group, numbers in (
        item for one in (counts, *(n["counts"] for n in notes)) for item in one.items()
    ):
        sums[group].update(numbers)
    note = {**next(iter(sources.values()), notes[0]), "counts": sums}
    batches = (batch for part in parts for batch in pq.ParquetFile(part).iter_batches(ROW_GROUP))
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    write_parquet(path, pq.read_schema(parts[0]), tables, lambda: note)


def values_line(path: str | Path | None) -> str:
    """Who valued the moves in a file, how and when; empty if the file does not say."""
    note = read_provenance(path)
    while note is not None and note["engine"] is None:
        note = note[
            "dataset_provenance"
        ]  # of the file that it was made from, whose values it keeps
    if note is None:
        return ""
    return f"{note['engine']}, {note['limit']}, {note['date']}"
