"""Texts that a command prints instead of running."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

LOG = "log.txt"


class Logged:
    """A stream whose text also goes to a file, line by line; everything else is the stream's.

    Args:
        stream: Where the text goes too.
        path: The file; what it has stays.
    """

    def __init__(self, stream: Any, path: Path) -> None:
        self.stream = stream
        self._log = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")

    def write(self, text: str) -> int:
        self._log.write(text)
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def keep_log(folder: Path) -> None:
    """Write what is printed on stdout from now on to `LOG` in a run's folder, too."""
    sys.stdout = Logged(getattr(sys.stdout, "stream", sys.stdout), folder / LOG)


def show(text: str) -> None:
    """Print a text; no error if the reader, such as `head`, has already stopped reading."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python would raise it again when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
