"""Score one greedy completion a held-out row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..common.stats import Proportion
from .fill_in import parse_fill_in_prompt
from .scoring import score_row, values_by_move
from .types import FILL_IN_FIELDS, Task

Row = Mapping[str, Any]


METRICS: Mapping[str, tuple[Task, str | None, str]] = {
    "environment/exact": ("environment", None, "exact"),
    "environment/state": ("environment", None, "state"),
    "environment/format": ("environment", None, "format"),
    "policy/best_move": ("policy", None, "best_move_hit"),
    "policy/best_move_white": ("policy", "w", "best_move_hit"),
    "policy/best_move_black": ("policy", "b", "best_move_hit"),
    "policy/all_legal": ("policy", None, "legality"),
    "policy/format": ("policy", None, "format"),
    "fill_in/exact": ("fill_in", None, "exact"),
    **{f"fill_in/exact_{field}": ("fill_in", field, "exact") for field in FILL_IN_FIELDS},
    "fill_in/format": ("fill_in", None, "format"),
}
"""Metric → task and part of the rows that it counts, and the component that must be 1.

The part is a side to move, or the field that a fill-in prompt hides.

- `environment/exact`: the whole answer is right.
- `environment/state`: the next state is right.
- `environment/format`: the answer parses.
- `policy/best_move`, `..._white`, `..._black`: no legal move is worth more than `B`, by side to move.
- `policy/all_legal`: every move named is legal.
- `policy/format`: the answer parses.
- `fill_in/exact`, `..._<field>`: the answer fits the rest of the record, by hidden field.
- `fill_in/format`: the answer has the form of what is hidden.
"""


HEADLINES: Mapping[Task, str] = {
    "environment": "environment/exact",
    "policy": "policy/best_move",
    "fill_in": "fill_in/exact",
}
"""The metric of each task that `headline` averages."""


TRAINING_METRICS = ("overall", *METRICS)
"""Names that may choose the best checkpoint: the metrics, and `overall`, see `headline`."""


def evaluate_completions(rows: Iterable[Row], completions: Sequence[str]) -> dict[str, Proportion]:
    """Proportions by metric, of the metrics that at least one row counts for.

    Rows without truth (policy rows without `action_values`, corrupted records) are left out.

    Args:
        rows: `N` rows of the columns that `data` documents.
        completions: `N` texts, one a row.
    """
    scored = [
        (row, score_row(row["prompt"], completion, values_by_move(row.get("action_values"))))
        for row, completion in zip(rows, completions, strict=True)
    ]
    judged = [(row["task"], _part(row), score) for row, score in scored if score is not None]
    results = {}
    for name, (task, part, component) in METRICS.items():
        trials = [
            score[component] == 1
            for its_task, its_part, score in judged
            if its_task == task and part in (None, its_part)
        ]
        if trials:
            results[name] = Proportion(sum(trials), len(trials))
    return results


def _part(row: Row) -> str:
    """The field that is hidden, or the side to move."""
    if row["task"] == "fill_in":
        return parse_fill_in_prompt(row["prompt"]).field
    return str(row["fen"].split(" ")[1])


def headline(results: Mapping[str, Proportion]) -> float:
    """`overall`: the mean of the headline metric of each task that was evaluated."""
    values = [results[name].value for name in HEADLINES.values() if name in results]
    return sum(values) / len(values)


__all__ = ["HEADLINES", "METRICS", "TRAINING_METRICS", "evaluate_completions", "headline"]
