"""How many threads torch uses, and how they wait: by OpenMP's own account, and told in time."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from huggingface_hub import constants

from rookworld_rlvr.cli.run import SCRIPTS
from rookworld_rlvr.common.machine import (
    SPINS,
    is_fetched,
    machine,
    reaches_hub,
    use_idle_cores,
)

from ..support import RECIPES, ran

TRAINS = sorted({"grpo", "sft", "judge", "diagnose", "evaluate"} & {*SCRIPTS})
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
OPENMP = """
import ctypes, sys
from pathlib import Path
from rookworld_rlvr.common import machine
assert "torch" not in sys.modules
(library,) = Path(sys.argv[1]).glob("libgomp*")
ctypes.CDLL(str(library))
"""


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "threads on the CPU: 2 (3 cores, of which others are at work on 1)"),
        ({"OMP_NUM_THREADS": "3"}, "threads on the CPU: 3"),
    ],
)
def test_a_busy_core_is_left_alone(given: dict[str, str], line: str, monkeypatch: Any) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [100.0, 93.0, 0.0, 12.5])
    threads = [3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    assert use_idle_cores() == line


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is torch's on Linux")
@pytest.mark.parametrize(
    ("name", "value", "spins"),
    [
        ("OMP_NUM_THREADS", "1", SPINS),
        ("OMP_WAIT_POLICY", "passive", 0),
        ("GOMP_SPINCOUNT", "7", 7),
    ],
)
def test_openmp_is_told_unless_the_user_tells_it(name: str, value: str, spins: int) -> None:
    """Torch's OpenMP, loaded after the module, as torch itself would load it."""
    kept = {key: old for key, old in os.environ.items() if key not in VARIABLES}
    line = (sys.executable, "-c", OPENMP, os.path.join(torch.__path__[0], "lib"))
    done = ran(*line, env={**kept, name: value, "OMP_DISPLAY_ENV": "verbose"})
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


@pytest.mark.parametrize("script", TRAINS)
def test_a_script_says_so_before_torch_is_loaded(script: str) -> None:
    lines = re.findall("^(?:from|import) .*", (RECIPES / f"{script}.py").read_text(), re.M)
    assert lines[0] == "from __future__ import annotations"
    assert "rookworld_rlvr.common.machine" in lines[1]


def test_the_hub_is_reached_if_something_listens_and_it_is_not_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert reaches_hub("ann/big")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert not reaches_hub("ann/big")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert not reaches_hub("ann/big"), "nobody listens there any more"


def test_a_model_of_several_files_and_of_another_revision_counts_as_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--ann--big" / "snapshots" / "c0ffee"
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "tuned").write_text("c0ffee")
    (snapshot / "model.safetensors.index.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert is_fetched("ann/big", "tuned")
    assert not is_fetched("ann/big") and not is_fetched("ann/small", "tuned")
    assert not is_fetched("no/name/there")


def test_the_commit_is_that_of_the_package_s_own_checkout(tmp_path: Path, monkeypatch: Any) -> None:
    def git(*words: str, cwd: Path) -> str:
        as_somebody = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        return ran("git", *as_somebody, *words, cwd=cwd).stdout.strip()

    (own := tmp_path / "own").mkdir()
    git("init", "-q", cwd=own)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=own)
    git("worktree", "add", "-q", str(tmp_path / "other"), cwd=own)
    inner = own / "venv"  # a package that was installed into somebody's checkout
    for root, wanted in ((own, True), (tmp_path / "other", True), (inner, False)):
        module = root / "rookworld_rlvr" / "common" / "machine.py"
        monkeypatch.setattr("rookworld_rlvr.common.machine.__file__", str(module))
        module.parent.mkdir(parents=True)
        commit = git("rev-parse", "HEAD", cwd=own) if wanted else None
        assert machine()["commit"] == commit
