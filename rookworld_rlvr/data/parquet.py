"""Write a Parquet file that appears only when it is complete, with a note of how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import sources


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
        writer.add_key_value_metadata({sources.PROVENANCE_KEY: json.dumps(provenance())})
    incomplete.replace(path)
