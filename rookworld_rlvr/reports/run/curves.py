"""Which curves a report draws, and from which metrics of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...common.stats import Proportion
from ...tasks.metrics import TRAINING_METRICS
from ...training.glossary import dashboard_key, explain
from .plots import COLOURS, Series, plot
from .record import RunRecord


@dataclass(frozen=True, slots=True)
class Panel:
    """Metrics that belong into one plot.

    Args:
        title: Of the plot.
        metrics: Names in the trainer's log; a name that ends with ``*`` stands for all that begin so
            and end with `suffix`.
        suffix: Of the names that a ``*`` stands for.
        is_share: Whether the values are shares.
        absent: Why no run may have them, a sentence; empty where every run does.
    """

    title: str
    metrics: tuple[str, ...]
    suffix: str = ""
    is_share: bool = False
    absent: str = ""

    def names(self, runs: Iterable[RunRecord]) -> list[str]:
        """The metrics that were logged, in the order of `metrics`."""
        logged = {name for run in runs for logs in run.history for name in logs}
        names: list[str] = []
        for metric in self.metrics:
            if metric.endswith("*"):
                start = metric[:-1]
                names += sorted(
                    n for n in logged if n.startswith(start) and n.endswith(self.suffix)
                )
            elif metric in logged:
                names.append(metric)
        return names


PANELS: Sequence[Panel] = (
    Panel("Reward by component", ("rewards/*",), suffix="/mean"),
    Panel("Reward by task, weights applied", ("reward", "reward/*")),
    Panel(
        "KL to the reference, nats a token",
        ("kl",),
        absent="The KL was not measured: beta is 0 and log_reference_kl is off.",
    ),
    Panel("KL coefficient", ("kl/coefficient",)),
    Panel("Entropy, nats a token", ("entropy",)),
    Panel(
        "Groups without signal",
        ("frac_reward_zero_std", "zero_variance/sampled", "zero_variance/trained"),
        is_share=True,
    ),
    Panel("Gradient norm before clipping", ("grad_norm",)),
    Panel("Learning rate", ("learning_rate",)),
    Panel(
        "Seconds a step: all of it, and its phases",
        ("step_time", "time/sampling", "time/rewards", "time/update"),
    ),
    Panel("Seconds a held-out evaluation", ("eval_runtime",)),
)


def heldout_plots(runs: Sequence[RunRecord]) -> str:
    """Held-out shares over steps, one plot a metric, with the 95% Wilson interval of their rows."""
    plots = []
    for metric in TRAINING_METRICS:
        lines = [_heldout(run, metric, place) for place, run in enumerate(runs)]
        note = "" if metric != "overall" else "A mean of shares, so without a band. "
        plots.append(plot(metric, lines, note + _meaning(f"eval_{metric}"), is_share=True))
    return "".join(plots)


def training_plots(runs: Sequence[RunRecord]) -> str:
    """The panels: one plot each for one run, one plot a metric where runs are laid over each other."""
    return "".join(_panel(panel, runs) for panel in PANELS)


def _heldout(run: RunRecord, metric: str, place: int) -> Series:
    points = run.points(f"eval_{metric}")
    rows = run.rows.get(metric)
    band = [interval(value, rows) for _, value in points] if rows else ()
    return Series(run.name, points, band, place % COLOURS)


def interval(share: float, rows: int) -> tuple[float, float]:
    """The 95% Wilson interval of a share of so many rows.

    >>> low, high = interval(0.5, 10)  # R: prop.test(5, 10, correct = FALSE)
    >>> round(low, 4), round(high, 4)
    (0.2366, 0.7634)
    """
    return Proportion(round(share * rows), rows).interval


def _panel(panel: Panel, runs: Sequence[RunRecord]) -> str:
    groups = _alike(panel.names(runs), runs)
    if not groups:
        return f'<p class="note">{panel.absent}</p>' if panel.absent else ""
    if len(runs) == 1:
        lines = [
            Series(_label(panel, group), runs[0].points(group[0]), colour=place % COLOURS)
            for place, group in enumerate(groups)
        ]
        return plot(panel.title, lines, is_share=panel.is_share)
    drawn = ""
    for group in groups:
        lines = [
            Series(run.name, run.points(group[0]), colour=place % COLOURS)
            for place, run in enumerate(runs)
        ]
        title = panel.title if len(groups) == 1 else f"{panel.title}: {_label(panel, group)}"
        drawn += plot(title, lines, _meaning(group[0]), panel.is_share)
    return drawn


def _alike(names: Sequence[str], runs: Sequence[RunRecord]) -> list[list[str]]:
    """Metrics with the same values everywhere come together: their lines would hide each other."""
    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            if all(run.points(name) == run.points(group[0]) for run in runs):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _label(panel: Panel, names: Sequence[str]) -> str:
    return " = ".join(_short(panel, name) for name in names)


def _short(panel: Panel, name: str) -> str:
    """A name without what all the names of a panel share."""
    for metric in panel.metrics:
        if metric.endswith("*") and name.startswith(metric[:-1]):
            return name.removeprefix(metric[:-1]).removesuffix(panel.suffix)
    return "all" if name == "reward" else name


def _meaning(name: str) -> str:
    metric = explain(dashboard_key(name))
    return metric.meaning if metric is not None else ""
