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
_LINE = "{desc}: {n:,} of {total:,}{unit} ({percentage:.0f}%), {remaining} left"
_LINE_WITHOUT_TOTAL = "{desc}: {n:,}{unit} in {elapsed}"


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
            more |= {"smoothing": 0, "bar_format": _LINE if total else _LINE_WITHOUT_TOTAL}
        hidden = hidden or Progress._open > 0 or os.environ.get("RANK", "0") != "0"
        kept = {"leave": False, "miniters": 1, "disable": hidden}
        super().__init__(total=total, desc=title, unit=f" {unit}", **kept, **more)

    def __enter__(self) -> Progress:
        Progress._open += 1
        return self

    def __exit__(self, *raised: Any) -> None:
        Progress._open -= 1
        self.close()

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Called by tqdm when it is time to; whether there is something to clear."""
        if self.total and self.n > self.total:
            self.bar_format = _LINE_WITHOUT_TOTAL  # more than were expected
        if self._is_bar:
            return bool(super().display(msg, pos))
        if msg is None:
            print(self, file=sys.stderr, flush=True)
        return False


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
