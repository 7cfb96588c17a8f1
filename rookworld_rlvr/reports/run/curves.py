"""Which curves a report draws, and from which metrics of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from markupsafe import Markup

from ...common.files import read_asset
from ...common.stats import Proportion
from ...tasks.metrics import headlines, training_metrics
from ...training.glossary import dashboard_key, explain
from ...training.results import OWN_REWARDS
from .plots import Series, plot
from .record import RunRecord


@dataclass(frozen=True, slots=True)
class Panel:
    """Metrics that share a plot.

    Args:
        title: Of the plot.
        metrics: Names in the trainer's log; ``*`` matches any letters.
        is_share: Whether the values are shares.
        absent: A sentence that says why a run may lack them; empty if every run has them.
    """

    title: str
    metrics: Sequence[str]
    is_share: bool = False
    absent: str = ""

    def names(self, runs: Iterable[RunRecord]) -> list[str]:
        """The metrics that were logged, in the order of `metrics`."""
        logged = sorted({name for run in runs for logs in run.history for name in logs})
        return [n for metric in self.metrics for n in logged if fnmatchcase(n, metric)]


PANELS = [Panel(**panel) for panel in read_asset("run_report.yaml")["panels"]]


def heldout_plots(runs: Sequence[RunRecord]) -> list[Markup]:
    """Held-out shares over steps, one plot a metric, with the 95% Wilson interval of their rows.

    The mean of the headlines comes first, then the headlines.
    """
    plots = []
    first = ["overall", *headlines().values()]
    own = [metric for run in runs for metric in run.rows if metric.startswith(OWN_REWARDS)]
    for metric in dict.fromkeys([*first, *own, *training_metrics()]):
        lines = [_heldout(run, metric, place) for place, run in enumerate(runs)]
        note = "" if metric != "overall" else "A mean of shares, which has no band. "
        note += _meaning(f"eval_{metric}")
        plots.append(plot(metric, lines, note, is_share=metric not in own))
    return list(filter(None, plots))


def _heldout(run: RunRecord, metric: str, place: int) -> Series:
    points = run.points(f"eval_{metric}")
    rows = None if metric.startswith(OWN_REWARDS) else run.rows.get(metric)
    band = [Proportion(round(v * rows), rows).interval for _, v in points] if rows else ()
    return Series(run.name, points, band, place, run.best_step)


def training_plots(runs: Sequence[RunRecord]) -> Iterator[Markup]:
    """The panels: a plot each for one run; for several runs, a plot for each metric."""
    for panel in PANELS:
        groups = _alike(panel.names(runs), runs)
        labels = [" = ".join(_short(panel, name) for name in group) for group in groups]
        if not groups and panel.absent:
            yield Markup('<p class="note">{}</p>').format(panel.absent)
        elif len(runs) == 1:
            lines = [
                Series(label, runs[0].points(group[0]), (), place, runs[0].best_step)
                for place, (label, group) in enumerate(zip(labels, groups, strict=True))
            ]
            yield plot(panel.title, lines, is_share=panel.is_share)
        else:
            for label, (name, *_) in zip(labels, groups, strict=True):
                title = panel.title if len(groups) == 1 else f"{panel.title}: {label}"
                lines = [
                    Series(run.name, run.points(name), (), place, run.best_step)
                    for place, run in enumerate(runs)
                ]
                yield plot(title, lines, _meaning(name), panel.is_share)


def _alike(names: Sequence[str], runs: Sequence[RunRecord]) -> list[list[str]]:
    """Group metrics with the same values everywhere, whose lines would hide each other."""
    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            if all(run.points(name) == run.points(group[0]) for run in runs):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _short(panel: Panel, name: str) -> str:
    """A name without what all the names of a panel share."""
    for start, star, end in (metric.partition("*") for metric in panel.metrics):
        if star and name.startswith(start):
            return name.removeprefix(start).removesuffix(end)
    return "all" if name == "reward" else name


def _meaning(name: str) -> str:
    metric = explain(dashboard_key(name))
    return metric.meaning if metric is not None else ""
