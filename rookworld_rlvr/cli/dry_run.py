"""What `--dry_run` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

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
    lines = [*data.report.lines()]
    for name, task in TASKS.items():
        rows = (row for row in data.train if row["task"] == name)
        for place, row in enumerate(islice(rows, ROWS_SHOWN), 1):
            lines += ["", f"{name} row {place}: {row['prompt']!r}"]
            if task.needs_values and not row["action_values"] and not row["completion"]:
                lines.append("  no answer and no values: the engine is asked during training")
                continue
            for kind, text in (("reference", task.reference(row)), ("broken", task.broken(row))):
                lines.append(f"  {kind:<9} {text!r}")
                lines.append(f"            {_rewards(row, text, funcs)}")
    return "\n".join(lines)


def _rewards(row: Mapping[str, Any], text: str, funcs: Sequence[RewardFunc]) -> str:
    columns = {key: [row[key]] for key in row if key not in ("prompt", "completion")}
    parts = []
    for func in funcs:
        number = func(prompts=[row["prompt"]], completions=[text], **columns)[0]
        if number is not None:
            parts.append(f"{func.__name__} {number:.3f}")
    return "  ".join(parts) or "no reward applies"
