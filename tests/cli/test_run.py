"""How a script ends: alone, and among processes that share the launcher's store."""

import contextlib
import errno
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from torch import distributed
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from rookworld_rlvr.cli import failures
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..killed import forked, launched
from ..support import started

Main = Callable[[Sequence[str]], None]


def _run(main: Main) -> None:
    failures._POLL_S, failures._PATIENCE_S = 0.5, 3.0
    try:
        run_cli(main)
    finally:
        print("group:", distributed.is_initialized(), "threads:", gloo_threads(5), flush=True)


def gloo_threads(seconds: float = 0) -> list[str]:
    """The process group's threads, once they have had some seconds to end."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it ended in between
            names.append(path.read_text())
    if seconds > 0 and any("gloo" in name for name in names):
        time.sleep(0.1)
        return gloo_threads(seconds - 0.1)
    return [name for name in names if "gloo" in name]


def fails(argv: Sequence[str], error: BaseException, delay: float) -> None:
    time.sleep(delay)
    raise error


def fail(folder: Path, errors: Any, delay: float = 1.0, in_turn: bool = False) -> Any:
    """Exit code and output of two processes that fail, the second `delay` seconds after the first.

    `in_turn` it starts when the first has ended.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    processes: list[BaseProcess] = []
    for rank, error in enumerate(errors):
        main = functools.partial(fails, error=error, delay=rank * delay)
        processes.append(forked(folder / f"{rank}.log", _run, main, **launched(store.port, rank)))
        if in_turn:
            processes[-1].join(200)
    for process in processes:
        process.join(200)
    logs = [(folder / f"{rank}.log").read_text() for rank in range(2)]
    return [(process.exitcode, text) for process, text in zip(processes, logs, strict=True)]


def test_the_first_process_that_fails_prints_its_traceback(tmp_path: Path) -> None:
    errors = [KeyError("planted"), RuntimeError("connection closed by peer")]
    (code, first), (other_code, second) = fail(tmp_path, errors, delay=0, in_turn=True)
    assert code == other_code == 1
    assert first.count("Traceback") == 1 and "KeyError: 'planted'" in first
    assert "Traceback" not in second
    assert "process 1 ends, because process 0 failed (KeyError: 'planted')" in second


@pytest.mark.parametrize("code", [0, 2])
def test_bad_input_is_said_once_by_a_process_that_has_it(code: int, tmp_path: Path) -> None:
    bad = RookWorldError("no such file")
    found = fail(tmp_path, [bad if code else SystemExit(0), bad])
    assert [ended for ended, _ in found] == [code, 2]
    counts = [text.count("no such file") for _, text in found]
    assert sum(counts) == 1 and (code or counts[1])
    assert not any("Traceback" in text for _, text in found)


def test_a_process_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    (_, _), (code, said) = fail(tmp_path, [KeyError("planted"), SystemExit(0)], delay=3_600)
    assert code == 1
    assert said.count("process 1 ends, because process 0 failed (KeyError: 'planted')") == 1


def reduces(argv: Sequence[str], error: Exception | None) -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    distributed.all_reduce(torch.ones(1))
    assert gloo_threads()
    if error is not None:
        raise error


@pytest.mark.skipif(sys.platform != "linux", reason="threads are told by name on Linux only")
@pytest.mark.parametrize(("error", "code"), [(None, 0), (RookWorldError("planted"), 2)])
def test_no_thread_of_the_group_stays_behind(error: Any, code: int, tmp_path: Path) -> None:
    """One that outlives the interpreter aborts it (PyTorch issue 190489)."""
    process = forked(tmp_path / "log", _run, functools.partial(reduces, error=error))
    process.join(200)
    said = (tmp_path / "log").read_text()
    assert process.exitcode == code and said.endswith("group: False threads: []\n"), said


def test_a_log_file_has_each_line_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def main(argv: object) -> None:
        print("step 5")
        seen.append((tmp_path / "run.log").read_text())

    with (tmp_path / "run.log").open("w") as log:
        monkeypatch.setattr(sys, "stdout", log)
        with pytest.raises(SystemExit):
            run_cli(main)
    assert seen == ["step 5\n"]


GROUPS = [RookWorldGRPOConfig]  # as in a recipe's script
SIZES = "max_completion_length or per_device_eval_batch_size or per_device_train_batch_size"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), f"out of memory .*lower {SIZES}"),
        (None, f"out of memory .*lower {SIZES}"),
        (OSError(errno.ENOSPC, "No space left", "x.parquet"), "the disk is full .*x.parquet"),
    ],
    ids=["GPU", "CPU", "disk"],
)
def test_what_runs_out_is_one_message(error: Exception | None, said: str, capsys: Any) -> None:
    def main(argv: Sequence[str]) -> None:
        if error is not None:
            raise error
        torch.empty(2**50)

    with pytest.raises(SystemExit) as ended:
        run_cli(main)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"{said}.*--resume_from_checkpoint auto", line)


def opened_by_torch() -> None:
    torch.save({}, "/proc/model.pt")


def opened_by_safetensors() -> None:
    safetensors.torch.save_file({"a": torch.zeros(1)}, "/proc/model.safetensors")


def opened_by_arrow() -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), "/proc/rows.parquet")


def opened_by_python() -> None:
    open("/proc/rows.jsonl", "w").close()


@pytest.mark.parametrize(
    "write", [opened_by_torch, opened_by_safetensors, opened_by_arrow, opened_by_python]
)
def test_a_file_that_cannot_be_written_is_one_message(write: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        run_cli(lambda argv: write())
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert "cannot use " in line and "No such file or directory" in line


def test_without_a_launcher_one_gpu_of_several_is_used(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    cases: list[tuple[dict[str, str], str]] = [({}, "2"), ({"LOCAL_RANK": "0"}, "2,3")]
    for launcher, devices in cases:
        own = {**os.environ, "CUDA_VISIBLE_DEVICES": "2,3", **launcher}
        monkeypatch.setattr(os, "environ", own)
        with pytest.raises(SystemExit):
            run_cli(lambda argv: None)
        assert own["CUDA_VISIBLE_DEVICES"] == devices
        assert ("--num_processes 8" in capsys.readouterr().err) is not bool(launcher)


START = """
import sys
sys.argv = ["rookworld", "grpo", "--dry_run"]
from rookworld_rlvr.cli.main import main
main()
"""


def test_ctrl_c_at_the_start_is_one_line() -> None:
    """At three moments. Before it was a traceback with exit code 1, or nothing at all."""
    usual = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    processes = [started(sys.executable, "-c", START, preexec_fn=usual) for _ in range(3)]
    for process in processes:
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err.strip()) == (130, "rookworld: interrupted")
