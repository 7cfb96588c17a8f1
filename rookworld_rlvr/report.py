"""What a run prints and writes: dry runs, before/after tables, the resolved configuration."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from . import fill_in, notation, rules
from .data import LoadedData, action_values_of
from .evaluation import headline
from .evaluation.answerers import guesses
from .labels import PolicyTruth
from .records import TASKS, Proportion, Task
from .rewards import RewardFunc, get_reward_funcs
from .scoring import policy_reference

ROWS_SHOWN = 3


def before_after_table(
    before: Mapping[str, Proportion], after: Mapping[str, Proportion], model_path: str
) -> str:
    """Metric, before, after, change in points, and the 95% Wilson intervals, as text."""
    width = max(24, *(len(name) + 1 for name in after))
    head = f"{'held-out metric':<{width}}{'n':>6}{'before':>9}{'after':>9}{'change':>9}"
    lines = [f"{head}   95% interval before, after"]
    lines.append("-" * len(lines[0]))
    for name in after:
        old, new = before[name], after[name]
        lines.append(
            f"{name:<{width}}{new.n:>6}{old.value:>9.1%}{new.value:>9.1%}"
            f"{100 * (new.value - old.value):>+9.1f}   {_interval(old)}, {_interval(new)}"
        )
    if headline(after) < headline(before):
        lines += [
            "",
            "No checkpoint beat the starting model; the saved one is the best of the run's.",
        ]
    return "\n".join([*lines, "", f"model: {model_path}"])


def results_table(results: Mapping[str, Proportion]) -> str:
    """Metric, rows, share and 95% Wilson interval, as a Markdown table."""
    lines = ["| held-out metric | n | share | 95% interval |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{name}` | {result.n} | {result.value:.1%} | {_interval(result)} |"
        for name, result in results.items()
    ]
    return "\n".join(lines)


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


def heldout_results(content: Mapping[str, Any], when: str) -> dict[str, Proportion]:
    """Held-out results in what `write_results` wrote.

    Args:
        content: Of the file.
        when: ``before`` or ``after``.
    """
    return {
        name: Proportion(round(entry[when] * entry["n"]), entry["n"])
        for name, entry in content["heldout"].items()
    }


def write_proportions(path: Path, results: Mapping[str, Proportion]) -> None:
    """Keep held-out results as they are counted, for a run that goes on later."""
    path.write_text(json.dumps({name: [r.successes, r.n] for name, r in results.items()}) + "\n")


def read_proportions(path: Path) -> dict[str, Proportion]:
    """What `write_proportions` wrote."""
    content = json.loads(path.read_text())
    return {name: Proportion(successes, n) for name, (successes, n) in content.items()}


def resolved_yaml(*arguments: Any) -> str:
    """Every key of the dataclasses that has a value, defaults included, as YAML."""
    values: dict[str, Any] = {}
    for group in arguments:
        for item in dataclasses.fields(group):
            value = getattr(group, item.name)
            if item.init and _is_plain(value) and value is not None:
                values[item.name] = value
    return yaml.safe_dump(values, sort_keys=True, allow_unicode=True)


def dry_run_text(
    data: LoadedData, specs: Sequence[Mapping[str, Any]], truth: PolicyTruth | None = None
) -> str:
    """The data's counts, and for each task three rows with scored reference and broken variant."""
    funcs = get_reward_funcs(specs, truth)
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
                    lines.append(f"            {_rewards(row, text, funcs)}")
    return "\n".join(lines)


def reference(row: Mapping[str, Any]) -> str:
    """The right answer to a row.

    It is the data's own where a policy row has no action values, and in a fill-in row, where it was
    checked when the row was read.
    """
    if row["task"] == "environment":
        return notation.write_environment_answer(rules.transition(row["fen"], row["action"]))
    if row["task"] == "fill_in" or not row["action_values"]:
        return str(row["completion"])
    values = action_values_of(row["action_values"])
    return notation.write_policy_answer(policy_reference(row["fen"], values))


def broken(row: Mapping[str, Any]) -> str:
    """The reference with one thing wrong: the other side to move, or the worst move as the best.

    Of a fill-in row an answer of the right form that does not fit; the mask, where all of them do.
    """
    if row["task"] == "fill_in":
        record = notation.parse_fill_in_prompt(row["prompt"])
        fits = fill_in.answers(record)
        wrong = (guess for guess in guesses(record) if guess not in fits)
        return notation.write_fill_in_answer(next(wrong, notation.MASK))
    text = reference(row)
    if row["task"] == "environment":
        turn = " w " if " w " in text else " b "
        return text.replace(turn, " b " if turn == " w " else " w ", 1)
    answer = notation.parse_policy_answer(text)
    worst = row["action_values"][-1]["move"] if row["action_values"] else "a1a1"
    return notation.write_policy_answer(dataclasses.replace(answer, best_move=worst))


def _rewards(row: Mapping[str, Any], text: str, funcs: Sequence[RewardFunc]) -> str:
    columns = {key: [row[key]] for key in row if key not in ("prompt", "completion")}
    parts = []
    for func in funcs:
        number = func(prompts=[row["prompt"]], completions=[text], **columns)[0]
        if number is not None:
            parts.append(f"{func.__name__} {number:.3f}")
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
