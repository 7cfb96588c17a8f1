"""How a script ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path

import torch
from torch import distributed

from rookworld_rlvr.cli import parser
from rookworld_rlvr.common.errors import RookWorldError


def main(argv):
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1
    )
    distributed.all_reduce(torch.ones(1))
    assert gloo_threads()
    if argv[0] == "fail":
        raise RookWorldError("planted")


def gloo_threads():
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if "gloo" in name]


try:
    parser.run_cli(main)
finally:
    print(distributed.is_initialized(), gloo_threads())
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
