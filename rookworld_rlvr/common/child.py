"""A command in a process of its own, which ends with this one."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def run_child(command: Sequence[str], log: Path) -> int:
    """Run a command and append what it prints to a file; returns its exit code.

    It ends with this process: at an exception it is asked to, and after SIGKILL the system ends it.
    """
    with (
        log.open("a", encoding="utf-8") as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent
        ) as process,
    ):
        try:
            return process.wait()
        finally:
            process.terminate()


def last_line(log: Path) -> str:
    """The last line that a child printed."""
    return (log.read_text(encoding="utf-8").strip() or "no output").splitlines()[-1]


def _end_with_parent() -> None:
    """Let the system kill this process with its parent, so that no two ever write to one folder.

    It matters if the parent itself is killed by SIGKILL. Only Linux can do it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
