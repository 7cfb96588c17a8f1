"""Curves with bands and dots with intervals, as SVG that takes its colours from the page.

matplotlib's SVG of these curves is some fifty times as large, and plotly needs four megabytes of
JavaScript; a line, a band and two axes need neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...common.html import prose, text

Point = tuple[float, float]  # step and value


COLOURS = 8  # of the page's style, `--c0` to `--c7`


_WIDTH, _HEIGHT = 380, 200


_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 24


_MOST_POINTS = 240  # of a line: more are not seen at this width


_MOST_MARKS = 300  # with a value to hover, of all the lines of a plot


_DASHES = ("", "7 3", "2 3", "9 3 2 3")  # with the colours, so that no line is told by colour alone


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Args:
        label: In the legend, plain text.
        points: By step.
        band: Lower and upper bound of each point; none for a line without.
        colour: Place among the page's colours.
    """

    label: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float]] = ()
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval, in a row of `intervals`.

    Args:
        label: Of whom, plain text.
        value: In [0, 1].
        low: Of the interval.
        high: Of the interval.
        colour: Place among the page's colours.
        hollow: Drawn as a ring, for what was before.
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
def plot(title: str, series: Sequence[Series], note: str = "", is_share: bool = False) -> str:
    """Lines over steps, with bands where they have some; empty without a point.

    Args:
        title: Plain text.
        series: Drawn in their order; points that are not finite are passed over, and counted below.
        note: Stands under the plot, plain text.
        is_share: Whether values are shares, which are written in per cent.
    """
    drawn = [_finite(line) for line in series]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return ""
    steps = [step for line in drawn for step, _ in line.points]
    heights = [value for line in drawn for _, value in line.points]
    heights += [bound for line in drawn for pair in line.band for bound in pair]
    x = _scale(min(steps), max(steps), _LEFT, _WIDTH - _RIGHT)
    ticks = _ticks(min(heights), max(heights))
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    form = _percent if is_share else _number
    parts = [_axes(ticks, y, form), _step_labels(min(steps), max(steps), x)]
    parts += [_band(line, x, y) for line in drawn if line.band]
    parts += [_line(line, x, y) for line in drawn]
    each = max(8, _MOST_MARKS // len(drawn))
    parts += [_marks(line, x, y, form, each) for line in drawn]
    lost = sum(len(line.points) for line in series) - sum(len(line.points) for line in drawn)
    notes = [note, f"{lost} values that are not finite are left out." if lost else ""]
    return _figure(title, "".join(parts), drawn, " ".join(filter(None, notes)), form)


def _finite(line: Series) -> Series:
    kept = [place for place, (_, value) in enumerate(line.points) if math.isfinite(value)]
    band = [line.band[place] for place in kept] if line.band else ()
    return Series(line.label, [line.points[place] for place in kept], band, line.colour)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From [low, high] to pixels; an empty range lies in the middle."""
    if low == high:
        return lambda value: (start + end) / 2
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


def _axes(ticks: Sequence[float], y: Callable[[float], float], form: Callable[[float], str]) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" '
        f'y2="{y(tick):.1f}"/><text x="{_LEFT - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">'
        f"{form(tick)}</text>"
        for tick in ticks
    )


def _step_labels(first: float, last: float, x: Callable[[float], float]) -> str:
    if first == last:
        shown = [(first, "middle")]
    else:
        shown = [(first, "start"), ((first + last) / 2, "middle"), (last, "end")]
    return "".join(
        f'<text x="{x(step):.1f}" y="{_HEIGHT - 7}" text-anchor="{anchor}">'
        f"{'step ' if place == 0 else ''}{step:.0f}</text>"
        for place, (step, anchor) in enumerate(shown)
    )


def _band(line: Series, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    steps = [step for step, _ in line.points]
    upper = [(step, high) for step, (_, high) in zip(steps, line.band, strict=True)]
    lower = [(step, low) for step, (low, _) in zip(steps, line.band, strict=True)]
    points = _path([*upper, *reversed(lower)], x, y)
    return f'<polygon class="band s{line.colour}" points="{points}"/>'


def _line(line: Series, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    dash = _DASHES[line.colour % len(_DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    points = _path(_thinned(line.points, _MOST_POINTS), x, y)
    return f'<polyline class="s{line.colour}"{style} points="{points}"/>'


def _path(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points: the lowest and the highest of every stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        extremes = {min(stretch, key=_value), max(stretch, key=_value)}
        kept += sorted(extremes)
    return kept


def _value(point: Point) -> float:
    return point[1]


def _marks(
    line: Series,
    x: Callable[[float], float],
    y: Callable[[float], float],
    form: Callable[[float], str],
    most: int,
) -> str:
    """Dots that say their value where a mouse rests on them; small lines show them too."""
    points = _thinned(line.points, most)
    radius = 2.5 if len(points) <= 30 else 1.2
    return "".join(
        f'<circle class="s{line.colour}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="{radius}"><title>'
        f"{text(line.label)}, step {step:.0f}: {form(value)}</title></circle>"
        for step, value in points
    )


def _figure(
    title: str,
    drawing: str,
    lines: Sequence[Series],
    note: str,
    form: Callable[[float], str],
) -> str:
    ends = "; ".join(
        f"{line.label}: {form(line.points[0][1])} to {form(line.points[-1][1])}" for line in lines
    )
    keys = _legend([(line.label, line.colour) for line in lines]) if len(lines) > 1 else ""
    below = f'<p class="note">{prose(note)}</p>' if note else ""
    return (
        f'<figure class="plot"><figcaption>{text(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(f"{title}. {ends}")}">'
        f"{drawing}</svg>{keys}{below}</figure>"
    )


def _legend(entries: Sequence[tuple[str, int]], dashed: bool = True) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 28 8" aria-hidden="true"><line class="s{colour}" x1="0" y1="4" '
        f'x2="28" y2="4" stroke-dasharray="{_DASHES[colour % len(_DASHES)] if dashed else ""}"/></svg>'
        f"{text(label)}</li>"
        for label, colour in entries
    )
    return f'<ul class="legend">{keys}</ul>'


# --------------------------------------------------------------------------------------------------
# Intervals
# --------------------------------------------------------------------------------------------------
def intervals(title: str, rows: Sequence[tuple[str, Sequence[Dot]]]) -> str:
    """Shares with their intervals, one row a metric; empty without rows.

    Args:
        title: Plain text.
        rows: Name of the metric and its dots, drawn under each other.
    """
    if not rows:
        return ""
    x = _scale(0.0, 1.0, 150, _WIDTH - 20)
    parts, y = [], 6.0
    for name, dots in rows:
        middle = y + 5 + 5 * len(dots)
        parts.append(f'<text x="0" y="{middle + 1:.1f}">{text(name)}</text>')
        for dot in dots:
            y += 10
            parts.append(_dot(name, dot, x, y - 2))
        y += 8
    grid = "".join(
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="2" y2="{y:.1f}"/>'
        f'<text x="{x(tick):.1f}" y="{y + 13:.1f}" text-anchor="middle">{_percent(tick)}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    )
    labels = dict.fromkeys((dot.label, dot.colour) for _, dots in rows for dot in dots)
    keys = _legend(list(labels), dashed=False) if len(labels) > 1 else ""
    return (
        f'<figure class="plot intervals"><figcaption>{text(title)}</figcaption><svg viewBox="0 0 '
        f'{_WIDTH} {y + 18:.0f}" role="img" aria-label="{text(title)}; the numbers are in the table">'
        f"{grid}{''.join(parts)}</svg>{keys}</figure>"
    )


def _dot(name: str, dot: Dot, x: Callable[[float], float], y: float) -> str:
    words = (
        f"{name}, {dot.label}, {'before' if dot.hollow else 'after'}: {_percent(dot.value)} "
        f"[{_percent(dot.low)}, {_percent(dot.high)}]"
    )
    hollow = " hollow" if dot.hollow else ""
    return (
        f'<g><title>{text(words)}</title><line class="s{dot.colour}" x1="{x(dot.low):.1f}" '
        f'x2="{x(dot.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/><circle class="s{dot.colour}{hollow}" '
        f'cx="{x(dot.value):.1f}" cy="{y:.1f}" r="4"/></g>'
    )
