"""Ctrl-C while `rookworld` loads its modules."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

START = """
import sys
sys.argv = ["rookworld", "grpo", "--dry_run"]
from rookworld_rlvr.cli.main import main
main()
"""


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_ctrl_c_at_the_start_is_one_line(seconds: float) -> None:
    """Before it was a traceback with exit code 1, or nothing at all."""
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "rookworld: interrupted")
