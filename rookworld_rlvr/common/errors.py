"""The errors that users see, and what helps to word them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any


class RookWorldError(ValueError):
    """Base of this package's errors: bad input, named with its value, the reason and the remedy."""


class NotationError(RookWorldError):
    """A text that the grammar of `notation` does not read.

    Args:
        reason: What is wrong, a short phrase that rows can be counted by.
        text: The offending text; the message quotes its first 120 characters.
    """

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        shown = text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"
        super().__init__(f"{reason}: {shown!r}")


class IllegalPositionError(RookWorldError):
    """A readable FEN that is no chess position (no king, side not to move in check, ...)."""


class EngineError(RookWorldError):
    """The chess engine is missing, is none, or cannot be kept running."""


class ConfigurationError(RookWorldError):
    """One or several faults of a configuration, reported together.

    Args:
        faults: One sentence each.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = list(faults)
        head = f"{len(faults)} fault{'s' if len(faults) != 1 else ''} in the configuration:"
        super().__init__("\n".join([head, *(f"  - {fault}" for fault in faults)]))


def json_value(key: str, value: Any) -> Any:
    """A key's value; a text, as the command line gives it, is read as JSON.

    Raises:
        ConfigurationError: The text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ConfigurationError([f"{key}: {value!r} is no JSON ({error})"]) from error


def close_matches(name: str, known: Iterable[str]) -> str:
    """A clause that lists the known names, the close ones first; empty without any.

    >>> close_matches("policy_formt", ["policy_format", "environment_exact"])
    '; did you mean policy_format?'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= 20 else ""
