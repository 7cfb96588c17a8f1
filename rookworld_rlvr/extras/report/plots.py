"""Which curves a report draws, and how: lines with bands, as SVG that takes its colours from the page.

matplotlib's SVG of these curves is some fifty times as large, and plotly needs four megabytes of
JavaScript; a line, a band and two axes need neither.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from markupsafe import Markup

from ...common.files import read_asset
from ...common.html import render
from ...common.stats import wilson
from ...tasks.metrics import headlines, kind_of, training_metrics
from ...training.glossary import dashboard_key, explain
from ...training.results import OWN_REWARDS
from .record import RUN_REPORT, RunRecord

Point = tuple[float, float]  # step and value

COLOURS = 8  # of the page's style, `--c0` to `--c7`
_AREA = {"width": 380, "height": 200, "left": 46, "right": 370, "top": 8, "bottom": 176}  # pixels
_MOST_POINTS = 120  # of a line; more would not be visible at this width
_DASHES = ("", "7 3", "2 3", "9 3 2 3")  # so that colour alone never tells lines apart


class Series(NamedTuple):
    """A line.

    Args:
        label: In the legend, plain text.
        points: By step.
        band: Lower and upper bound of each point; empty for a line without a band.
        colour: Place among the page's colours.
        chosen: The step whose weights were saved; None if it is not known.
    """

    label: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float]] = ()
    colour: int = 0
    chosen: float | None = None


def plot(title: str, series: Sequence[Series], note: str = "", is_share: bool = False) -> Markup:
    """Lines over steps, with their bands; empty if there are no points.

    All shares have one axis, from 0 to 100%. Another axis that does not begin at 0 says so.

    Args:
        title: Plain text.
        series: Drawn in their order.
        note: Shown under the plot, plain text.
        is_share: Whether values are shares, which are written in per cent.
    """
    drawn = [line for line in series if line.points]
    if not drawn:
        return Markup()
    places = [step for line in drawn for step, _ in line.points]
    heights = [value for line in drawn for _, value in line.points]
    heights += [bound for line in drawn for pair in line.band for bound in pair]
    first, last = min(places), max(places)
    ticks = _ticks(0, 1) if is_share else _ticks(min(heights), max(heights))
    x = _scale(first, last, _AREA["left"], _AREA["right"])
    y = _scale(ticks[0], ticks[-1], _AREA["bottom"], _AREA["top"])

    def worded(value: float) -> str:
        return f"{100 * value:.3g}%" if is_share else f"{value:.3g}"

    def path(points: Sequence[Point]) -> str:
        return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)

    lines = []
    for line in drawn:
        kept, steps = _thinned(line.points), [step for step, _ in line.points]
        lows, highs = zip(*line.band, strict=True) if line.band else ((), ())
        bounds = [*zip(steps, highs, strict=False), *reversed([*zip(steps, lows, strict=False)])]
        lines.append(
            {
                "label": line.label,
                "colour": line.colour % COLOURS,
                "dash": _DASHES[line.colour % len(_DASHES)],
                "ends": f"{worded(line.points[0][1])} to {worded(line.points[-1][1])}",
                "path": path(kept),
                "band": path(bounds),
                "marks": [(x(step), y(value), step, worded(value)) for step, value in kept],
            }
        )
    chosen = sorted({c for line in drawn if (c := line.chosen) is not None and first <= c <= last})
    return render(
        "plot.html",
        title=title,
        axis="" if ticks[0] <= 0 <= ticks[-1] else f"y from {worded(ticks[0])}, not from 0",
        lines=lines,
        ticks=[(y(tick), worded(tick)) for tick in ticks],
        chosen=[(x(step), step) for step in chosen],
        steps=[(x(step), f"{step:.0f}") for step in sorted({first, (first + last) / 2, last})],
        note=note,
        **_AREA,
    )


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


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Not too many points: the lowest and the highest of each stretch, so no spike is lost."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    kept: list[Point] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


# --------------------------------------------------------------------------------------------------
# Which curves
# --------------------------------------------------------------------------------------------------
def main_plot(runs: Sequence[RunRecord]) -> Markup:
    """The curve beside the verdict: one run's headlines, or the mean of the headlines of each run."""
    if len(runs) > 1:
        lines = [
            Series(run.name, run.points("eval_overall"), (), place, run.best_step)
            for place, run in enumerate(runs)
        ]
        return plot("Held-out rows: mean of the headlines", lines, is_share=True)
    (run,) = runs
    lines = []
    for place, metric in enumerate(headlines().values()):
        points, rows = run.points(f"eval_{metric}"), run.rows.get(metric)
        band = [wilson(value, rows) for _, value in points] if rows else ()
        lines.append(Series(metric, points, band, place, run.best_step))
    return plot("Held-out rows, with 95% intervals", lines, is_share=True)


def heldout_plots(runs: Sequence[RunRecord]) -> list[Markup]:
    """Held-out shares over steps, one plot a metric, with the 95% Wilson interval of their rows.

    The mean of the headlines comes first, then the headlines.
    """
    plots = []
    first = ["overall", *headlines().values()]
    own = [metric for run in runs for metric in run.rows if metric.startswith(OWN_REWARDS)]
    for metric in dict.fromkeys([*first, *own, *training_metrics()]):
        lines, is_share = [], metric not in own and kind_of(metric) == "share"
        for place, run in enumerate(runs):
            points, rows = run.points(f"eval_{metric}"), run.rows.get(metric)
            band = [wilson(v, rows) for _, v in points] if rows and is_share else ()
            lines.append(Series(run.name, points, band, place, run.best_step))
        plots.append(plot(metric, lines, _meaning(f"eval_{metric}"), is_share=metric not in own))
    return list(filter(None, plots))


def training_plots(runs: Sequence[RunRecord]) -> Iterator[tuple[Markup, bool]]:
    """The panels: a plot each for one run; for several runs, a plot for each metric.

    Each comes with whether it is shown at once, or folded away with the other ones.
    """
    logged = sorted({name for run in runs for logs in run.history for name in logs})
    for panel in read_asset(RUN_REPORT)["panels"]:
        names = [name for pattern in panel["metrics"] for name in fnmatch.filter(logged, pattern)]
        title, is_share = panel["title"], panel.get("is_share", False)
        is_main = panel.get("is_main", False)
        if len(runs) == 1:
            of_metric = [(name, runs[0].points(name)) for name in names]
            chosen = runs[0].best_step
            lines = [Series(*line, (), place, chosen) for place, line in enumerate(of_metric)]
            yield plot(title, lines, is_share=is_share), is_main
            continue
        for name in names:
            lines = [
                Series(run.name, run.points(name), (), place, run.best_step)
                for place, run in enumerate(runs)
            ]
            head = title if len(names) == 1 else f"{title}: {name}"
            yield plot(head, lines, _meaning(name), is_share), is_main


def _meaning(name: str) -> str:
    metric = explain(dashboard_key(name))
    return metric.meaning if metric is not None else ""
