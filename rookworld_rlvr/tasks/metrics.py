"""Score one greedy completion a held-out row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..common.stats import Proportion
from .registry import TASKS, score_row
from .scoring import values_by_move
from .task import Metric, Task

Row = Mapping[str, Any]


def metrics() -> dict[str, tuple[Task, Metric]]:
    """The held-out metrics of all tasks, ``<task>/<metric>``."""
    return {
        f"{task.name}/{name}": (task, metric)
        for task in TASKS.values()
        for name, metric in task.metrics.items()
    }


def headlines() -> dict[str, str]:
    """Task → the metric of it that `headline` averages."""
    return {name: f"{name}/{task.headline}" for name, task in TASKS.items()}


def training_metrics() -> tuple[str, ...]:
    """Names that may choose the best checkpoint: the metrics, and `overall`, see `headline`."""
    return ("overall", *metrics())


def evaluate_completions(rows: Iterable[Row], completions: Sequence[str]) -> dict[str, Proportion]:
    """Proportions by metric, of the metrics that at least one row counts for.

    Rows without truth (policy rows without `action_values`, corrupted records) are left out.

    Args:
        rows: `N` rows of the columns that `data.sources` documents.
        completions: `N` texts, one a row.
    """
    judged = []
    for row, completion in zip(rows, completions, strict=True):
        score = score_row(row["prompt"], completion, values_by_move(row.get("action_values")))
        if score is not None:
            judged.append((row["task"], TASKS[row["task"]].part(row), score))
    results = {}
    for name, (task, metric) in metrics().items():
        trials = [
            score[metric.component] == 1
            for its_task, its_part, score in judged
            if its_task == task.name and metric.part in (None, its_part)
        ]
        if trials:
            results[name] = Proportion(sum(trials), len(trials))
    return results


def headline(results: Mapping[str, Proportion]) -> float:
    """`overall`: the mean of the headline metric of each task that was evaluated."""
    values = [results[name].value for name in headlines().values() if name in results]
    return sum(values) / len(values)
