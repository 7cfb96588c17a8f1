"""Make labelled data sets: read rows, value policy positions with engines in parallel, repair answers.

Each position that has been valued is in the engine's cache on disk. A run that was stopped goes on
from there, and so does one in which a worker died.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Value, concatenate_datasets

from ...common.errors import RookWorldError
from ...engine.cache import ValueCache
from ...engine.labeller import Labeller
from ...engine.pool import position_asked
from ...engine.truth import LabelArguments
from ...tasks.registry import TASKS, join_row
from ...tasks.types import ValueSource
from ..loading import action_values_column
from ..parquet import read_provenance
from ..sources import (
    FEATURES,
    Malformed,
    Row,
    dataset_file,
    parse_rows,
    quarantine,
    raw_dataset,
)
from .arguments import PrepareArguments, made_rows
from .repair import repair_row

logger = logging.getLogger(__name__)


_DEATHS = 5  # of workers that are replaced before the run gives up


_BATCH = 8  # positions that a worker takes at once


_PARSED = Features({**FEATURES, "malformed": Value("int64")})  # the index of a malformed raw row


_FINISHED = Features(
    {
        "text": Value("string"),
        "action_values": FEATURES["action_values"],
        "done": [Value("string")],
        "refused": [Value("string")],
    }
)


# --------------------------------------------------------------------------------------------------
# Counts
# --------------------------------------------------------------------------------------------------
@dataclass
class PrepareReport:
    """What was done, counted."""

    rows: Counter[str] = field(default_factory=Counter)  # read, quarantined, duplicates, written
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
def read_rows(
    args: PrepareArguments,
    report: PrepareReport,
    quarantine_file: Path,
    shard: tuple[int, int] = (0, 1),
) -> Dataset:
    """The parsed rows of a shard in their order, without the malformed ones.

    Args:
        args: What to read.
        report: Counted into.
        quarantine_file: Where malformed rows go.
        shard: Index and number of shards.

    Raises:
        RookWorldError: The data set cannot be read, or too much of it is malformed.
    """
    parts = []
    if args.dataset_name:
        raw = raw_dataset(args.dataset_name, args.dataset_split, args.max_rows, args.text_column)
        first, last = _bounds(len(raw), *shard)
        parts.append(_parse(raw.select(range(first, last)), first, args, report, quarantine_file))
    made = list(made_rows(args))
    first, last = _bounds(len(made), *shard)
    if first < last:
        parts.append(Dataset.from_list(made[first:last], features=FEATURES))
        report.rows["made"] += last - first
    rows = concatenate_datasets(parts)
    if "duplicates" in args.repairs:
        first_of: dict[tuple[str, str], int] = {}
        for index, key in enumerate(zip(rows["task"], rows["prompt"], strict=True)):
            first_of.setdefault(key, index)
        report.repaired["duplicates"] += len(rows) - len(first_of)
        rows = rows.select(list(first_of.values()))
    return rows


def _bounds(count: int, index: int, shards: int) -> tuple[int, int]:
    """Where a shard begins and ends; the lengths of shards differ by one row at most."""
    return count * index // shards, count * (index + 1) // shards


def _parse(
    raw: Dataset, first: int, args: PrepareArguments, report: PrepareReport, path: Path
) -> Dataset:
    rows = _map(raw, _parse_batch, _PARSED, args.num_proc, "Parsing rows", True, tasks=args.tasks)
    good = [index for index, task in enumerate(rows["task"]) if task is not None]
    others = sorted({index for index in rows["malformed"] if index is not None})
    again = (
        row for index in others for row in parse_rows([raw[index]], first + index + 1, args.tasks)
    )
    malformed = [row for row in again if isinstance(row, Malformed)]
    read = len(good) + len(malformed)
    report.rows["read"] += read
    report.rows["quarantined"] += len(malformed)
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
        num_proc=num_proc,
        load_from_cache_file=False,  # this is fast, and a cache would outlive changes of the code
        desc=title,
        fn_kwargs=fn_kwargs,
    )
    return mapped.with_format(None)


# --------------------------------------------------------------------------------------------------
# Valuing
# --------------------------------------------------------------------------------------------------
def value_positions(
    rows: Dataset, args: LabelArguments, num_proc: int, report: PrepareReport
) -> ValueSource | None:
    """Value the positions that the rows need and keep the values in the cache.

    Args:
        rows: Of `read_rows`.
        args: Whom to ask, and for which rows.
        num_proc: Worker processes.
        report: Counted into.

    Returns:
        Who valued them; None if no row needs a value.

    Raises:
        EngineError: No engine was found, or it fails at position after position.
        RookWorldError: Worker after worker dies, or the cache cannot be used.
    """
    if args.labels == "stored":
        return None
    asked = rows.select_columns(["task", "fen", "action_values"])
    fens = (row["fen"] for row in asked if _is_asked(row, args.labels))
    positions = list(dict.fromkeys(map(position_asked, fens)))
    if not positions:
        return None
    with Labeller(args) as labeller:  # faults of the engine show here, before the work
        source = labeller.source
    cache = ValueCache(args.engine_cache, source)
    missing = cache.missing(positions)
    searched = len(missing)
    report.positions["known before"] += len(positions) - searched
    for death in range(_DEATHS + 1):
        try:
            given_up = _value_missing(missing, args, num_proc) if missing else {}
            break
        except RuntimeError as error:
            if "abruptly died" not in str(error):  # the wording of datasets
                raise
            missing = cache.missing(missing)
            logger.warning(
                "a worker died (%d of %d); going on with %d positions",
                *(death + 1, _DEATHS, len(missing)),
            )
    else:
        raise RookWorldError(
            f"workers died {_DEATHS + 1} times; what was valued is kept in {cache.path}. Give "
            "fewer workers (num_proc) or more memory, and start again"
        )
    cache.close()
    report.positions["valued"] += searched - len(given_up)
    report.positions["given up"] += len(given_up)
    for position, reason in given_up.items():
        logger.warning("given up: %s (%s)", position, reason)
    return source


def _is_asked(row: Mapping[str, Any], labels: str) -> bool:
    """Whether a row's values come from the engine, if one is asked at all."""
    return TASKS[row["task"]].needs_values and (labels == "engine" or row["action_values"] is None)


def _value_missing(missing: Sequence[str], args: LabelArguments, num_proc: int) -> dict[str, str]:
    """Value positions in worker processes; returns why some were given up, by position."""
    batch = _BATCH * args.engine_workers
    answers = Dataset.from_dict({"position": list(missing)}).map(
        _value_batch,
        batched=True,
        batch_size=batch,
        writer_batch_size=batch,
        fn_kwargs={"args": args},
        num_proc=min(num_proc, len(missing)),
        load_from_cache_file=False,  # the engine's cache keeps each position
        desc="Valuing positions",
    )
    return {row["position"]: row["reason"] for row in answers if row["reason"] is not None}


_labellers: list[Labeller] = []  # of this worker process, opened with its first batch


def _value_batch(batch: Mapping[str, list[str]], args: LabelArguments) -> dict[str, list[Any]]:
    if not _labellers:
        _labellers.append(Labeller(args))
    (labeller,) = _labellers
    labeller.values(batch["position"])
    return {"reason": [labeller.given_up.get(position) for position in batch["position"]]}


# --------------------------------------------------------------------------------------------------
# Finishing
# --------------------------------------------------------------------------------------------------
def finish_rows(
    rows: Dataset,
    args: PrepareArguments,
    label_args: LabelArguments,
    source: ValueSource | None,
    report: PrepareReport,
) -> Dataset:
    """The rows with their values and repaired answers, in the columns `text` and `action_values`.

    Args:
        rows: Of `read_rows`.
        args: Which repairs to make.
        label_args: Which values to take.
        source: Of `value_positions`.
        report: Counted into.
    """
    options: dict[str, Any] = {"repairs": args.repairs, "args": label_args, "source": source}
    finished = _map(rows, _finish_batch, _FINISHED, args.num_proc, "Writing answers", **options)
    for column, counts in (("done", report.repaired), ("refused", report.not_repairable)):
        counts.update(name for names in finished[column] for name in names)
    report.rows["written"] += len(finished)
    values = zip(rows["task"], finished["action_values"], strict=True)
    report.rows["policy rows without values"] += sum(
        TASKS[task].needs_values and found is None for task, found in values
    )
    return finished.select_columns(["text", "action_values"])


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


# --------------------------------------------------------------------------------------------------
# Writing
# --------------------------------------------------------------------------------------------------
def provenance(
    args: PrepareArguments, source: ValueSource | None, report: PrepareReport
) -> dict[str, Any]:
    """Where the rows come from and how they were made, for `data.parquet.write_parquet`."""
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


def shard_file(path: Path, index: int, shards: int) -> Path:
    """The file of a shard; the whole file if there is only one.

    >>> str(shard_file(Path("rows.parquet"), 0, 2))
    'rows-00000-of-00002.parquet'
    """
    return path if shards == 1 else path.with_stem(f"{path.stem}-{index:05d}-of-{shards:05d}")
