"""Ctrl-C while a command loads its modules: one line and exit code 130.

A KeyboardInterrupt inside an import ends in a long traceback, or is lost in some module's own `except`.
There is nothing to clean up yet, so the process leaves at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

VARIABLE = "ROOKWORLD_STARTS"  # set for the script that the command `rookworld` becomes


def watch() -> None:
    """Leave at Ctrl-C from now on, until `unwatch`; not if the signal is ignored, as under nohup."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def hand_over() -> None:
    """Before this process becomes a script: a signal waits until the script can `watch`."""
    os.environ[VARIABLE] = "1"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def unwatch() -> None:
    """Raise KeyboardInterrupt at Ctrl-C again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"\nrookworld: interrupted\n")
    os._exit(128 + number)
