"""Texts that a command prints instead of running."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Print a text; no error if the reader, such as `head`, has already stopped reading."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python would raise it again when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
