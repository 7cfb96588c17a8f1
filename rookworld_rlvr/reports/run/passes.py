"""pass@k on held-out rows before and after training: curves over k, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.html import render
from ...common.stats import Estimate, Paired
from ...evaluation.pass_at_k import GREEDY_SHARE, RightCounts, ks
from ...tasks.registry import TASKS
from .plots import COLOURS, Axis, Series, plot
from .record import RunRecord

_SHARE = Markup("<b>{:.1%}</b> <small>[{:.1f}, {:.1f}]</small>")


_CHANGE = Markup("<b>{:+.1f}</b> <small>[{:+.1f}, {:+.1f}]</small>")


def section(runs: Sequence[RunRecord]) -> Markup:
    """Plots and tables; empty if no run measured pass@k."""
    told = [run for run in runs if run.right]
    measured = [counts for run in told for found in run.right.values() for counts in found.items()]
    if not measured:
        return Markup()
    tasks = [task for task in TASKS if any(task == name for name, _ in measured)]
    return render(
        "run_passes.html",
        plots=[plot(task, _lines(task, runs), "", True, Axis("k", True)) for task in tasks],
        is_open=len(told) == 1,
        tables=[table for task in tasks for run in told for table in _tables(task, run, len(runs))],
    )


def _lines(task: str, runs: Sequence[RunRecord]) -> list[Series]:
    """The starts, each once, then every run's end."""
    starts: list[tuple[str, RightCounts]] = []
    ends = []
    for place, run in enumerate(runs):
        before, after = (run.right.get(when, {}).get(task) for when in ("before", "after"))
        if before is not None and all(before != other for _, other in starts):
            starts.append((run.name, before))
        if after is not None:
            label = "after" if len(runs) == 1 else f"{run.name}, after"
            ends.append(_line(label, after, place))
    named = len(starts) > 1
    return [
        _line(f"{name}, before" if named else "before", counts, COLOURS - 1 - place)
        for place, (name, counts) in enumerate(starts)
    ] + ends


def _line(label: str, counts: RightCounts, colour: int) -> Series:
    found = counts.estimates()
    curve = {k: found[f"pass@{k}"] for k in ks(counts.samples)}
    points = [(float(k), value.value) for k, value in curve.items()]
    band = [(value.low, value.high) for value in curve.values()]
    return Series(label, points, band, colour, apart=[(1.0, found[GREEDY_SHARE].value)])


def _tables(task: str, run: RunRecord, runs: int) -> Iterator[dict[str, Any]]:
    before, after = (run.right.get(when, {}).get(task) for when in ("before", "after"))
    counts = after or before
    if counts is None:
        return
    sides = [found.estimates() if found else {} for found in (before, after)]
    changes = before.compare(after) if before and after else {}
    yield {
        "caption": f"{f'{run.name}, ' if runs > 1 else ''}{task}: {len(counts.right)} held-out rows, "
        f"{counts.samples} samples each",
        "rows": [
            [
                name,
                *(_share(side.get(name)) for side in sides),
                _points(changes, name),
            ]
            for name in counts.estimates()
        ],
    }


def _share(value: Estimate | None) -> Markup:
    if value is None:
        return Markup("-")
    return _SHARE.format(value.value, 100 * value.low, 100 * value.high)


def _points(changes: Mapping[str, Paired], name: str) -> Markup:
    if name not in changes:
        return Markup("-")
    found = changes[name]
    return _CHANGE.format(*(100 * number for number in (found.difference, found.low, found.high)))
