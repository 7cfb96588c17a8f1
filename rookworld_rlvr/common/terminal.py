"""Text that comes from outside, such as a model's answer, made safe for a terminal."""

from __future__ import annotations

import re
import shutil

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


def width() -> int:
    """Columns for text: those of the terminal, at most 100, which a log has too."""
    return min(100, shutil.get_terminal_size((100, 24)).columns)
