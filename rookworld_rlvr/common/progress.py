"""Progress and time left: a bar on a terminal, plain lines in a log file."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

T = TypeVar("T")


LINE_EVERY_S = 10.0  # in a log; shorter work writes no line


_BAR_AFTER_S = 1.0  # on a terminal


class Progress:
    """A context manager that shows the progress of a piece of work on stderr.

    Only the main process shows it. When several are nested, only the outermost is shown, so that bars
    do not overwrite each other.

    Args:
        title: What is being done.
        total: How many items there are. None if unknown: then no share and no time left are shown.
        unit: What is counted, in the plural.
        hidden: Show nothing, neither this progress nor any nested in it.
    """

    _open: ClassVar[list[Progress]] = []

    def __init__(
        self, title: str, total: int | None = None, unit: str = "rows", hidden: bool = False
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._hidden = hidden or os.environ.get("RANK", "0") != "0"
        self._bar: tqdm[None] | None = None
        self.done = 0

    def __enter__(self) -> Progress:
        self._hidden = self._hidden or bool(self._open)
        self._open.append(self)
        self._started = self._said = time.monotonic()
        if not self._hidden and sys.stderr.isatty():
            self._bar = tqdm(
                total=self._total,
                desc=self._title,
                unit=f" {self._unit}",
                leave=False,
                delay=_BAR_AFTER_S,
                dynamic_ncols=True,
            )
        return self

    def update(self, count: int = 1) -> None:
        """Report that `count` more items are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif not self._hidden and time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            line = progress_line(
                self._title, self.done, self._total, self._unit, self._said - self._started
            )
            print(line, file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.remove(self)
        if self._bar is not None:
            self._bar.close()


class LogBar(tqdm):  # type: ignore[misc]
    """A bar for libraries that take a class of tqdm's; it writes plain lines for a log on stderr."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kept = {"file": io.StringIO(), "mininterval": LINE_EVERY_S, "disable": False}
        super().__init__(*args, **{**kwargs, **kept})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Called by tqdm when it is time to."""
        started = getattr(self, "start_t", None)  # not yet set if a bar does not begin at 0
        seconds = time.time() - started if started else 0.0
        if 0 < self.n < (self.total or 0) and seconds >= LINE_EVERY_S:
            line = progress_line(self.desc, self.n, self.total, self.unit.strip(), seconds)
            print(line, file=sys.stderr, flush=True)


def progress_line(title: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """Format a line for a log.

    Args:
        title: What is being done.
        done: Items done.
        total: Items in total; None if unknown.
        unit: What is counted, in the plural.
        seconds: Time since the work began.

    >>> progress_line("making rows", 5_000, 20_000, "rows", 20)
    'making rows: 5,000 of 20,000 rows (25%), 01:00 left'
    >>> progress_line("reading", 5_000, None, "rows", 20)
    'reading: 5,000 rows in 00:20'
    """
    if not total:
        return f"{title}: {done:,} {unit} in {interval(seconds)}"
    left = f", {interval(seconds * (total - done) / done)} left" if done else ""
    return f"{title}: {done:,} of {total:,} {unit} ({done / total:.0%}){left}"


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
