"""The card that is written beside a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.stats import Proportion
from ..data.loading import LoadedData
from ..tasks.registry import TASKS
from .results import results_table, write_card


def write_model_card(
    folder: Path,
    recipe: Mapping[str, Any],
    data: LoadedData,
    results: Mapping[str, Proportion],
    parameters: int,
    command: str,
    started: float,
) -> None:
    """Write the README.md of a model fine-tuned by `recipes/sft.py`.

    Args:
        folder: The model's.
        recipe: The keys that were given, YAML and overrides in one.
        data: What it was trained and measured on.
        results: Greedy, on held-out rows.
        parameters: How many the model has.
        command: What was run.
        started: Seconds since the epoch.
    """
    playing_first = sorted(TASKS.values(), key=lambda task: not task.needs_values)
    write_card(
        folder,
        "model_card.md",
        recipe,
        command,
        started,
        parameters=parameters,
        abilities=" and ".join(
            task.ability for task in playing_first if data.report.train[task.name]
        ),
        results=results_table(results),
        values=data.report.values or "whose source the data set does not say",
        origin="from scratch" if recipe.get("new_model") else recipe.get("model_name_or_path"),
    )
