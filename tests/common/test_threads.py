"""How torch's threads wait: OpenMP's own account of what it was told, and that it is told in time."""

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
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    code = "from rookworld_rlvr.common.threads import threads_line; print(threads_line())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
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
