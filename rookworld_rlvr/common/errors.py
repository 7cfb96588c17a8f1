"""The errors that users see, and helpers to word them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_INTERRUPTED = 130  # as a shell gives that of Ctrl-C


class RookWorldError(ValueError):
    """Base of this package's errors. The message gives the bad value, the reason and the remedy."""


class NotationError(RookWorldError):
    """Text that does not have the form its task requires, see `tasks.text`.

    Args:
        reason: What is wrong, as a short phrase: rows are counted by it.
        text: The offending text; the message quotes its first 120 characters.
    """

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        shown = text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"
        super().__init__(f"{reason}: {shown!r}")


class UnjudgeableError(NotationError):
    """Text that can be read, but contradicts itself, so that no rule of chess says what is right."""


class IllegalPositionError(RookWorldError):
    """A FEN that is not a legal chess position (no king, side not to move in check, ...).

    Args:
        message: The error's text.
        kind: What makes it illegal, as a short phrase: rows are counted by it. None if python-chess
            cannot read the FEN.
    """

    def __init__(self, message: str, kind: str | None = None) -> None:
        self.kind = kind
        super().__init__(message)


class EngineError(RookWorldError):
    """The chess engine is missing, does not speak UCI, or keeps failing."""


class ConfigurationError(RookWorldError):
    """All faults of a configuration, reported together.

    Args:
        faults: One sentence per fault.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = list(faults)
        head = f"{len(faults)} fault{'s' if len(faults) != 1 else ''} in the configuration:"
        super().__init__("\n".join([head, *(f"  - {fault}" for fault in faults)]))


def close_matches(name: str, known: Iterable[str]) -> str:
    """A clause for a message: the known names that are close, or all of them if they are few.

    >>> close_matches("policy_formt", ["policy_format", "environment_exact"])
    '; did you mean policy_format?'
    >>> close_matches("regret", ["policy_format", "environment_exact"])
    '; choose one of environment_exact, policy_format'
    """
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    choose = "choose one of" if len(known) > 1 else "the only choice is"
    return f"; {choose} {', '.join(known)}" if 0 < len(known) <= 20 else ""
