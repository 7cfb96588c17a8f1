"""Make labelled data sets: read rows, value policy positions with engines in parallel, repair answers.

Each position that has been valued is in the engine's cache on disk. A run that was stopped goes on
from there, and so does one in which a worker died.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value, concatenate_datasets

from ...common.errors import RookWorldError
from ...common.progress import Progress
from ...engine.cache import ValueCache
from ...engine.labeller import Labeller
from ...engine.pool import position_asked
from ...engine.truth import LabelArguments
from ...tasks.registry import TASKS, join_row
from ...tasks.types import ValueSource
from ..loading import action_values_column
from ..parquet import ROW_GROUP, read_provenance, write_parquet
from ..sources import (
    FEATURES,
    Malformed,
    Row,
    dataset_file,
    on_disk,
    parse_rows,
    quarantine,
    raw_dataset,
)
from .arguments import PrepareArguments, made_rows
from .repair import repair_row

logger = logging.getLogger(__name__)


_DEATHS = 5  # of workers that are replaced before the run gives up


_BATCH = 8  # positions that a worker takes at once


_HELD = 256  # positions whose values are in memory at once, without workers; some 4 KB each


_PARSED = Features({**FEATURES, "malformed": Value("int64")})  # the index of a malformed raw row


_WRITTEN = Features({"text": Value("string"), "action_values": FEATURES["action_values"]})


_FINISHED = Features({**_WRITTEN, "done": [Value("string")], "refused": [Value("string")]})


# --------------------------------------------------------------------------------------------------
# Counts
# --------------------------------------------------------------------------------------------------
@dataclass
class PrepareReport:
    """What was done, counted."""

    rows: Counter[str] = field(default_factory=Counter)  # read, quarantined, unjudgeable, written
    positions: Counter[str] = field(default_factory=Counter)  # valued, known before, given up
    repaired: Counter[str] = field(default_factory=Counter)  # rows by repair
    not_repairable: Counter[str] = field(default_factory=Counter)  # rows by repair that failed


def report_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The counts of a `PrepareReport` as lines for a terminal."""
    return [
        f"{f'{group}, {name}'.replace('_', ' '):<34}{count:>10,}"
        for group, numbers in counts.items()
        for name, count in numbers.items()
    ]


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------
def read_rows(args: PrepareArguments, report: PrepareReport, quarantine_file: Path) -> Dataset:
    """The parsed rows in their order, without the malformed ones; they are held on disk.

    Args:
        args: What to read.
        report: Counted into.
        quarantine_file: Where malformed rows go.

    Raises:
        RookWorldError: The data set cannot be read, or too much of it is malformed.
    """
    parts = []
    if args.dataset_name:
        raw = raw_dataset(args.dataset_name, args.dataset_split, args.max_rows, args.text_column)
        parts.append(_parse(raw, args, report, quarantine_file))
    made = on_disk(made_rows(args), FEATURES)
    if len(made):
        parts.append(made)
        report.rows["made"] += len(made)
    rows = concatenate_datasets(parts)
    if "duplicates" in args.repairs:
        first = _first_of_equal(rows)
        report.repaired["duplicates"] += len(rows) - len(first)
        rows = rows.select(first)
    return rows


def _first_of_equal(rows: Dataset) -> npt.NDArray[np.int64]:
    """The indices of the rows whose prompt has not come before, in eight bytes for each row."""
    # Of five million different prompts, two share a hash of 64 bits once in a million data sets.
    asked = zip(rows["task"], rows["prompt"], strict=True)
    hashes = np.fromiter(map(hash, asked), np.int64, len(rows))
    return np.sort(np.unique(hashes, return_index=True)[1])


def _parse(raw: Dataset, args: PrepareArguments, report: PrepareReport, path: Path) -> Dataset:
    rows = _map(
        raw,
        _parse_batch,
        _PARSED,
        args.num_proc,
        "Parsing rows",
        with_indices=True,
        tasks=args.tasks,
    )
    others = pc.unique(pc.drop_null(rows.data.column("malformed"))).to_pylist()
    again = (row for index in others for row in parse_rows([raw[index]], index + 1, args.tasks))
    malformed = [row for row in again if isinstance(row, Malformed)]
    good = pc.indices_nonzero(pc.is_valid(rows.data.column("task")))
    read = len(good) + len(malformed)
    report.rows["read"] += read
    unjudgeable = sum(row.is_readable for row in malformed)
    report.rows["quarantined"] += len(malformed) - unjudgeable
    report.rows["unjudgeable"] += unjudgeable
    quarantine(malformed, read, args, path)
    return rows.select(good).select_columns(list(FEATURES))


def _parse_batch(batch: pa.Table, indices: Sequence[int], tasks: Sequence[str]) -> pa.Table:
    """Parsed rows; of a malformed one only the index: it is read again for the reason."""
    rows = [
        {"malformed": index} if isinstance(row, Malformed) else row
        for index, raw in zip(indices, batch.to_pylist(), strict=True)
        for row in parse_rows([raw], tasks=tasks)
    ]
    return pa.Table.from_pylist(rows, _PARSED.arrow_schema)


def _map(
    rows: Dataset,
    function: Callable[..., pa.Table],
    features: Features,
    num_proc: int,
    title: str,
    with_indices: bool = False,
    keep_in_memory: bool = False,
    **fn_kwargs: Any,
) -> Dataset:
    """Map batches of rows to other columns; without rows `Dataset.map` would give no columns."""
    if not len(rows):
        return Dataset.from_dict({name: [] for name in features}, features=features)
    mapped = rows.with_format("arrow").map(
        function,
        with_indices=with_indices,
        batched=True,
        remove_columns=rows.column_names,
        features=features,
        num_proc=num_proc if num_proc > 1 else None,  # None: no further process
        keep_in_memory=keep_in_memory,
        load_from_cache_file=False,  # this is fast, and a cache would outlive changes of the code
        desc=title,
        fn_kwargs=fn_kwargs,
    )
    return mapped.with_format(None)


# --------------------------------------------------------------------------------------------------
# Labelling
# --------------------------------------------------------------------------------------------------
def write_labelled(
    path: Path,
    rows: Dataset,
    args: PrepareArguments,
    label_args: LabelArguments,
    report: PrepareReport,
    num_proc: int = 1,
) -> None:
    """Value the positions of rows, repair their answers, and write them with their provenance.

    This is done chunk by chunk, so memory does not grow with the number of rows. The columns are `text`
    and `action_values`.

    Args:
        path: The Parquet file.
        rows: Of `read_rows`.
        args: Which repairs to make.
        label_args: Which values to take, and whom to ask for them.
        report: Counted into.
        num_proc: Worker processes; with 1 everything is done in this process.

    Raises:
        EngineError: No engine was found, or it fails at position after position.
        RookWorldError: Worker after worker dies, or the cache cannot be used.
    """
    with _labeller(rows, label_args) as labeller:  # faults of the engine show here, before the work
        source = None if labeller is None else labeller.source
        if labeller is not None and num_proc > 1:
            labeller.close()  # each worker opens its own

        def tables() -> Iterator[pa.Table]:
            for first in range(0, len(rows), ROW_GROUP):
                last = min(first + ROW_GROUP, len(rows))
                chunk = rows.select(range(first, last))
                if first and not sys.stderr.isatty():  # many short chunks show nothing else
                    print(f"written: {first:,} of {len(rows):,} rows", file=sys.stderr, flush=True)
                if labeller is not None:
                    title = f"Valuing positions of rows {first + 1:,} to {last:,} of {len(rows):,}"
                    _value_positions(chunk, label_args, labeller, num_proc, report, title)
                yield _finish_rows(chunk, args, label_args, source, num_proc, report)

        schema = _WRITTEN.arrow_schema
        write_parquet(path, schema, tables(), lambda: provenance(args, source, report))


def _labeller(rows: Dataset, args: LabelArguments) -> AbstractContextManager[Labeller | None]:
    """An engine with its cache, if any row needs one."""
    if args.labels == "stored":
        return nullcontext()
    asked = rows.select_columns(["task", "action_values"])
    is_needed = any(_is_asked(row, args.labels) for row in asked)
    return Labeller(args) if is_needed else nullcontext()


def _value_positions(
    rows: Dataset,
    args: LabelArguments,
    labeller: Labeller,
    num_proc: int,
    report: PrepareReport,
    title: str,
) -> None:
    """Value the positions that the rows need and keep the values in the cache."""
    asked = rows.select_columns(["task", "fen", "action_values"])
    fens = (row["fen"] for row in asked if _is_asked(row, args.labels))
    positions = list(dict.fromkeys(map(position_asked, fens)))
    cache = ValueCache(args.engine_cache, labeller.source)
    missing = cache.missing(positions)
    if num_proc == 1:
        with Progress(title, len(missing), "positions") as progress:
            for first in range(0, len(missing), _HELD):
                labeller.values(missing[first : first + _HELD], progress.update)
        given_up = {p: labeller.given_up[p] for p in missing if p in labeller.given_up}
    else:
        given_up = _value_in_workers(missing, cache, args, num_proc, title)
    cache.close()
    report.positions["known before"] += len(positions) - len(missing)
    report.positions["valued"] += len(missing) - len(given_up)
    report.positions["given up"] += len(given_up)
    for position, reason in given_up.items():
        logger.warning("given up: %s (%s)", position, reason)


def _is_asked(row: Mapping[str, Any], labels: str) -> bool:
    """Whether a row's values come from the engine, if one is asked at all."""
    return TASKS[row["task"]].needs_values and (labels == "engine" or row["action_values"] is None)


def _value_in_workers(
    missing: Sequence[str], cache: ValueCache, args: LabelArguments, num_proc: int, title: str
) -> dict[str, str]:
    """Value positions in worker processes; returns why some were given up, by position."""
    for death in range(_DEATHS + 1):
        try:
            return _map_positions(missing, args, num_proc, title) if missing else {}
        except RuntimeError as error:
            if "abruptly died" not in str(error):  # the wording of datasets
                raise
            missing = cache.missing(missing)
            logger.warning(
                "a worker died (%d of %d); going on with %d positions",
                *(death + 1, _DEATHS, len(missing)),
            )
    raise RookWorldError(
        f"workers died {_DEATHS + 1} times; what was valued is kept in {cache.path}. Give "
        "fewer workers (num_proc) or more memory, and start again"
    )


def _map_positions(
    missing: Sequence[str], args: LabelArguments, num_proc: int, title: str
) -> dict[str, str]:
    batch = _BATCH * args.workers()
    answers = Dataset.from_dict({"position": list(missing)}).map(
        _value_batch,
        batched=True,
        batch_size=batch,
        writer_batch_size=batch,
        fn_kwargs={"args": args},
        num_proc=min(num_proc, len(missing)),
        load_from_cache_file=False,  # the engine's cache keeps each position
        desc=title,
    )
    return {row["position"]: row["reason"] for row in answers if row["reason"] is not None}


_labellers: list[Labeller] = []  # of this worker process, opened with its first batch


def _value_batch(batch: Mapping[str, list[str]], args: LabelArguments) -> dict[str, list[Any]]:
    if not _labellers:
        _labellers.append(Labeller(args))
    (labeller,) = _labellers
    labeller.values(batch["position"])
    return {"reason": [labeller.given_up.get(position) for position in batch["position"]]}


def _finish_rows(
    rows: Dataset,
    args: PrepareArguments,
    label_args: LabelArguments,
    source: ValueSource | None,
    num_proc: int,
    report: PrepareReport,
) -> pa.Table:
    """The rows with their values and repaired answers."""
    options: dict[str, Any] = {"repairs": args.repairs, "args": label_args, "source": source}
    finished = _map(
        rows, _finish_batch, _FINISHED, num_proc, "Writing answers", keep_in_memory=True, **options
    )
    for column, counts in (("done", report.repaired), ("refused", report.not_repairable)):
        counts.update(name for names in finished[column] for name in names)
    report.rows["written"] += len(finished)
    values = zip(rows["task"], finished["action_values"], strict=True)
    report.rows["policy rows without values"] += sum(
        TASKS[task].needs_values and found is None for task, found in values
    )
    return finished.select_columns(list(_WRITTEN)).with_format("arrow")[:]


def _finish_batch(
    batch: pa.Table, repairs: Sequence[str], args: LabelArguments, source: ValueSource | None
) -> pa.Table:
    rows = batch.to_pylist()
    if source is not None:
        _attach_values(rows, args, source)
    finished = []
    for row in rows:
        repaired = repair_row(row, repairs)
        finished.append(
            {
                "text": join_row(row["prompt"], repaired.completion),
                "action_values": row["action_values"],
                "done": repaired.done,
                "refused": repaired.refused,
            }
        )
    return pa.Table.from_pylist(finished, _FINISHED.arrow_schema)


def _attach_values(rows: Sequence[Row], args: LabelArguments, source: ValueSource) -> None:
    asked = [(row, position_asked(row["fen"])) for row in rows if _is_asked(row, args.labels)]
    cache = ValueCache(args.engine_cache, source)
    known = cache.get({position for _, position in asked})
    cache.close()
    for row, position in asked:
        found = known.get(position)
        row["action_values"] = found and action_values_column(found.by_move())


def provenance(
    args: PrepareArguments, source: ValueSource | None, report: PrepareReport
) -> dict[str, Any]:
    """Where the rows come from and how they were made, for `write_parquet`."""
    before = read_provenance(dataset_file(args.dataset_name)) if args.dataset_name else None
    return {
        "dataset_name": args.dataset_name,
        "dataset_split": args.dataset_split,
        "dataset_provenance": before,
        "engine": source and source.engine,
        "limit": source and source.limit,
        "date": datetime.now(UTC).date().isoformat(),
        "repairs": list(args.repairs),
        "counts": {group: dict(counts) for group, counts in vars(report).items()},
    }
