"""Numbers for a report: means and deviations that leave out what there is not, and rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def clean(value: Any) -> Any:
    """Numbers at six digits, None where one is not finite; containers through and through.

    >>> clean({"a": (1 / 3, float("nan"))})
    {'a': [0.333333, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def mean(numbers: Iterable[float | None]) -> float | None:
    """The mean of those that there are; None without any."""
    known = [n for n in numbers if n is not None and not math.isnan(n)]
    return sum(known) / len(known) if known else None


def sample_deviation(numbers: Iterable[float | None]) -> float | None:
    """Sample deviation, as TRL's; None for fewer than two."""
    known = [n for n in numbers if n is not None and not math.isnan(n)]
    if len(known) < 2:
        return None
    centre = sum(known) / len(known)
    return math.sqrt(sum((n - centre) ** 2 for n in known) / (len(known) - 1))
