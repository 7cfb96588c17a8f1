"""The terminal: text from outside made safe for it, lines of its width, a log beside them, Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

LOG = "log.txt"


# Control characters without tab and newline, marks that reorder or hide text, and lone surrogates.
_ACTED_ON = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Escape the characters that a terminal would act on or that hide what is there, as JSON does.

    >>> print(printable("Nf3\x1b[2J"))
    Nf3\u001b[2J
    """
    return _ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def width(most: int = 100) -> int:
    """Columns to print in: those of the terminal, `most` at most and where there is none.

    What goes through a pager or `head` is read in the terminal that the other streams belong to.
    """
    for stream in (1, 2, 0):
        with contextlib.suppress(OSError):
            most = min(most, os.get_terminal_size(stream).columns or most)
            break
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def wrapped(text: str, indent: int = 2) -> str:
    """A text with its long lines broken between words.

    Args:
        text: Lines of any length.
        indent: Of the further lines of a long one, in blanks.
    """
    wrapper = textwrap.TextWrapper(width(), "", " " * indent, break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, text.splitlines()))


def entry(head: str, text: str) -> str:
    """A list's entry: a head and a text, whose further lines are indented by the head's length."""
    wrapper = textwrap.TextWrapper(width(), head, " " * len(head), break_on_hyphens=False)
    wrapper.break_long_words = False
    return wrapper.fill(text)


def cells(head: str, numbers: Iterable[str]) -> list[str]:
    """Lines of names with their numbers, which stay together; further lines are indented like the first.

    >>> cells("policy  ", ["best_move 25.0%", "format 100.0%"])
    ['policy  best_move 25.0%  format 100.0%']
    """
    text = "  ".join(number.replace(" ", "\0") for number in numbers)
    return entry(head, text).replace("\0", " ").splitlines()


class Logged:
    """A stream whose text also goes to a file, line by line; everything else is the stream's.

    Args:
        stream: Where the text goes too.
        path: The file; what it has stays. It is locked while this process lives, see `is_in_use`.
    """

    def __init__(self, stream: Any, path: Path) -> None:
        self.stream = stream
        self._log = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")

        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.lockf(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, text: str) -> int:
        self._log.write(text)
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def keep_log(folder: Path) -> None:
    """Write what is printed on stdout from now on to `LOG` in a run's folder, too."""
    sys.stdout = Logged(getattr(sys.stdout, "stream", sys.stdout), folder / LOG)


def is_in_use(folder: Path) -> bool:
    """Whether a run of another process on this machine writes to a folder."""
    path = folder / LOG
    if not path.is_file():
        return False
    with path.open("a") as log:
        try:
            fcntl.lockf(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another one on a file system without locks
            return isinstance(error, BlockingIOError)
    return False


def show(text: str) -> None:
    """Print a text; no error if the reader, such as `head`, has already stopped reading."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Let what stdout still has go nowhere, if it cannot be written: Python would fail at exit again."""
    try:
        sys.stdout.flush()
    except OSError:  # its reader has left, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --------------------------------------------------------------------------------------------------
# Ctrl-C while a command loads its modules: one line and exit code 130
# --------------------------------------------------------------------------------------------------
# A KeyboardInterrupt inside an import ends in a long traceback, or is lost in some module's `except`.
# There is nothing to clean up yet, so the process leaves at once.
STARTS = "ROOKWORLD_STARTS"  # set for the script that the command `rookworld` becomes


def watch_ctrl_c() -> None:
    """Leave at Ctrl-C until `unwatch_ctrl_c`; not if the signal is ignored, as under nohup."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def unwatch_ctrl_c() -> None:
    """Raise KeyboardInterrupt at Ctrl-C again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"\nrookworld: interrupted\n")
    os._exit(128 + number)
