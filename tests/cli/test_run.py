"""How a script ends: alone, and among processes that share the launcher's store."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rookworld_rlvr.cli.run import Others, run_cli

FAILS = """
import sys, time
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError

def main(argv):
    time.sleep(float(argv[0]))
    raise {error}

run_cli(main)
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """The store of a launcher, and its variables for two processes."""
    opened = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    variables = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(opened.port),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return opened


def fail(
    errors: list[str],
    monkeypatch: pytest.MonkeyPatch,
    delays: tuple[float, float] = (0.0, 5.0),
    in_turn: bool = False,
) -> list[tuple[int, str]]:
    """Exit code and stderr of two processes that wait before they fail.

    Args:
        errors: What each raises.
        monkeypatch: Sets their variables.
        delays: How long each waits, in seconds.
        in_turn: Whether the second starts when the first has failed.
    """
    processes: list[subprocess.Popen[str]] = []
    for rank, (error, delay) in enumerate(zip(errors, delays, strict=True)):
        monkeypatch.setenv("RANK", str(rank))
        words = [sys.executable, "-c", FAILS.format(error=error), str(delay)]
        if in_turn and processes:
            processes[0].wait(timeout=200)
        processes.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=200)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_the_first_process_that_fails_prints_its_traceback(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ["KeyError('planted')", "RuntimeError('connection closed by peer')"]
    (code, first), (other_code, second) = fail(errors, monkeypatch, (0.0, 0.0), in_turn=True)
    assert code == other_code == 1
    assert first.count("Traceback") == 1 and "KeyError: 'planted'" in first
    assert "Traceback" not in second
    assert "process 1 ends, because process 0 failed (KeyError: 'planted')" in second


def test_bad_input_on_all_processes_is_said_once(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code, first), (other_code, second) = fail(["RookWorldError('no such file')"] * 2, monkeypatch)
    assert code == other_code == 2
    assert (first + second).count("no such file") == 1 and "Traceback" not in first + second


@pytest.mark.slow
def test_bad_input_on_one_process_is_said_by_it(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ["SystemExit(0)", "RookWorldError('no such file')"]
    (code, first), (other_code, second) = fail(errors, monkeypatch)
    assert (code, other_code) == (0, 2)
    assert "no such file" not in first and "no such file" in second


@pytest.mark.slow
def test_a_process_that_does_not_end_by_itself_is_ended(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ["KeyError('planted')", "SystemExit(0)"]
    (_, _), (code, said) = fail(errors, monkeypatch, delays=(0.0, 3_600.0))
    assert code == 1
    assert said.count("process 1 ends, because process 0 failed (KeyError: 'planted')") == 1


def test_a_single_process_has_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert Others.of_this_run() is None


# --------------------------------------------------------------------------------------------------
# One process
# --------------------------------------------------------------------------------------------------
SCRIPT = """
import contextlib
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError


def main(argv):
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1
    )
    distributed.all_reduce(torch.ones(1))
    assert gloo_threads()
    if argv[0] == "fail":
        raise RookWorldError("planted")


def gloo_threads(seconds=0):
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it ended in between
            names.append(path.read_text())
    if seconds > 0 and any("gloo" in name for name in names):  # one takes a moment to end
        time.sleep(0.1)
        return gloo_threads(seconds - 0.1)
    return [name for name in names if "gloo" in name]


try:
    run_cli(main)
finally:
    print(distributed.is_initialized(), gloo_threads(5))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are told by name on Linux only")
@pytest.mark.parametrize(("how", "code"), [("succeed", 0), ("fail", 2)])
def test_a_script_leaves_no_thread_of_the_process_group_behind(how: str, code: int) -> None:
    """One that outlives the interpreter aborts it (PyTorch issue 190489)."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.strip() == "False []"


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


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(argv: object) -> None:
        raise KeyboardInterrupt

    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "argv", ["grpo.py"])
    with pytest.raises(SystemExit) as ended:
        run_cli(main)
    assert ended.value.code == 130
    assert said.getvalue() == "rookworld grpo: interrupted\n"


def test_without_a_launcher_one_gpu_of_several_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(os, "environ", {**os.environ, "CUDA_VISIBLE_DEVICES": "2,3"})
    with pytest.raises(SystemExit):
        run_cli(lambda argv: None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    assert "--num_processes 8" in capsys.readouterr().out
    os.environ["LOCAL_RANK"] = "0"
    os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
    with pytest.raises(SystemExit):
        run_cli(lambda argv: None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
