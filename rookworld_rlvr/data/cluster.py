"""Label a data set by many tasks, which datatrove runs on this machine or on Slurm.

The command reads the rows and puts them into a folder beside the output file, `NAME.cluster`:

- `question.json`: what was asked; a folder of another question is refused. `read.json`: counts of the
  rows read. `rows/`: the parsed rows.
- `values/`: a cache of values for each task, so that no file has two writers. `parts/`: the rows that
  each task has labelled.
- `label/`, `join/`: datatrove's marks of finished tasks, logs and Slurm script.

Which tasks run, where and when, which of them are done and what is left after a restart is
datatrove's business.
"""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.fingerprint import Hasher
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor

from ..common.errors import RookWorldError
from ..common.files import replace_text, write_json
from ..common.progress import shown
from . import prepare
from .parquet import write_parquet
from .prepare import PrepareArguments, PrepareReport
from .sources import dataset_file, read_provenance

_EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor}


_OURS = ("pipeline", "tasks", "logging_dir", "depends", "skip_completed")


_OF_LOCAL = ("workers", "start_method", "local_tasks", "local_rank_offset")  # tasks run in turn


# Keys that do not change the rows: a run may go on with others.
_FREE = {
    *("output_file", "hub_dataset_id"),
    *("cluster", "cluster_options"),
    *("engine_path", "engine_workers", "engine_cache"),
}


# --------------------------------------------------------------------------------------------------
# Steps, as datatrove calls them
# --------------------------------------------------------------------------------------------------
def label_shard(
    folder: Path, args: PrepareArguments, data: None, rank: int, world_size: int
) -> None:
    """Label and repair the share of the rows of task `rank` of `world_size`.

    Args:
        folder: The folder that this module describes; all machines must see it under this path.
        args: Which repairs to make, which values to take, and whom to ask for them.
        data: What datatrove passes from step to step; not used.
        rank: The task's number.
        world_size: The number of tasks.
    """
    datasets.disable_progress_bars()  # they would fill the log
    rows = datasets.load_from_disk(folder / "rows").shard(world_size, rank)
    own = copy.copy(args)  # unchecked: another machine need not see the data set
    own.engine_cache = str(folder / "values" / f"{rank:05d}.sqlite")
    prepare.write_labelled(_part(folder, rank), rows, own, PrepareReport())


def join_parts(
    folder: Path, tasks: int, output: Path, data: None, rank: int, world_size: int
) -> None:
    """Write the parts of all tasks into the output file; for the other arguments see `label_shard`."""
    read = json.loads((folder / "read.json").read_text(encoding="utf-8"))
    join_parquet([_part(folder, task) for task in range(tasks)], output, read)


def join_parquet(
    parts: Sequence[Path], path: Path, counts: Mapping[str, Mapping[str, int]]
) -> None:
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
    for one in (counts, *(note["counts"] for note in notes)):
        for group, numbers in one.items():
            sums[group].update(numbers)
    note = {**next(iter(sources.values()), notes[0]), "counts": sums}
    batches = (
        batch for part in parts for batch in pq.ParquetFile(part).iter_batches(prepare.ROW_GROUP)
    )
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    write_parquet(path, pq.read_schema(parts[0]), tables, lambda: note)


def _part(folder: Path, rank: int) -> Path:
    return folder / "parts" / f"{rank:05d}.parquet"


# --------------------------------------------------------------------------------------------------
# The run
# --------------------------------------------------------------------------------------------------
def label_on_cluster(args: PrepareArguments) -> str:
    """Read the rows, unless an earlier start has done so, and run the tasks that are not done yet.

    Returns:
        What Slurm still has to do; empty if the output file is complete.

    Raises:
        RookWorldError: The folder belongs to another question, a task failed, or Slurm refuses the
            jobs.
    """
    output = Path(args.output_file).resolve()
    folder = output.with_suffix(".cluster")
    _check_question(folder, args)
    if not (folder / "rows").exists():
        _store_rows(folder, args)
    tasks = max(1, min(args.cluster_tasks, len(datasets.load_from_disk(folder / "rows"))))
    label_step = partial(label_shard, folder, args)
    label = _executor(args, folder / "label", label_step, tasks)
    join_step = partial(join_parts, folder, tasks, output)
    join = _executor(args, folder / "join", join_step, 1, depends=label)
    if not output.exists():  # it may have been moved away since
        (folder / "join" / "completions" / "00000").unlink(missing_ok=True)
    if args.cluster == "slurm":
        return _submitted(label, join) if join.get_incomplete_ranks() else ""
    for stage in (label, join):
        # In this process: datatrove's own pool would wait for ever for a worker that was killed.
        ranks = stage.get_incomplete_ranks()
        for rank in shown(ranks, "tasks", len(ranks), "tasks"):
            stage._run_for_rank(rank, rank)
    return ""


def option_faults(cluster: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments for datatrove's executor, and whether Slurm is there."""
    try:
        ours = [*_OURS, *(_OF_LOCAL if cluster == "local" else ())]
        inspect.signature(_EXECUTORS[cluster]).bind(**dict.fromkeys(ours), **options)
    except TypeError as error:
        return [
            f"cluster_options: {options!r}: {error}; give further arguments of datatrove's "
            f"{_EXECUTORS[cluster].__name__}"
        ]
    if cluster == "slurm" and shutil.which("sbatch") is None:
        return ["cluster: no program sbatch here; start on a machine that submits to Slurm"]
    return []


def _check_question(folder: Path, args: PrepareArguments) -> None:
    """Keep what is asked, or compare it with what the folder was made for."""
    asked = {name: value for name, value in asdict(args).items() if name not in _FREE}
    if (file := dataset_file(args.dataset_name)) is not None:
        asked["dataset_name"] = [args.dataset_name, file.stat().st_size, file.stat().st_mtime]
    path, text = folder / "question.json", json.dumps(asked)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        replace_text(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise RookWorldError(
            f"cluster: {folder} belongs to a run with other settings or data, see {path}; remove the "
            "folder, or give another output_file"
        )


def _store_rows(folder: Path, args: PrepareArguments) -> None:
    report = PrepareReport()
    rows = prepare.read_rows(args, report, Path(args.output_file).with_suffix(".quarantine.jsonl"))
    write_json(folder / "read.json", vars(report))
    incomplete = folder / "rows.incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)
    rows.save_to_disk(incomplete)
    incomplete.rename(folder / "rows")


def _executor(
    args: PrepareArguments,
    folder: Path,
    step: Callable[..., None],
    tasks: int,
    depends: PipelineExecutor | None = None,
) -> Any:
    """datatrove's executor of a step."""
    assert args.cluster is not None and not isinstance(args.cluster_options, str)
    options: dict[str, Any] = {}
    if args.cluster == "slurm":
        options["job_name"] = f"rookworld_{folder.parent.stem}_{Hasher.hash(str(folder.parent))}"
        options["cpus_per_task"] = args.workers()
        environment = Path(sys.prefix) / "bin" / "activate"
        options["venv_path"] = str(environment) if environment.is_file() else None
    options |= args.cluster_options or {}
    return _EXECUTORS[args.cluster](
        pipeline=[step], tasks=tasks, logging_dir=str(folder), depends=depends, **options
    )


def _submitted(label: Any, join: Any) -> str:
    """Submit what is not done, unless earlier jobs are left: two would write to the same files.

    Args:
        label: Slurm's executor of the tasks.
        join: That of the last step, which depends on `label`.
    """
    asked = ["squeue", "--noheader", "--me", "--format=%r", f"--name={join.job_name}"]
    reasons = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    # A last job whose tasks have failed stays in the queue, and never runs.
    is_queued = any(reason != "DependencyNeverSatisfied" for reason in reasons)
    if not is_queued:
        try:
            join.run()
        except subprocess.CalledProcessError as error:
            raise RookWorldError(
                f"cluster: sbatch refused the jobs (exit code {error.returncode}; its reason is above); "
                "mend cluster_options"
            ) from error
    done = label.world_size - len(label.get_incomplete_ranks())
    said = "are in Slurm's queue" if is_queued else "were submitted"
    return f"the jobs {join.job_name} {said}: {done} of {label.world_size} tasks are done"
