"""What `--dry_run` prints."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from transformers import TrainerState

from ..common.terminal import wrapped
from ..data.loading import LoadedData
from ..engine.truth import PolicyTruth
from ..rewards.registry import RewardFunc, get_reward_funcs
from ..tasks.registry import TASKS

ROWS_SHOWN = 3


def dry_run_text(
    data: LoadedData, specs: Sequence[Mapping[str, Any]], truth: PolicyTruth | None = None
) -> str:
    """The counts of the data, and for each task three rows with a right and a broken answer, scored."""
    funcs = get_reward_funcs(specs, truth)
    with asyncio.Runner() as runner:  # one event loop for all rewards, as in training
        return "\n".join(_lines(data, funcs, runner))


def _lines(data: LoadedData, funcs: Sequence[RewardFunc], runner: asyncio.Runner) -> list[str]:
    lines = [wrapped("\n".join(data.report.lines()))]
    for name, task in TASKS.items():
        rows = (row for row in data.train if row["task"] == name)
        for place, row in enumerate(islice(rows, ROWS_SHOWN), 1):
            lines += ["", f"{name} row {place}: {row['prompt']!r}"]
            if task.needs_values and not row["action_values"] and not row["completion"]:
                lines.append("  no answer and no values: the engine is asked during training")
                continue
            for kind, text in (("reference", task.reference(row)), ("broken", task.broken(row))):
                lines.append(f"  {kind:<9} {text!r}")
                lines.append(f"            {_rewards(row, text, funcs, runner)}")
    return lines


def _rewards(
    row: Mapping[str, Any], text: str, funcs: Sequence[RewardFunc], runner: asyncio.Runner
) -> str:
    columns = {key: [row[key]] for key in row if key not in ("prompt", "completion")}
    of_trainer = {  # what TRL passes in training; `completion_ids` would need a tokenizer
        "trainer_state": TrainerState(),
        "log_metric": lambda name, value: None,
        "log_extra": lambda column, values: None,
    }
    parts = []
    for func in funcs:
        found = func(prompts=[row["prompt"]], completions=[text], **columns, **of_trainer)
        number = (runner.run(found) if inspect.iscoroutine(found) else found)[0]
        if number is not None:
            parts.append(f"{func.__name__} {number:.3f}")
    return "  ".join(parts) or "no reward applies"
