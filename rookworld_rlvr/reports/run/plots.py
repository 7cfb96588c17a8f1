"""Curves with bands and dots with intervals, as SVG that takes its colours from the page.

matplotlib's SVG of these curves is some fifty times as large, and plotly needs four megabytes of
JavaScript; a line, a band and two axes need neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from markupsafe import Markup

from ...common.html import render

Point = tuple[float, float]  # step and value


Scale = Callable[[float], float]  # to pixels


COLOURS = 8  # of the page's style, `--c0` to `--c7`


_WIDTH, _HEIGHT = 380, 200


_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 24


_WIDTH_OF_INTERVALS, _NAMES, _VALUES, _OF_A_DOT = 460, 150, 60, 17


_MOST_POINTS = 240  # of a line; more would not be visible at this width


_MOST_MARKS = 300  # with a value to hover over, in all lines of a plot together


_DASHES = (
    "",
    "7 3",
    "2 3",
    "9 3 2 3",
)  # with the colours, so that colour alone never tells lines apart


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Args:
        label: In the legend, plain text.
        points: By step, or by `k` on an `Axis` of its own.
        band: Lower and upper bound of each point; empty for a line without a band.
        colour: Place among the page's colours.
        chosen: The step whose weights were saved, marked by a ring; None if it is not known.
        apart: Points that do not belong to the line, drawn as rings.
    """

    label: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float]] = ()
    colour: int = 0
    chosen: float | None = None
    apart: Sequence[Point] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis of a plot.

    Args:
        name: Of what is on it.
        doubling: Whether each doubling takes the same room, with a tick for each power of two.
    """

    name: str = "step"
    doubling: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval, in a row of `intervals`.

    Args:
        label: Whose value it is, plain text.
        value: In [0, 1].
        low: Lower end of the interval.
        high: Upper end of the interval.
        colour: Place among the page's colours.
        hollow: Drawn as a ring, for a value before training.
    """

    label: str
    value: float
    low: float
    high: float
    colour: int = 0
    hollow: bool = False


# --------------------------------------------------------------------------------------------------
# Curves
# --------------------------------------------------------------------------------------------------
def plot(
    title: str,
    series: Sequence[Series],
    note: str = "",
    is_share: bool = False,
    axis: Axis = Axis(),
) -> Markup:
    """Lines over steps, with their bands; empty if there are no points.

    Args:
        title: Plain text.
        series: Drawn in their order; points that are not finite are left out, and counted below.
        note: Shown under the plot, plain text.
        is_share: Whether values are shares, which are written in per cent.
        axis: What the points are by.
    """
    drawn = [line for line in map(_finite, series) if line.points]
    if not drawn:
        return Markup()
    steps = [step for line in drawn for step, _ in line.points]
    heights = [value for line in drawn for _, value in line.points]
    heights += [bound for line in drawn for pair in line.band for bound in pair]
    heights += [value for line in drawn for _, value in line.apart]
    first, last = min(steps), max(steps)
    ticks = _ticks(min(heights), max(heights))
    if is_share:  # a constant has room on both sides, but no share is outside of [0, 1]
        ticks = [tick for tick in ticks if 0 <= tick <= 1]
    x = _scale(first, last, _LEFT, _WIDTH - _RIGHT, axis.doubling)
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    form = _percent if is_share else _number
    labels = _labels(first, last, axis.doubling)
    chosen = sorted({c for line in drawn if (c := line.chosen) is not None and first <= c <= last})
    lost = sum(len(line.points) for line in series) - sum(len(line.points) for line in drawn)
    notes = [note, f"{lost} values that are not finite are left out." if lost else ""]
    return render(
        "plot.html",
        title=title,
        lines=[_drawn(line, x, y, form, max(8, _MOST_MARKS // len(drawn))) for line in drawn],
        ticks=[(y(tick), form(tick)) for tick in ticks],
        chosen=[(x(step), step) for step in chosen],
        steps=[(x(step), step, at) for step, at in labels if first < last or at == "middle"],
        note=" ".join(filter(None, notes)),
        axis=axis.name,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
    )


def _finite(line: Series) -> Series:
    kept = [place for place, (_, value) in enumerate(line.points) if math.isfinite(value)]
    band = [line.band[place] for place in kept] if line.band else ()
    return replace(line, points=[line.points[place] for place in kept], band=band)


def _labels(first: float, last: float, doubling: bool) -> list[tuple[float, str]]:
    """Where the horizontal axis has numbers, and how each is aligned to its place."""
    if not doubling:
        return [(first, "start"), ((first + last) / 2, "middle"), (last, "end")]
    between = (2.0**power for power in range(64) if first < 2**power <= last / 1.5)
    return [(first, "middle"), *((k, "middle") for k in between), (last, "end")]


def _scale(low: float, high: float, start: float, end: float, doubling: bool = False) -> Scale:
    """From [low, high] to pixels; an empty range lies in the middle.

    Args:
        low: Above 0 if `doubling`.
        high: At least `low`.
        start: Of the pixels.
        end: Of the pixels.
        doubling: See `Axis`.
    """
    if low == high:
        return lambda value: (start + end) / 2
    if doubling:
        span = math.log2(high / low)
        return lambda value: start + (end - start) * math.log2(value / low) / span
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that enclose a range.

    >>> _ticks(0.03, 0.98)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        pad = abs(high) or 1.0
        low, high = low - 0.1 * pad, high + 0.1 * pad
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _drawn(
    line: Series, x: Scale, y: Scale, form: Callable[[float], str], most: int
) -> dict[str, Any]:
    """A line in pixels, with at most so many marks that show their value under the mouse."""
    bounds = list(zip(line.points, line.band, strict=True)) if line.band else []
    upper = [(step, high) for (step, _), (_, high) in bounds]
    lower = [(step, low) for (step, _), (low, _) in bounds]
    marks = _thinned(line.points, most)
    return {
        "label": line.label,
        "colour": line.colour % COLOURS,
        "dash": _DASHES[line.colour % len(_DASHES)],
        "ends": f"{form(line.points[0][1])} to {form(line.points[-1][1])}",
        "path": _path(_thinned(line.points, _MOST_POINTS), x, y),
        "band": _path([*upper, *reversed(lower)], x, y),
        "marks": [(x(step), y(value), step, form(value)) for step, value in marks],
        "ring": _ring(line, x, y),
        "apart": [(x(step), y(value), form(value)) for step, value in line.apart],
        "radius": 2.5 if len(marks) <= 30 else 1.2,
    }


def _ring(line: Series, x: Scale, y: Scale) -> tuple[float, float] | None:
    """Where a line is at the step of the saved weights, between two of its points if need be."""
    steps, values = map(list, zip(*line.points, strict=True))
    if line.chosen is None or not steps[0] <= line.chosen <= steps[-1]:
        return None
    return x(line.chosen), y(float(np.interp(line.chosen, steps, values)))


def _path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points: the lowest and the highest of each stretch, so no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        extremes = {min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))}
        kept += sorted(extremes)
    return kept


# --------------------------------------------------------------------------------------------------
# Intervals
# --------------------------------------------------------------------------------------------------
def intervals(title: str, rows: Sequence[tuple[str, Sequence[Dot]]]) -> Markup:
    """Shares with their intervals, one row for each metric; empty without rows.

    Args:
        title: Plain text.
        rows: Name of a metric, and its dots from top to bottom.
    """
    if not rows:
        return Markup()
    x = _scale(0.0, 1.0, _NAMES, _WIDTH_OF_INTERVALS - _VALUES)
    keys = dict.fromkeys((dot.label, dot.colour) for _, dots in rows for dot in dots)
    placed, y = [], 4.0
    for name, dots in rows:
        heights = [y + _OF_A_DOT * (place + 0.5) for place in range(len(dots))]
        middle = y + _OF_A_DOT * len(dots) / 2
        placed.append((name, middle, list(zip(dots, heights, strict=True))))
        y += _OF_A_DOT * len(dots) + 8
    return render(
        "intervals.html",
        title=title,
        rows=placed,
        ticks=[(x(tick), _percent(tick)) for tick in (0, 0.25, 0.5, 0.75, 1)],
        keys=[{"label": label, "colour": colour, "dash": ""} for label, colour in keys],
        width=_WIDTH_OF_INTERVALS,
        values=_WIDTH_OF_INTERVALS,
        bottom=y,
        x=x,
        form=_percent,
    )
