"""Label a data set by many tasks, which datatrove runs on this machine, on Slurm or on Ray.

The command reads the rows and puts them into a folder beside the output file, `NAME.cluster`:

- `question.json`: what was asked; a folder of another question is refused. `read.json`: counts of the
  rows read. `rows/`: the parsed rows.
- `values/`: a cache of values for each task, so that no file has two writers. `parts/`: the rows that
  each task has labelled.
- `label/`, `join/`: datatrove's marks of finished tasks, logs, counts and Slurm script. `jobs.json`:
  the jobs that Slurm was given last.

Which tasks run, where and when, which of them are done and what is left after a restart is
datatrove's business.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import datasets
from datatrove.executor import (
    LocalPipelineExecutor,
    RayPipelineExecutor,
    SlurmPipelineExecutor,
)
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep

from ..common.errors import RookWorldError
from ..common.files import replace_text, write_json
from ..common.machine import cores
from ..common.progress import shown
from ..engine.truth import LabelArguments
from .parquet import join_parquet
from .prepare import PrepareArguments, PrepareReport, read_rows, write_labelled
from .sources import dataset_file

_EXECUTORS: dict[str, type[PipelineExecutor]] = {
    "local": LocalPipelineExecutor,
    "slurm": SlurmPipelineExecutor,
    "ray": RayPipelineExecutor,
}


_OURS = ("pipeline", "tasks", "logging_dir", "depends", "skip_completed")


# Keys that do not change the rows: a run may go on with others.
_FREE = {
    *("output_file", "hub_dataset_id"),
    *("cluster", "cluster_options"),
    *("engine_path", "engine_workers", "engine_timeout", "engine_cache"),
}


# --------------------------------------------------------------------------------------------------
# Steps
# --------------------------------------------------------------------------------------------------
class LabelShard(PipelineStep):  # type: ignore[misc]
    """Label and repair a task's share of the rows.

    Args:
        folder: The folder that this module describes; all machines must see it under this path.
        args: Which repairs to make.
        label_args: Which values to take, and whom to ask for them.
    """

    type = "Label"
    name = "values of moves and repairs"

    def __init__(self, folder: Path, args: PrepareArguments, label_args: LabelArguments) -> None:
        super().__init__()
        self.folder, self.args, self.label_args = folder, args, label_args

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Write the part of task `rank` of `world_size`."""
        asyncio.set_event_loop_policy(None)  # Ray's, of uvloop, cannot start an engine as we do
        datasets.disable_progress_bars()  # they would fill the log
        rows = datasets.load_from_disk(self.folder / "rows").shard(world_size, rank)
        values = str(self.folder / "values" / f"{rank:05d}.sqlite")
        label_args, report = replace(self.label_args, engine_cache=values), PrepareReport()
        write_labelled(_part(self.folder, rank), rows, self.args, label_args, report)
        for group, counts in vars(report).items():
            for name, count in counts.items():
                self.stat_update(f"{group}, {name}", value=count)


class JoinParts(PipelineStep):  # type: ignore[misc]
    """Write the parts of all tasks into the output file.

    Args:
        folder: The folder that this module describes.
        tasks: How many parts there are.
        output: The Parquet file to write.
    """

    type = "Join"
    name = "parts of all tasks"

    def __init__(self, folder: Path, tasks: int, output: Path) -> None:
        super().__init__()
        self.folder, self.tasks, self.output = folder, tasks, output

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Write the output file."""
        read = json.loads((self.folder / "read.json").read_text(encoding="utf-8"))
        join_parquet([_part(self.folder, task) for task in range(self.tasks)], self.output, read)


def _part(folder: Path, rank: int) -> Path:
    return folder / "parts" / f"{rank:05d}.parquet"


# --------------------------------------------------------------------------------------------------
# The run
# --------------------------------------------------------------------------------------------------
def label_on_cluster(args: PrepareArguments, label_args: LabelArguments) -> str:
    """Read the rows, unless an earlier start has done so, and run the tasks that are not done yet.

    Returns:
        What Slurm still has to do; empty if the output file is complete.

    Raises:
        RookWorldError: The folder belongs to another question, a task failed or was killed, or Slurm
            refuses the jobs.
    """
    output = Path(args.output_file).resolve()
    folder = output.with_suffix(".cluster")
    _check_question(folder, args, label_args)
    if not (folder / "rows").exists():
        _store_rows(folder, args)
    rows = datasets.load_from_disk(folder / "rows")
    tasks = max(1, min(args.cluster_tasks, len(rows)))
    first, last = LabelShard(folder, args, label_args), JoinParts(folder, tasks, output)
    label = _executor(args, label_args, folder / "label", first, tasks)
    join = _executor(args, label_args, folder / "join", last, 1, depends=label)
    if not output.exists():  # it may have been moved away since
        (folder / "join" / "completions" / "00000").unlink(missing_ok=True)
    if args.cluster == "slurm":
        if not join.get_incomplete_ranks():
            return ""
        jobs = _submitted(folder / "jobs.json", label, join)
        done = tasks - len(label.get_incomplete_ranks())
        return f"{jobs}: {done} of {tasks} tasks are done; the last job writes {output}"
    for stage in (label, join):
        if args.cluster == "local":
            _run_here(stage)
        else:
            stage.run()
        if failed := stage.get_incomplete_ranks():  # Ray's executor does not raise
            log = folder / stage.logging_dir.path / "logs" / f"task_{failed[0]:05d}.log"
            raise RookWorldError(
                f"cluster: {len(failed)} of {stage.world_size} tasks failed; see {log}, and start again"
            )
    return ""


def _run_here(stage: Any) -> None:
    """Run the tasks that are not done in processes of this machine.

    datatrove's own pool would wait for ever for the task of a worker that was killed.

    Raises:
        RookWorldError: A worker was killed.
    """
    ranks = stage.get_incomplete_ranks()
    fork = multiprocessing.get_context("fork")  # a forked worker need not import everything again
    pool = ProcessPoolExecutor(stage.workers, fork, initializer=_end_with_parent)
    try:
        done = pool.map(stage._run_for_rank, ranks, ranks)
        for _ in shown(done, f"datatrove's {stage.pipeline[0].name}", len(ranks), "tasks"):
            pass
    except BrokenProcessPool as error:
        raise RookWorldError(
            "cluster: a worker process was killed, perhaps for lack of memory; give fewer "
            "(cluster_options: {workers: 2}), and start again to go on"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process if the one that started it is killed: otherwise it would label on, unseen."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def option_faults(cluster: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments for datatrove's executor, and whether Slurm is there."""
    faults = []
    try:
        inspect.signature(_EXECUTORS[cluster]).bind(**{**dict.fromkeys(_OURS), **options})
    except TypeError as error:
        faults.append(
            f"cluster_options: {options!r}: {error} of datatrove's {_EXECUTORS[cluster].__name__}; give "
            "its arguments"
        )
    if ours := sorted(set(_OURS) & set(options)):
        faults.append(f"cluster_options: {', '.join(ours)}: set by us; leave it out")
    faults += [
        f"cluster: no program {name} here; start on a machine that submits to Slurm"
        for name in ("sbatch", "squeue")
        if cluster == "slurm" and shutil.which(name) is None
    ]
    return faults


def _check_question(folder: Path, args: PrepareArguments, label_args: LabelArguments) -> None:
    """Keep what is asked, or compare it with what the folder was made for."""
    asked = {**asdict(args), **asdict(label_args)}
    asked = {name: value for name, value in asked.items() if name not in _FREE}
    if (file := dataset_file(args.dataset_name)) is not None:
        asked["dataset_name"] = [args.dataset_name, file.stat().st_size, file.stat().st_mtime]
    path = folder / "question.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        replace_text(path, json.dumps(asked))
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if changed := [name for name, value in asked.items() if before.get(name) != value]:
        raise RookWorldError(
            f"cluster: {folder} belongs to a run with other settings ({', '.join(changed)}); remove "
            "the folder, or give another output_file"
        )


def _store_rows(folder: Path, args: PrepareArguments) -> None:
    report = PrepareReport()
    rows = read_rows(args, report, Path(args.output_file).with_suffix(".quarantine.jsonl"))
    write_json(folder / "read.json", vars(report))
    incomplete = folder / "rows.incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)
    rows.save_to_disk(incomplete)
    incomplete.rename(folder / "rows")


def _executor(
    args: PrepareArguments,
    label_args: LabelArguments,
    folder: Path,
    step: PipelineStep,
    tasks: int,
    depends: PipelineExecutor | None = None,
) -> Any:
    """datatrove's executor of a step."""
    assert args.cluster is not None and not isinstance(args.cluster_options, str)
    environment = Path(sys.prefix) / "bin" / "activate"
    usual: dict[str, dict[str, Any]] = {
        "local": {"workers": min(cores() or 1, tasks)},
        "slurm": {
            "job_name": f"rookworld_{folder.name}",
            "cpus_per_task": label_args.workers(),
            "venv_path": str(environment) if environment.is_file() else None,
        },
        "ray": {"cpus_per_task": label_args.workers()},
    }
    options = {**usual[args.cluster], **(args.cluster_options or {})}
    return _EXECUTORS[args.cluster](
        pipeline=[step], tasks=tasks, logging_dir=str(folder), depends=depends, **options
    )


def _submitted(path: Path, label: Any, join: Any) -> str:
    """Submit what is not done, unless earlier jobs are left: two would write to the same files.

    Args:
        path: Where the numbers of the jobs are kept.
        label: Slurm's executor of the tasks.
        join: That of the last step, which depends on `label`.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if before and _are_queued(before):
        return f"jobs {', '.join(before)} are in Slurm's queue"
    try:
        join.run()
    except subprocess.CalledProcessError as error:
        raise RookWorldError(
            f"cluster: sbatch refused the jobs (exit code {error.returncode}; its reason is above); "
            "mend cluster_options"
        ) from error
    finally:
        jobs = [str(one.job_id) for one in (label, join) if one.job_id not in (None, -1)]
        replace_text(path, json.dumps(jobs))
    return f"jobs {', '.join(jobs)} submitted"


def _are_queued(jobs: Sequence[str]) -> bool:
    """Whether any of some jobs runs or waits."""
    words = ["squeue", "--noheader", "--format=%r", f"--jobs={','.join(jobs)}"]
    reasons = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split("\n")
    # A last job whose tasks have failed stays in the queue, and never runs.
    return any(reason.strip() not in ("", "DependencyNeverSatisfied") for reason in reasons)
