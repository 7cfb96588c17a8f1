"""Which positions a model was trained on, as ranges that its configuration carries.

A model says something of every position, one unlike all of its training too. With the note in its
``config.json``, an attribute `rookworld`, it can be told where its word is worth little::

    {"trained_on": {"policy": {"move_numbers": [1, 4], "pieces": [30, 32]}}}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..common.errors import RookWorldError

Coverage = Mapping[str, Mapping[str, tuple[int, int]]]
"""Task → what of a position → its lowest and its highest value."""


_WORDS = {"move_numbers": "move number {}", "pieces": "{} pieces and pawns"}


def coverage(tasks: Iterable[str], fens: Iterable[str]) -> Coverage:
    """The ranges of training rows.

    Args:
        tasks: The task of each row.
        fens: The position of each.
    """
    found: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for task, fen in zip(tasks, fens, strict=True):
        for name, value in _measures(fen).items():
            found[task][name].add(value)
    return {
        task: {name: (min(seen), max(seen)) for name, seen in ranges.items()}
        for task, ranges in found.items()
    }


def widened(first: Coverage, second: Coverage) -> Coverage:
    """The ranges of what was trained on in two runs, one after the other."""
    both: dict[str, dict[str, tuple[int, int]]] = {}
    for covered in (first, second):
        for task, ranges in covered.items():
            mine = both.setdefault(task, {})
            for name, (low, high) in ranges.items():
                lowest, highest = mine.get(name, (low, high))
                mine[name] = min(low, lowest), max(high, highest)
    return both


def unlike(covered: Coverage, task: str, fen: str) -> list[str]:
    """What of a position lies outside of a model's training, a clause each.

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
    """What a model's configuration notes; empty where it notes nothing.

    Raises:
        RookWorldError: There is a note, but no ranges in it.
    """
    note = getattr(config, "rookworld", None)
    if note is None:
        return {}
    try:
        return {
            str(task): {name: _range(*ranges[name]) for name in _WORDS if name in ranges}
            for task, ranges in note["trained_on"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RookWorldError(
            f"the model's config.json: rookworld: {note!r} is no ranges of positions; remove it"
        ) from error


def note(config: Any, covered: Coverage) -> None:
    """Put the ranges into a model's configuration, which is saved with it."""
    config.rookworld = {
        "trained_on": {
            task: {name: list(pair) for name, pair in ranges.items()}
            for task, ranges in covered.items()
        }
    }


def _measures(fen: str) -> dict[str, int]:
    placement, *_, number = fen.split(" ")
    return {"move_numbers": int(number), "pieces": sum(map(str.isalpha, placement))}


def _range(low: Any, high: Any) -> tuple[int, int]:
    return int(low), int(high)
