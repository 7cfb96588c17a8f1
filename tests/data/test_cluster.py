"""Labelling by datatrove: what many tasks write is what one run writes, whatever dies on the way."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.data import prepare
from rookworld_rlvr.data.parquet import write_parquet
from rookworld_rlvr.data.sources import read_provenance

from ..engines import valued, wait_until_valued
from ..support import recipe
from .test_prepare import ENVIRONMENT, MATE, SCRIPT, policy_lines

pytestmark = [
    pytest.mark.usefixtures("stockfish"),
    pytest.mark.skipif(not find_spec("datatrove"), reason="the extra `cluster` is not installed"),
]


def argv(folder: Path, *more: str) -> list[str]:
    """Rows to label; the first 26 need an engine, and some prompts come again in other tasks."""
    rows = folder / "rows.txt"
    if not rows.exists():
        again = [MATE, ENVIRONMENT]
        rows.write_text("\n".join([*again, *policy_lines(24), *again, "", *again]) + "\n")
    options = "--engine_depth 2 --repairs best_move duplicates environment"
    return [*f"--dataset_name {rows} --output_file {folder}/out.parquet {options}".split(), *more]


def on_tasks(count: int, *more: str, kind: str = "local") -> list[str]:
    return ["--cluster", kind, "--cluster_tasks", str(count), *more]


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "out.parquet").to_pylist()
    return rows


def counts(folder: Path) -> dict[str, Any]:
    return (read_provenance(folder / "out.parquet") or {})["counts"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plain command."""
    folder = tmp_path_factory.mktemp("plain")
    recipe("prepare").main(argv(folder, "--engine_cache", str(folder / "values.sqlite")))
    return folder


def test_four_tasks_write_what_one_run_writes(tmp_path: Path, undisturbed: Path, stockfish) -> None:
    with pytest.raises(RookWorldError, match="no program '/nowhere/fish'"):
        recipe("prepare").main(argv(tmp_path, *on_tasks(4, "--engine_path", "/nowhere/fish")))
    assert not (tmp_path / "out.parquet").exists()
    recipe("prepare").main(argv(tmp_path, *on_tasks(4, "--engine_path", stockfish)))
    assert table(tmp_path) == table(undisturbed)
    assert counts(tmp_path) == counts(undisturbed)
    for kept in ("completions", "logs"):
        assert len(list((tmp_path / "out.cluster" / "label" / kept).iterdir())) == 4


def test_what_is_done_is_not_repeated_and_other_settings_are_refused(tmp_path, undisturbed) -> None:
    recipe("prepare").main(argv(tmp_path, *on_tasks(3)))
    folder = tmp_path / "out.cluster"
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "parts").iterdir()}
    (folder / "label" / "completions" / "00001").unlink()
    (folder / "join" / "completions" / "00000").unlink()
    recipe("prepare").main(argv(tmp_path, *on_tasks(3)))
    again = [path.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp]
    assert again == ["00001.parquet"]
    assert table(tmp_path) == table(undisturbed)
    assert counts(tmp_path)["searches"]["not needed"] > 0, "its values were kept"
    (tmp_path / "out.parquet").unlink()
    recipe("prepare").main(argv(tmp_path, *on_tasks(3)))
    assert table(tmp_path) == table(undisturbed)
    with pytest.raises(RookWorldError, match=r"out\.cluster .*other settings or data"):
        recipe("prepare").main(argv(tmp_path, *on_tasks(3, "--engine_depth", "3")))
    with (tmp_path / "rows.txt").open("a") as file:
        file.write(f"{MATE}\n")
    with pytest.raises(RookWorldError, match="other settings or data"):
        recipe("prepare").main(argv(tmp_path, *on_tasks(3)))


def test_parts_of_different_engines_are_not_joined(tmp_path: Path) -> None:
    from rookworld_rlvr.data.cluster import join_parquet  # it imports datatrove

    parts = []
    for engine in ("Stockfish 16", "Stockfish 17"):
        parts.append(tmp_path / f"{engine}.parquet")
        note: dict[str, Any] = {"engine": engine, "limit": "depth 2", "counts": {}}
        write_parquet(parts[-1], prepare._WRITTEN.arrow_schema, [], partial(dict, note))
    with pytest.raises(RookWorldError, match="different engines: Stockfish 16; Stockfish 17"):
        join_parquet(parts, tmp_path / "out.parquet", {})


def start(folder: Path) -> subprocess.Popen[bytes]:
    more = ("--engine_workers", "2", "--engine_depth", "9")
    words = [str(SCRIPT), *argv(folder, *on_tasks(4, *more))]
    with (folder / "printed.txt").open("ab") as printed:
        return subprocess.Popen([sys.executable, *words], stdout=printed, stderr=printed)


@pytest.mark.slow
def test_killed_twice_it_goes_on_where_it_was(tmp_path: Path) -> None:
    plain, values = tmp_path / "plain", tmp_path / "out.cluster" / "values"
    plain.mkdir()
    cache = ("--engine_cache", str(plain / "values.sqlite"), "--engine_depth", "9")
    recipe("prepare").main(argv(plain, *cache))
    expected = counts(plain)
    for done in (6, 14):
        with start(tmp_path) as process:
            wait_until_valued(values, done)
            os.kill(process.pid, signal.SIGKILL)
        assert not (tmp_path / "out.parquet").exists()
        finished = {path.stem for path in (values.parent / "label" / "completions").glob("*")}
        kept = sum(valued(p) for p in values.glob("*.sqlite") if p.stem not in finished)
    with start(tmp_path) as process:
        process.wait(timeout=300)
    assert process.returncode == 0, (tmp_path / "printed.txt").read_text()
    assert table(tmp_path) == table(plain)
    found = counts(tmp_path)
    assert found["rows"] == expected["rows"] and found["repaired"] == expected["repaired"]
    assert found["searches"]["not needed"] >= kept > 0
    assert sum(found["searches"].values()) == sum(expected["searches"].values())


SBATCH = """\
#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
number = 100 + len(list(folder.glob("job_*")))
(folder / f"job_{{number}}").write_text(" ".join(sys.argv[1:-1]) + "\\n" + open(sys.argv[-1]).read())
print("Submitted batch job", number)
"""


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where `sbatch` keeps the scripts that it gets, with its options above.

    `squeue` prints the file `reasons` there.
    """
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, program in (
        ("sbatch", SBATCH.format(python=sys.executable, folder=str(folder))),
        ("scontrol", "#!/bin/sh\necho node1\n"),
        ("squeue", f'#!/bin/sh\necho "$@" > {folder}/asked; cat {folder}/reasons\n'),
    ):
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def test_slurm_gets_an_array_of_tasks(tmp_path, sbatch, monkeypatch, capsys, undisturbed) -> None:
    options = json.dumps({"time": "08:00:00", "partition": "cpu", "workers": 3})
    asked = argv(tmp_path, *on_tasks(4, "--cluster_options", options, kind="slurm"))
    recipe("prepare").main(asked)
    assert "were submitted: 0 of 4 tasks are done" in capsys.readouterr().out
    assert not (tmp_path / "out.parquet").exists()
    folder = tmp_path / "out.cluster"
    script = (folder / "label" / "launch_script.slurm").read_text()
    for line in ("--array=0-3%3", "--time=08:00:00", "--partition=cpu", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in script
    assert f"launch_pickled_pipeline {folder}/label/executor.pik" in script
    assert f"source {sys.prefix}/bin/activate" in script
    jobs = [path.read_text() for path in sorted(sbatch.glob("job_*"))]
    assert script in jobs[0]
    (last,) = [job for job in jobs if "join/executor.pik" in job]
    assert "--dependency=afterok:100" in last and "#SBATCH --array=0-0" in last

    # What Slurm would do: run the pickled steps, once for each index of the array.
    from datatrove.tools.launch_pickled_pipeline import main as launch_pickled

    monkeypatch.setenv("SLURM_NODELIST", "node1")
    for stage, size in (("label", 4), ("join", 1)):
        for task in range(size):
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
            monkeypatch.setattr(sys, "argv", ["launch", str(folder / stage / "executor.pik")])
            launch_pickled()
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert table(tmp_path) == table(undisturbed)

    recipe("prepare").main(asked)
    printed = capsys.readouterr().out
    assert "written to" in printed and "rows, written" in printed
    assert len(list(sbatch.glob("job_*"))) == len(jobs), "nothing was left to submit"


def test_slurm_gets_no_task_twice(tmp_path: Path, sbatch: Path, capsys) -> None:
    options = json.dumps({"time": "08:00:00", "partition": "cpu"})
    asked = argv(tmp_path, *on_tasks(4, "--cluster_options", options, kind="slurm"))
    recipe("prepare").main(asked)
    first = sorted(sbatch.glob("job_*"))
    completions = tmp_path / "out.cluster" / "label" / "completions"
    completions.mkdir()
    (completions / "00002").touch()
    for reasons in ("None\nDependency\n", "DependencyNeverSatisfied\nNone\n"):
        (sbatch / "reasons").write_text(reasons)
        capsys.readouterr()
        recipe("prepare").main(asked)
        assert "are in Slurm's queue: 1 of 4 tasks are done" in capsys.readouterr().out
        assert "--name=rookworld_out_" in (sbatch / "asked").read_text()
    assert sorted(sbatch.glob("job_*")) == first
    (sbatch / "reasons").write_text("DependencyNeverSatisfied\n")
    recipe("prepare").main(asked)
    again = sorted(set(sbatch.glob("job_*")) - set(first))
    assert "#SBATCH --array=0-2\n" in again[0].read_text(), "the tasks that are left"


def test_faults_of_the_options_are_reported_together(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    options: dict[str, Any] = {"time": "1:00:00", "partition": "cpu"}
    for given, words in (
        (options, "no program sbatch here"),
        ({**options, "tasks": 3}, "multiple values for keyword argument 'tasks'"),
        ({**options, "tine": 1}, "unexpected keyword argument 'tine'"),
        ({}, "a required argument: 'time'"),
    ):
        asked = on_tasks(4, "--cluster_options", json.dumps(given), kind="slurm")
        with pytest.raises(ConfigurationError, match=words):
            recipe("prepare").main(argv(tmp_path, *asked))
    monkeypatch.setattr(recipe("prepare"), "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs datatrove; install 'rookworld-rlvr\[clus"):
        recipe("prepare").main(argv(tmp_path, *on_tasks(1)))
