"""Text that comes from outside, such as a model's answer, made safe for a terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable

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
    """Columns to print in: those of the terminal, `most` at most and in a log file."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def wrapped(text: str, indent: int = 2, most: int = 100) -> str:
    """A text with its long lines broken between words.

    Args:
        text: Lines of any length.
        indent: Of the further lines of a long one, in blanks.
        most: See `width`.
    """
    further = " " * indent
    return "\n".join(
        textwrap.fill(line, width(most), subsequent_indent=further, break_on_hyphens=False)
        if len(line) > width(most)
        else line
        for line in text.splitlines()
    )


def cells(head: str, numbers: Iterable[str]) -> list[str]:
    """Lines of names with their numbers, which stay together; further lines are indented like the first.

    >>> cells("policy  ", ["best_move 25.0%", "format 100.0%"])
    ['policy  best_move 25.0%  format 100.0%']
    """
    text = textwrap.fill(
        "  ".join(number.replace(" ", "\0") for number in numbers),
        width(),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return text.replace("\0", " ").splitlines()
