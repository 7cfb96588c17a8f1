"""Held-out metrics: score one completion for each held-out row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..common.errors import close_matches
from ..common.stats import Estimate, Paired, Proportion, paired
from .registry import TASKS, score_row
from .task import Metric, Task
from .types import Score, values_by_move

Row = Mapping[str, Any]


Results = Mapping[str, Proportion | Estimate]
"""Held-out results by name: shares, and the means of a user's own rewards."""


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
    return f"{name!r} is {why}{close_matches(name, known) or f'; give {usual}'}"


def evaluate_completions(rows: Iterable[Row], completions: Sequence[str]) -> dict[str, Proportion]:
    """Compute each metric for which at least one row counts.

    Rows without truth (policy rows without `action_values`, corrupt records) are left out.

    Args:
        rows: `N` rows with the columns that `data.sources` documents.
        completions: `N` texts, one per row.
    """
    rows = list(rows)
    return shares(rows, scores(rows, completions))


def shares(rows: Sequence[Row], scores: Sequence[Score | None]) -> dict[str, Proportion]:
    """Each metric for which at least one row counts, from the score of one answer per row."""
    found = hits(rows, scores)
    return {name: Proportion(sum(right.values()), len(right)) for name, right in found.items()}


def scores(rows: Iterable[Row], completions: Sequence[str]) -> list[Score | None]:
    """The score of each row's completion; None for a row without truth."""
    return [
        score_row(row["prompt"], completion, values_by_move(row.get("action_values")))
        for row, completion in zip(rows, completions, strict=True)
    ]


def compare(
    rows: Sequence[Row], before: Sequence[Score | None], after: Sequence[Score | None]
) -> dict[str, Paired]:
    """Metric → how the second scores of the same rows differ from the first."""
    first, second = (
        {
            name: {str(place): float(right) for place, right in found.items()}
            for name, found in hits(rows, of_side).items()
        }
        for of_side in (before, after)
    )
    pairs = {name: paired("share", first[name], second[name]) for name in first if name in second}
    return {name: pair for name, pair in pairs.items() if pair is not None}


def hits(rows: Sequence[Row], scores: Sequence[Score | None]) -> dict[str, dict[int, bool]]:
    """Metric → index of each row that counts for it → whether its answer was right.

    Args:
        rows: `N` rows.
        scores: The score of one answer per row; a row whose score is None counts for no metric.
    """
    judged = [
        (place, row["task"], TASKS[row["task"]].part(row), score)
        for place, (row, score) in enumerate(zip(rows, scores, strict=True))
        if score is not None
    ]
    found = {
        name: {
            place: score[metric.component] == 1
            for place, its_task, its_part, score in judged
            if its_task == task.name
            and metric.part in (None, its_part)
            # Scores that an earlier version has written lack what came later.
            and metric.component in score
        }
        for name, (task, metric) in metrics().items()
    }
    return {name: right for name, right in found.items() if right}


def headline(results: Results) -> float:
    """`overall`: the mean of the headline metrics of the evaluated tasks."""
    values = [results[name].value for name in headlines().values() if name in results]
    return sum(values) / len(values)
