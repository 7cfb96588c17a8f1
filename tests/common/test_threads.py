"""How many threads torch uses, and how they wait: by OpenMP's own account, and told in time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from rookworld_rlvr.common.threads import SPINS

from ..conftest import RECIPES

TRAINS = ("grpo", "sft", "train_judge", "diagnose", "evaluate")
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def python(code: str, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", f"from rookworld_rlvr.common.threads import *\n{code}"],
        env={**kept, **given},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "threads on the CPU: 2 (3 cores, of which others are at work on 1)"),
        ({"OMP_NUM_THREADS": "3"}, "threads on the CPU: 3 (OMP_NUM_THREADS=3,"),
    ],
)
def test_a_core_that_is_busy_is_left_alone(given: dict[str, str], line: str) -> None:
    code = """
import os, psutil, torch
torch.set_num_threads(3)
os.sched_getaffinity = lambda _: {1, 2, 3}
psutil.cpu_percent = lambda seconds, percpu: [100.0, 93.0, 0.0, 12.5]
print(use_idle_cores())"""
    assert python(code, given).stdout.startswith(line)


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is torch's on Linux")
@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({"OMP_NUM_THREADS": "1"}, str(SPINS)),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_openmp_is_told_unless_the_user_tells_it(given: dict[str, str], spins: str) -> None:
    code = (
        "import psutil; psutil.cpu_percent = lambda *_, **__: [0.0] * 99; print(use_idle_cores())"
    )
    done = python(code, {**given, "OMP_DISPLAY_ENV": "verbose"})
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
    ((name, value),) = given.items()
    assert f"{name}={value}" in done.stdout


@pytest.mark.parametrize("script", TRAINS)
def test_a_script_says_so_before_torch_is_loaded(script: str) -> None:
    imports = [
        node
        for node in ast.parse((RECIPES / f"{script}.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert ast.unparse(imports[0]) == "from __future__ import annotations"
    assert "rookworld_rlvr.common.threads" in ast.unparse(imports[1])
