"""Held-out metrics: score one completion for each held-out row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..common.errors import close_matches
from ..common.stats import Estimate, MetricKind, Paired, estimate, paired_by_metric
from .registry import TASKS, score_row
from .task import Metric, Task
from .types import Score, values_by_move

Row = Mapping[str, Any]


Results = Mapping[str, Estimate]
"""Held-out results by name: shares, and means such as those of a user's own rewards."""


def metrics() -> dict[str, tuple[Task, Metric]]:
    """The held-out metrics of all tasks, ``<task>/<metric>``."""
    return {
        f"{task.name}/{name}": (task, metric)
        for task in TASKS.values()
        for name, metric in task.metrics.items()
    }


def headlines() -> dict[str, str]:
    """Task → its metric that `headline` averages."""
    return {name: f"{name}/{task.headline}" for name, task in TASKS.items()}


def rights() -> dict[str, str]:
    """Task → its metric by which an answer is right."""
    return {name: f"{name}/{task.right_by}" for name, task in TASKS.items()}


def training_metrics() -> tuple[str, ...]:
    """Metrics by which the best checkpoint may be chosen: all held-out metrics and `overall`."""
    return ("overall", *metrics())


def unknown_metric(name: str, known: Collection[str], prefix: str = "") -> str:
    """Why a metric cannot choose a checkpoint or a trial, and which can, as the end of a message."""
    if name.removeprefix("eval/").removeprefix("eval_").startswith("rewards/"):
        why = "a reward of your own is measured, but does not choose"
    else:
        why = "not a held-out metric"
    usual = ", ".join(prefix + metric for metric in ("overall", *headlines().values()))
    return f"{name!r} is {why}{close_matches(name, known)}; the usual ones are {usual}"


def kind_of(name: str) -> MetricKind:
    """Whether a held-out metric is a share of rows or a mean."""
    _, metric = metrics().get(name, (None, None))
    return "share" if metric is None else metric.kind


def evaluate_completions(rows: Iterable[Row], completions: Sequence[str]) -> dict[str, Estimate]:
    """Compute each metric for which at least one row counts.

    Rows without truth (policy rows without `action_values`, corrupt records) are left out.

    Args:
        rows: `N` rows with the columns that `data.sources` documents.
        completions: `N` texts, one per row.
    """
    rows = list(rows)
    return measured(rows, scores(rows, completions))


def measured(rows: Sequence[Row], scores: Sequence[Score | None]) -> dict[str, Estimate]:
    """Each metric for which at least one row counts, from the score of one answer per row."""
    return {
        name: estimate(kind_of(name), [*found.values()])
        for name, found in by_row(rows, scores).items()
    }


def scores(rows: Iterable[Row], completions: Sequence[str]) -> list[Score | None]:
    """The score of each row's completion; None for a row without truth, or of no task."""
    return [
        score_row(row["prompt"], completion, values_by_move(row.get("action_values")))
        if row["task"] in TASKS
        else None
        for row, completion in zip(rows, completions, strict=True)
    ]


def compare(
    rows: Sequence[Row], before: Sequence[Score | None], after: Sequence[Score | None]
) -> dict[str, Paired]:
    """Metric → how the second scores of the same rows differ from the first."""
    return paired_by_metric(kind_of, by_row(rows, before), by_row(rows, after))


def by_row(rows: Sequence[Row], scores: Sequence[Score | None]) -> dict[str, dict[str, float]]:
    """Metric → the place of each row that counts for it → what its answer counts, see `Metric.value`.

    Args:
        rows: `N` rows.
        scores: The score of one answer per row; a row whose score is None counts for no metric.
    """
    judged = [
        (str(place), row["task"], TASKS[row["task"]].part(row), score)
        for place, (row, score) in enumerate(zip(rows, scores, strict=True))
        if score is not None
    ]
    found = {
        name: {
            place: metric.value(score)
            for place, its_task, its_part, score in judged
            if its_task == task.name
            and metric.part in (None, its_part)
            # Scores that an earlier version has written lack what came later.
            and metric.component in score
        }
        for name, (task, metric) in metrics().items()
    }
    return {name: values for name, values in found.items() if values}


def limits(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """Headline → what random and the best answers to these rows get, where that is not 0 and 1."""
    found: dict[str, list[tuple[float, float]]] = {}
    names = headlines()
    for row in rows:
        of_row = TASKS[row["task"]].limits(values_by_move(row.get("action_values")))
        if of_row is not None:
            found.setdefault(names[row["task"]], []).append(of_row)
    return {
        name: (fmean(low for low, _ in pairs), fmean(high for _, high in pairs))
        for name, pairs in found.items()
    }


def headline(results: Results) -> float:
    """`overall`: the mean of the headline metrics of the evaluated tasks."""
    values = [results[name].value for name in headlines().values() if name in results]
    return sum(values) / len(values)
