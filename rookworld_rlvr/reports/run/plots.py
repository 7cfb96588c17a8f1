"""Which curves a report draws, and how: lines with bands, as SVG that takes its colours from the page.

matplotlib's SVG of these curves is some fifty times as large, and plotly needs four megabytes of
JavaScript; a line, a band and two axes need neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from markupsafe import Markup

from ...common.files import read_asset
from ...common.html import render
from ...common.stats import Proportion
from ...tasks.metrics import headlines, training_metrics
from ...training.glossary import dashboard_key, explain
from ...training.results import OWN_REWARDS
from .record import RunRecord

Point = tuple[float, float]  # step and value
Scale = Callable[[float], float]  # to pixels

COLOURS = 8  # of the page's style, `--c0` to `--c7`
_WIDTH, _HEIGHT = 380, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 370, 8, 176  # of the plot's area
_MOST_POINTS = 240  # of a line; more would not be visible at this width
_MOST_MARKS = 300  # with a value to hover over, in all lines of a plot together
_DASHES = ("", "7 3", "2 3", "9 3 2 3")  # so that colour alone never tells lines apart


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Args:
        label: In the legend, plain text.
        points: By step.
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


def plot(
    title: str,
    series: Sequence[Series],
    note: str = "",
    is_share: bool = False,
    steps: Mapping[float, str] | None = None,
) -> Markup:
    """Lines over steps, with their bands; empty if there are no points.

    Args:
        title: Plain text.
        series: Drawn in their order; points that are not finite are left out, and counted below.
        note: Shown under the plot, plain text.
        is_share: Whether values are shares, which are written in per cent.
        steps: What some steps are called, for an axis that is not of steps.
    """
    drawn = [line for line in map(_finite, series) if line.points]
    if not drawn:
        return Markup()
    places = [step for line in drawn for step, _ in line.points]
    heights = [value for line in drawn for _, value in (*line.points, *line.apart)]
    heights += [bound for line in drawn for pair in line.band for bound in pair]
    first, last = min(places), max(places)
    ticks = _ticks(min(heights), max(heights))
    if is_share:  # a constant has room on both sides, but no share is outside of [0, 1]
        ticks = [tick for tick in ticks if 0 <= tick <= 1]
    x = _scale(first, last, _LEFT, _RIGHT)
    y = _scale(ticks[0], ticks[-1], _BOTTOM, _TOP)
    form = "{:.3g}%" if is_share else "{:.3g}"

    def worded(value: float) -> str:
        return form.format(100 * value if is_share else value)

    def named(step: float) -> str:
        return f"step {step:.0f}" if steps is None else steps[step]

    shown = sorted({first, (first + last) / 2, last} if steps is None else set(places))
    chosen = sorted({c for line in drawn if (c := line.chosen) is not None and first <= c <= last})
    lost = sum(len(line.points) for line in series) - sum(len(line.points) for line in drawn)
    most = max(8, _MOST_MARKS // len(drawn))
    return render(
        "plot.html",
        title=title,
        lines=[_drawn(line, x, y, worded, named, most) for line in drawn],
        ticks=[(y(tick), worded(tick)) for tick in ticks],
        chosen=[(x(step), step) for step in chosen],
        steps=[(x(step), named(step).removeprefix("step ")) for step in shown],
        note=f"{note} {lost} values that are not finite are left out." if lost else note,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
    )


def _finite(line: Series) -> Series:
    kept = [place for place, (_, value) in enumerate(line.points) if math.isfinite(value)]
    band = [line.band[place] for place in kept] if line.band else ()
    return replace(line, points=[line.points[place] for place in kept], band=band)


def _scale(low: float, high: float, start: float, end: float) -> Scale:
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


def _drawn(
    line: Series,
    x: Scale,
    y: Scale,
    worded: Callable[[float], str],
    named: Callable[[float], str],
    most: int,
) -> dict[str, Any]:
    """A line in pixels, with at most so many marks that show their value under the mouse."""
    steps, values = map(list, zip(*line.points, strict=True))
    highs = list(zip(steps, (high for _, high in line.band), strict=False))
    lows = list(zip(steps, (low for low, _ in line.band), strict=False))
    marks = _thinned(line.points, most)
    rings = [(x(step), y(value), f"greedy: {worded(value)}") for step, value in line.apart]
    if line.chosen is not None and steps[0] <= line.chosen <= steps[-1]:
        height = float(np.interp(line.chosen, steps, values))  # between two points if need be
        rings.append((x(line.chosen), y(height), "saved weights"))

    def path(points: Sequence[Point]) -> str:
        return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)

    return {
        "label": line.label,
        "colour": line.colour % COLOURS,
        "dash": _DASHES[line.colour % len(_DASHES)],
        "ends": f"{worded(values[0])} to {worded(values[-1])}",
        "path": path(_thinned(line.points, _MOST_POINTS)),
        "band": path([*highs, *reversed(lows)]),
        "marks": [(x(step), y(value), named(step), worded(value)) for step, value in marks],
        "rings": rings,
        "radius": 2.5 if len(marks) <= 30 else 1.2,
    }


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points: the lowest and the highest of each stretch, so no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


# --------------------------------------------------------------------------------------------------
# Which curves
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Panel:
    """Metrics that share a plot.

    Args:
        title: Of the plot.
        metrics: Names in the trainer's log; what comes after a ``*`` may be anything.
        is_share: Whether the values are shares.
        absent: A sentence that says why a run may lack them; empty if every run has them.
    """

    title: str
    metrics: Sequence[str]
    is_share: bool = False
    absent: str = ""

    def names(self, runs: Sequence[RunRecord]) -> dict[str, str]:
        """The metrics that were logged, in the order of `metrics` → what a legend calls them."""
        logged = sorted({name for run in runs for logs in run.history for name in logs})
        found = {}
        for metric in self.metrics:
            start, star, end = metric.partition("*")
            for name in logged:
                if star and name.startswith(start) and name.endswith(end):
                    found[name] = name.removeprefix(start).removesuffix(end)
                elif name == metric:
                    found[name] = "all" if name == "reward" else name
        return found


PANELS = [Panel(**panel) for panel in read_asset("run_report.yaml")["panels"]]


def heldout_plots(runs: Sequence[RunRecord]) -> list[Markup]:
    """Held-out shares over steps, one plot a metric, with the 95% Wilson interval of their rows.

    The mean of the headlines comes first, then the headlines.
    """
    plots = []
    first = ["overall", *headlines().values()]
    own = [metric for run in runs for metric in run.rows if metric.startswith(OWN_REWARDS)]
    for metric in dict.fromkeys([*first, *own, *training_metrics()]):
        lines = []
        for place, run in enumerate(runs):
            points = run.points(f"eval_{metric}")
            rows = 0 if metric in own else run.rows.get(metric, 0)
            band = [Proportion(round(v * rows), rows).interval for _, v in points] if rows else ()
            lines.append(Series(run.name, points, band, place, run.best_step))
        note = "A mean of shares, which has no band. " if metric == "overall" else ""
        note += _meaning(f"eval_{metric}")
        plots.append(plot(metric, lines, note, is_share=metric not in own))
    return list(filter(None, plots))


def training_plots(runs: Sequence[RunRecord]) -> Iterator[Markup]:
    """The panels: a plot each for one run; for several runs, a plot for each metric."""
    for panel in PANELS:
        alike: dict[Any, list[str]] = {}  # lines with the same values would hide each other
        names = panel.names(runs)
        for name in names:
            alike.setdefault(repr([run.points(name) for run in runs]), []).append(name)
        labels = {group[0]: " = ".join(map(names.get, group)) for group in alike.values()}  # type: ignore[arg-type]
        if not labels and panel.absent:
            yield Markup('<p class="note">{}</p>').format(panel.absent)
        elif len(runs) == 1:
            lines = [
                Series(label, runs[0].points(name), (), place, runs[0].best_step)
                for place, (name, label) in enumerate(labels.items())
            ]
            yield plot(panel.title, lines, is_share=panel.is_share)
        else:
            for name, label in labels.items():
                title = panel.title if len(labels) == 1 else f"{panel.title}: {label}"
                lines = [
                    Series(run.name, run.points(name), (), place, run.best_step)
                    for place, run in enumerate(runs)
                ]
                yield plot(title, lines, _meaning(name), panel.is_share)


def _meaning(name: str) -> str:
    metric = explain(dashboard_key(name))
    return metric.meaning if metric is not None else ""
