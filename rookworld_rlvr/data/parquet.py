"""Where a data set's values come from: written into its Parquet file, and read from it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from ..common.html import render

_KEY = b"rookworld_rlvr"  # in the file's metadata, beside the key that datasets writes


_ROW_GROUP = 20_000


def write_parquet(path: Path, rows: Dataset, provenance: Mapping[str, Any]) -> None:
    """Write rows to a file that appears only when it is complete.

    Args:
        path: The file; its folder is created.
        rows: Written in row groups of a size that fits into memory.
        provenance: Where the rows come from and how they were made, as JSON can hold it.
    """
    tables = rows.with_format("arrow").iter(_ROW_GROUP)
    _write(path, rows.features.arrow_schema, tables, provenance)


def _write(
    path: Path, schema: pa.Schema, tables: Iterable[pa.Table], provenance: Mapping[str, Any]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    incomplete = path.with_name(f"{path.name}.incomplete")
    note = {_KEY: json.dumps(provenance).encode()}
    schema = schema.with_metadata({**(schema.metadata or {}), **note})
    with pq.ParquetWriter(incomplete, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
    incomplete.replace(path)


def read_provenance(path: Path | None) -> dict[str, Any] | None:
    """The provenance that `write_parquet` wrote; None for other files, and without a file."""
    if path is None or path.suffix != ".parquet":
        return None
    try:
        note = (pq.read_schema(path).metadata or {}).get(_KEY)
    except (OSError, pa.ArrowException):
        return None  # loading the rows reports what is wrong with the file
    return None if note is None else dict(json.loads(note))


def merge_parquet(parts: Sequence[Path], path: Path) -> dict[str, Any]:
    """Join files of `write_parquet` in their order, add up their counts, and remove them."""
    notes = [read_provenance(part) or {} for part in parts]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for note in notes:
        for group, numbers in note["counts"].items():
            counts[group].update(numbers)
    merged = {**notes[0], "counts": {group: dict(numbers) for group, numbers in counts.items()}}
    batches = (batch for part in parts for batch in pq.ParquetFile(part).iter_batches(_ROW_GROUP))
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    _write(path, pq.read_schema(parts[0]), tables, merged)
    for part in parts:
        part.unlink()
    return merged


def data_card(provenance: Mapping[str, Any]) -> str:
    """The README.md of a data set on the Hub."""
    note = json.dumps(provenance, indent=2)
    return f"{render('data_card.md', values=provenance, provenance=note)}\n"


def values_line(path: Path | None) -> str:
    """Who valued the moves in a file, how and when; empty if the file does not say."""
    note = read_provenance(path)
    if note is None or note["engine"] is None:
        return ""
    return f"{note['engine']}, {note['limit']}, {note['date']}"
