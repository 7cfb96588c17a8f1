"""Progress and time left: a bar on a terminal, plain lines in a log file."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

T = TypeVar("T")
LINE_EVERY_S = 10.0  # in a log; shorter work writes no line
_BAR_AFTER_S = 1.0  # on a terminal


class Progress(tqdm):  # type: ignore[misc]
    """A context manager that shows the progress of a piece of work on stderr.

    Only the main process shows it. When several are nested, only the outermost is shown, so that bars
    do not overwrite each other.

    Args:
        title: What is being done.
        total: How many items there are. None if unknown: then no share and no time left are shown.
        unit: What is counted, in the plural.
        hidden: Show nothing, neither this progress nor any nested in it.
    """

    _open: ClassVar[int] = 0

    def __init__(
        self, title: str, total: int | None = None, unit: str = "rows", hidden: bool = False
    ) -> None:
        self._is_bar = sys.stderr.isatty()
        more: dict[str, Any] = {"delay": _BAR_AFTER_S, "dynamic_ncols": True}
        if not self._is_bar:
            more = {"delay": LINE_EVERY_S, "mininterval": LINE_EVERY_S, "file": io.StringIO()}
        hidden = hidden or Progress._open > 0 or os.environ.get("RANK", "0") != "0"
        kept = {"leave": False, "miniters": 1, "disable": hidden}
        super().__init__(total=total, desc=title, unit=f" {unit}", **kept, **more)

    def __enter__(self) -> Progress:
        Progress._open += 1
        return self

    def __exit__(self, *raised: Any) -> None:
        Progress._open -= 1
        self.close()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Called by tqdm when it is time to."""
        if self._is_bar:
            super().display(msg, pos)
        elif msg is None:
            seconds = self.format_dict["elapsed"]
            line = progress_line(self.desc, self.n, self.total, self.unit, seconds)
            print(line, file=sys.stderr, flush=True)


def progress_line(title: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """Format a line for a log.

    Args:
        title: What is being done.
        done: Items done.
        total: Items in total; None if unknown.
        unit: What is counted, after a space.
        seconds: Time since the work began.

    >>> progress_line("making rows", 5_000, 20_000, " rows", 20)
    'making rows: 5,000 of 20,000 rows (25%), 01:00 left'
    >>> progress_line("reading", 5_000, None, " rows", 20)
    'reading: 5,000 rows in 00:20'
    """
    if not total:
        return f"{title}: {done:,}{unit} in {interval(seconds)}"
    left = interval(seconds * (total - done) / done)
    return f"{title}: {done:,} of {total:,}{unit} ({done / total:.0%}), {left} left"


def interval(seconds: float) -> str:
    """Minutes and seconds, and hours if there are any.

    >>> interval(83)
    '01:23'
    """
    return str(tqdm.format_interval(seconds))


def quiet(wanted: bool) -> AbstractContextManager[object]:
    """A context manager that hides all progress inside it if `wanted`."""
    return Progress("", hidden=True) if wanted else nullcontext()


def shown(
    items: Iterable[T], title: str, total: int | None = None, unit: str = "rows"
) -> Iterator[T]:
    """Iterate over items and show the progress."""
    with Progress(title, total, unit) as progress:
        for item in items:
            yield item
            progress.update()
