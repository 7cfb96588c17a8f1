"""Score one greedy completion a held-out row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..records import Proportion, Score
from ..rewards import score_row

Row = Mapping[str, Any]


def _side(row: Row) -> str:
    return str(row["fen"].split()[1])


METRICS: Mapping[str, tuple[Callable[[Row], bool], Callable[[Score], bool]]] = {
    "environment/exact": (
        lambda row: row["task"] == "environment",
        lambda score: score["exact"] == 1,
    ),
    "environment/state": (
        lambda row: row["task"] == "environment",
        lambda score: score["state"] == 1,
    ),
    "environment/format": (
        lambda row: row["task"] == "environment",
        lambda score: score["format"] == 1,
    ),
    "policy/best_move": (
        lambda row: row["task"] == "policy",
        lambda score: score["best_move_hit"] == 1,
    ),
    "policy/best_move_white": (
        lambda row: row["task"] == "policy" and _side(row) == "w",
        lambda score: score["best_move_hit"] == 1,
    ),
    "policy/best_move_black": (
        lambda row: row["task"] == "policy" and _side(row) == "b",
        lambda score: score["best_move_hit"] == 1,
    ),
    "policy/all_legal": (
        lambda row: row["task"] == "policy",
        lambda score: score["legality"] == 1,
    ),
    "policy/format": (
        lambda row: row["task"] == "policy",
        lambda score: score["format"] == 1,
    ),
}
"""Metric → which rows it counts, and when a row counts as a success.

- `environment/exact`: the whole answer is right.
- `environment/state`: the next state is right.
- `environment/format`: the answer parses.
- `policy/best_move`, `..._white`, `..._black`: no legal move is worth more than `B`, by side to move.
- `policy/all_legal`: every move named is legal.
- `policy/format`: the answer parses.
"""

TRAINING_METRICS = ("overall", *METRICS)
"""Names that may choose the best checkpoint: the metrics, and `overall`, see `headline`."""


def evaluate_completions(rows: Iterable[Row], completions: Sequence[str]) -> dict[str, Proportion]:
    """Proportions by metric, of the metrics that at least one row counts for.

    Rows without truth (policy rows without `action_values`) are left out.

    Args:
        rows: `N` rows of the columns that `data` documents.
        completions: `N` texts, one a row.
    """
    scored = [
        (row, score_row(row["prompt"], completion, row["action_values"]))
        for row, completion in zip(rows, completions, strict=True)
    ]
    results = {}
    for name, (counts, succeeds) in METRICS.items():
        trials = [succeeds(score) for row, score in scored if score is not None and counts(row)]
        if trials:
            results[name] = Proportion(sum(trials), len(trials))
    return results


def headline(results: Mapping[str, Proportion]) -> float:
    """`overall`: the mean of the headline metric of each task that was evaluated."""
    values = [
        results[name].value for name in ("environment/exact", "policy/best_move") if name in results
    ]
    return sum(values) / len(values)
