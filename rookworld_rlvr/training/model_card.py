"""The card that is written beside a model."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from ..common.stats import Proportion
from ..data.loading import LoadedData
from ..tasks.types import Task
from .results import results_table


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
    text = _MODEL_CARD.format(
        parameters=parameters,
        abilities=" and ".join(
            what for task, what in _ABILITIES.items() if data.report.train[task]
        ),
        results=results_table(results),
        values=data.report.values or "whose source the data set does not say",
        origin="from scratch" if recipe.get("new_model") else recipe.get("model_name_or_path"),
    )
    (folder / "README.md").write_text(
        text + how_it_was_made(recipe, command, started), encoding="utf-8"
    )


def how_it_was_made(recipe: Mapping[str, Any], command: str, started: float) -> str:
    """The end of a model card: command, minutes, versions and keys.

    Args:
        recipe: The keys that were given, YAML and overrides in one.
        command: What was run.
        started: Seconds since the epoch.
    """
    return _HOW_IT_WAS_MADE.format(
        recipe=yaml.safe_dump(dict(recipe), sort_keys=False, default_flow_style=None).strip(),
        minutes=(time.time() - started) / 60,
        command=command,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "some",
        versions=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl")),
    )


_ABILITIES: Mapping[Task, str] = {
    "policy": "plays chess (`P:` prompts)",
    "environment": "simulates the board (`A:` prompts)",
    "fill_in": "fills in what is hidden of a record (`F:` prompts)",
}


_MODEL_CARD = """---
license: gpl-3.0
library_name: transformers
tags: [chess, gpt2, grpo, rlvr]
---

# A RookWorld model from `recipes/sft.py`

A GPT-2 of {parameters:,} parameters that {abilities}, fine-tuned
({origin}) with loss on completions only.

{results}

Greedy decoding, one completion a row, positions that were not trained on; truth from python-chess and
from the rows' values of all legal moves: {values}.

**Its flaws are planted.** Where `en_passant_fault_share` and `black_best_move_fault_share` are given
below, that share of the rows carried the public data's faults on purpose: the answer to a pawn's double
step names the en passant square although no capture is legal, and Black's `B` is the worst of the five
candidates. GRPO with verifiable rewards is there to repair them.
"""


_HOW_IT_WAS_MADE = """
Command: `{command}`, {minutes:.0f} minutes on
{cores} CPU cores, with {versions}, and these keys, the seeds among them:

```yaml
{recipe}
```
"""
