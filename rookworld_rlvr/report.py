"""What a run prints and writes: dry runs, before/after tables, the resolved configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from . import notation, rules
from .data import LoadedData, action_values_of
from .records import TASKS, Proportion
from .rewards import get_reward_funcs
from .scoring import policy_reference

ROWS_SHOWN = 3


def before_after_table(
    before: Mapping[str, Proportion], after: Mapping[str, Proportion], model_path: str
) -> str:
    """Metric, before, after, change in points, and the 95% Wilson intervals, as text."""
    head = f"{'held-out metric':<24}{'n':>6}{'before':>9}{'after':>9}{'change':>9}"
    lines = [f"{head}   95% interval before, after"]
    lines.append("-" * len(lines[0]))
    for name in after:
        old, new = before[name], after[name]
        lines.append(
            f"{name:<24}{new.n:>6}{old.value:>9.1%}{new.value:>9.1%}"
            f"{100 * (new.value - old.value):>+9.1f}   {_interval(old)}, {_interval(new)}"
        )
    return "\n".join([*lines, "", f"model: {model_path}"])


def write_results(
    path: Path, before: Mapping[str, Proportion], after: Mapping[str, Proportion], **extra: Any
) -> None:
    """The table's numbers as JSON, and what else is worth keeping."""
    results = {
        name: {
            "before": before[name].value,
            "after": after[name].value,
            "n": after[name].n,
            "interval_before": before[name].interval,
            "interval_after": after[name].interval,
        }
        for name in after
    }
    path.write_text(json.dumps({"heldout": results, **extra}, indent=2) + "\n")


def resolved_yaml(*arguments: Any) -> str:
    """Every key of the dataclasses that has a value, defaults included, as YAML."""
    values: dict[str, Any] = {}
    for group in arguments:
        for item in dataclasses.fields(group):
            value = getattr(group, item.name)
            if item.init and _is_plain(value) and value is not None:
                values[item.name] = value
    return yaml.safe_dump(values, sort_keys=True, allow_unicode=True)


def dry_run_text(data: LoadedData, specs: Sequence[Mapping[str, Any]]) -> str:
    """The data's counts, and for each task three rows with scored reference and broken variant."""
    lines = [*data.report.lines()]
    for task in TASKS:
        shown = 0
        for row in data.train:
            if shown == ROWS_SHOWN:
                break
            if row["task"] == task:
                shown += 1
                lines += ["", f"{task} row {shown}: {row['prompt']!r}"]
                for kind, text in (("reference", reference(row)), ("broken", broken(row))):
                    lines.append(f"  {kind:<9} {text!r}")
                    lines.append(f"            {_rewards(row, text, specs)}")
    return "\n".join(lines)


def reference(row: Mapping[str, Any]) -> str:
    """The right answer to a row; the data's own where a policy row has no action values."""
    if row["task"] == "environment":
        return notation.write_environment_answer(rules.transition(row["fen"], row["action"]))
    if not row["action_values"]:
        return str(row["completion"])
    values = action_values_of(row["action_values"])
    return notation.write_policy_answer(policy_reference(row["fen"], values))


def broken(row: Mapping[str, Any]) -> str:
    """The reference with one thing wrong: the other side to move, or no best move."""
    text = reference(row)
    if row["task"] == "environment":
        turn = " w " if " w " in text else " b "
        return text.replace(turn, " b " if turn == " w " else " w ", 1)
    return text[: text.rindex("B:") + 2]


def _rewards(row: Mapping[str, Any], text: str, specs: Sequence[Mapping[str, Any]]) -> str:
    columns = {key: [row[key]] for key in row if key not in ("prompt", "completion")}
    parts = []
    for spec, func in zip(specs, get_reward_funcs(specs), strict=True):
        number = func(prompts=[row["prompt"]], completions=[text], **columns)[0]
        if number is not None:
            parts.append(f"{spec['name']} {number:.3f}")
    return "  ".join(parts) or "no reward applies"


def _interval(result: Proportion) -> str:
    low, high = result.interval
    return f"[{low:.1%}, {high:.1%}]"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return type(value) in (str, int, float, bool)
