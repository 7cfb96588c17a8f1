"""Who says why a run ends, among processes that share the launcher's store."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rookworld_rlvr.cli.together import Others

FAILS = """
import sys, time
from rookworld_rlvr.cli.parser import run_cli
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
