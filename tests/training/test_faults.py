"""An exception on one of two processes ends both; a run with failing rewards and engines learns."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.stats import Proportion

from ..conftest import REPOSITORY, launch
from ..recipes.test_recipes import SMALL

LAUNCH = (
    "import sys; from rookworld_rlvr.cli.main import launch; raise SystemExit(launch(sys.argv[1:]))"
)
PLANTED = ["--module", "tests.training.faults_on_two"]


def start(*words: str) -> subprocess.Popen[str]:
    """The launcher, as the command `rookworld` starts it, in a process of its own."""
    config = str(REPOSITORY / "accelerate_configs" / "cpu.yaml")
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "--config_file", config, "--num_processes", "2", *words],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(*launchers: subprocess.Popen[str]) -> list[str]:
    """What was printed to stderr; a hang ends in `TimeoutExpired`."""
    try:
        return [launcher.communicate(timeout=240)[1] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rank"),
    [("sampling", 1), ("reward", 0), ("loss", 1), ("evaluation", 0), ("saving", 0), ("saving", 1)],
)
def test_an_exception_on_one_process_ends_both(place: str, rank: int, tmp_path: Path) -> None:
    words = [place, str(rank), *SMALL, "--max_steps", "4", "--output_dir", str(tmp_path)]
    launcher = start("--main_process_port", "0", *PLANTED, *words)
    (said,) = end(launcher)
    assert launcher.returncode == 1, said[-3000:]
    assert said.count("Traceback (most recent call last)") == 1, said
    assert said.count(f"KeyError: 'planted in {place}'") in (1, 2), said
    because = f"process {1 - rank} ends, because process {rank} failed (KeyError: 'planted in"
    assert said.count(" ends, because ") == said.count(because) <= 1, said


@pytest.mark.slow
def test_a_busy_process_on_another_machine_ends_too(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    machines = [
        "--num_machines",
        "2",
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
    ]
    words = ["sampling", "1", "busy", *SMALL, "--output_dir", str(tmp_path)]
    launchers = [
        start(*machines, "--machine_rank", str(rank), *PLANTED, *words) for rank in range(2)
    ]
    first, second = end(*launchers)
    assert [launcher.returncode for launcher in launchers] == [1, 1]
    assert (first + second).count("Traceback (most recent call last)") == 1
    assert "process 0 ends, because process 1 failed (KeyError: 'planted in sampling')" in first


def soaked(folder: Path, *words: str) -> list[dict[str, Any]]:
    """What each of two processes wrote after 200 steps."""
    folder.mkdir()
    done = launch("--module", "tests.training.soak_on_two", str(folder), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"soak{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_a_run_with_failing_rewards_and_engines_learns_as_an_undisturbed_one(
    tmp_path: Path, stockfish: str
) -> None:
    clean, _ = soaked(tmp_path / "clean")
    processes = soaked(tmp_path / "faults", "faults")
    disturbed, planted = processes[0], [process["planted"] for process in processes]
    assert disturbed["steps"] == clean["steps"] == 200
    assert clean["unscored"] == 0
    lost = sum(counts["lost"] for counts in planted)
    assert lost > 0 and disturbed["unscored"] == pytest.approx(lost)
    calls = sum(counts["calls"] for counts in planted)
    assert 0.02 < sum(counts["failed"] for counts in planted) / calls < 0.1
    assert all(counts["kills"] == 9 for counts in planted)
    assert all(process["searched"] > 0 and process["given_up"] == 0 for process in processes)
    for name in ("environment/exact", "policy/best_move"):
        low, high = Proportion(*clean["after"][name]).interval
        found = Proportion(*disturbed["after"][name]).value
        assert low <= found <= high, name
    before, after = (Proportion(*clean[when]["environment/exact"]) for when in ("before", "after"))
    assert after.value > before.value, "there was something to learn"
