"""Which positions a model was trained on, as ranges in its configuration.

A model answers for every position, even for one that is unlike all of its training. The attribute
`rookworld` of its ``config.json`` lets us warn that an answer is worth little::

    {"trained_on": {"policy": {"move_numbers": [1, 4], "pieces": [30, 32]}}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..common.errors import RookWorldError

Coverage = Mapping[str, Mapping[str, tuple[int, int]]]
"""Task → property of a position → its lowest and highest value."""


_WORDS = {"move_numbers": "move number {}", "pieces": "{} pieces and pawns"}


def coverage(tasks: Iterable[str], fens: Iterable[str], before: Coverage | None = None) -> Coverage:
    """The ranges that training rows cover, together with those of an earlier training.

    Args:
        tasks: The task of each row.
        fens: The position of each row.
        before: The ranges of the model that is trained on.
    """
    found = {task: dict(ranges) for task, ranges in (before or {}).items()}
    for task, fen in zip(tasks, fens, strict=True):
        ranges = found.setdefault(task, {})
        for name, value in _measures(fen).items():
            low, high = ranges.get(name, (value, value))
            ranges[name] = min(low, value), max(high, value)
    return found


def unlike(covered: Coverage, task: str, fen: str) -> list[str]:
    """In what way a position is outside the model's training, one clause for each property.

    >>> fen = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
    >>> unlike({"policy": {"move_numbers": (1, 4), "pieces": (30, 32)}}, "policy", fen)
    ['6 pieces and pawns, trained on 30 to 32']
    """
    ranges = covered.get(task, {})
    return [
        f"{_WORDS[name].format(value)}, trained on {ranges[name][0]} to {ranges[name][1]}"
        for name, value in _measures(fen).items()
        if name in ranges and not ranges[name][0] <= value <= ranges[name][1]
    ]


def noted(config: Any) -> Coverage:
    """Read the ranges from a model's configuration; empty if it has none.

    Raises:
        RookWorldError: The attribute `rookworld` does not hold ranges.
    """
    note = getattr(config, "rookworld", None)
    if note is None:
        return {}
    try:
        return {
            str(task): {
                name: (int(low), int(high))
                for name, (low, high) in ranges.items()
                if name in _WORDS
            }
            for task, ranges in note["trained_on"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RookWorldError(
            f"the model's config.json: rookworld: {note!r} does not hold ranges of positions; remove it"
        ) from error


def note(config: Any, covered: Coverage) -> None:
    """Write the ranges into a model's configuration, which is saved with the model."""
    config.rookworld = {
        "trained_on": {
            task: {name: list(pair) for name, pair in ranges.items()}
            for task, ranges in covered.items()
        }
    }


def _measures(fen: str) -> dict[str, int]:
    placement, *_, number = fen.split(" ")
    return {"move_numbers": int(number), "pieces": sum(map(str.isalpha, placement))}
