"""Held-out results: the tables that a run prints, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..common.files import replace_text
from ..common.stats import Estimate, Proportion, newcombe
from ..evaluation.pass_at_k import GREEDY_SHARE, Measured, pass_summary
from ..tasks.metrics import Results, headline, headlines

# Files of a run's folder.
RESOLVED_CONFIG = "resolved_config.yaml"
PROVENANCE = "provenance.json"
HELDOUT_BEFORE = "heldout_before.json"
HELDOUT_PASS = "heldout_pass.json"  # counts of right samples, before and after training
ANSWERS_BEFORE = "heldout_answers_before.jsonl"
ANSWERS_AFTER = "heldout_answers_after.jsonl"
RESULTS = "results.json"
EVALUATION = "evaluation.json"  # the suites' results
CARD = "README.md"
REPORT = "report.html"
ADAPTER = "adapter"  # the subfolder with a run's adapters

OWN_REWARDS = "rewards/"
"""What the names of the means of a user's own rewards begin with."""

KL_TO_START = "KL to the starting model on held-out rows, nats a token; other/ was not trained"


def kl_words(kls: Mapping[str, float]) -> str:
    """What `measurements.measure_others` gives, as text.

    >>> kl_words({"policy": 0.0125, "environment": 0.0})
    'policy 0.0125, environment 0.0000'
    """
    return ", ".join(f"{task} {kl:.4f}" for task, kl in kls.items())


def before_after_table(before: Results, after: Results) -> str:
    """Metric, before, after, change, and the 95% intervals, as text; shares change in points."""
    width = max(24, *(len(name) + 1 for name in after))
    head = f"{'held-out metric':<{width}}{'n':>5}{'before':>7}{'after':>7}{'change':>7}"
    lines = [f"{head}  95% intervals before, after"]
    lines.append("-" * len(lines[0]))
    for name in measured_twice(before, after):
        old, new = before[name], after[name]
        first, then = (result.form.format(result.value) for result in (old, new))
        was, now = (interval_text(result).replace("%", "") for result in (old, new))
        lines.append(
            f"{name:<{width}}{new.n:>5}{first:>7}{then:>7}{change_text(old, new):>7}  {was:<13} {now}"
        )
    lines += tie_lines(before, after)
    if headline(after) < headline(before):
        lines += [
            "",
            "No checkpoint is better than the starting model; the best checkpoint of the run is saved.",
        ]
    return "\n".join(lines)


def tie_lines(before: Results, after: Results) -> list[str]:
    """A sentence for each headline whose change may be chance: its 95% interval contains 0."""
    lines = []
    for name in headlines().values():
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None:
            low, high = (100 * bound for bound in newcombe(old, new))
            if low <= 0 <= high:
                change = 100 * (new.value - old.value)
                lines.append(
                    f"{name} is a tie: the change of {change:+.1f} points may be chance, its 95% "
                    f"interval [{low:+.1f}, {high:+.1f}] contains 0."
                )
    return ["", *lines] if lines else []


def pass_lines(measured: Measured) -> list[str]:
    """A line for each task: greedy, pass@1 and pass@k at the largest k, before and after training."""
    before, after = measured.get("before", {}), measured.get("after", {})
    lines = []
    for task, counts in after.items():
        old = before[task].estimates() if task in before else {}
        new, top = counts.estimates(), f"pass@{counts.samples}"
        shares = [
            f"{name} {f'{old[name].value:.1%} -> ' if old else ''}{new[name].value:.1%}"
            for name in dict.fromkeys((GREEDY_SHARE, "pass@1", top))
        ]
        change = ""
        if old:
            found = before[task].compare(counts)[top]
            points = [100 * number for number in (found.difference, found.low, found.high)]
            change = " ({:+.1f} points [{:+.1f}, {:+.1f}])".format(*points)
        lines.append(f"{task}, {len(counts.right)} prompts: {'; '.join(shares)}{change}")
    return lines


def results_table(results: Results) -> str:
    """Metric, rows, share and 95% Wilson interval, as a table."""
    lines = [f"{'held-out metric':<34} {'n':>6} {'share':>8}  95% interval"]
    lines += [
        f"{name:<34} {result.n:>6} {result.form.format(result.value):>8}  {interval_text(result)}"
        for name, result in results.items()
    ]
    return "\n".join(lines)


def write_results(
    path: Path,
    before: Results,
    after: Results,
    right: Measured = MappingProxyType({}),
    **extra: Any,
) -> None:
    """Write the table's numbers as JSON, with pass@k if it was measured, and other numbers."""
    results = {
        name: {
            "before": before[name].value,
            "after": after[name].value,
            "n": after[name].n,
            "interval_before": before[name].interval,
            "interval_after": after[name].interval,
        }
        for name in measured_twice(before, after)
    }
    sampled = {"pass": pass_summary(right)} if right else {}
    replace_text(path, json.dumps({"heldout": results, **sampled, **extra}, indent=2) + "\n")


def heldout_results(content: Mapping[str, Any], when: str) -> dict[str, Proportion | Estimate]:
    """The held-out results in a file of `write_results`.

    Args:
        content: The file's content.
        when: ``before`` or ``after``.
    """
    return {
        name: Estimate(*(entry[when], *entry[f"interval_{when}"], entry["n"]))
        if name.startswith(OWN_REWARDS)
        else Proportion(round(entry[when] * entry["n"]), entry["n"])
        for name, entry in content["heldout"].items()
    }


def write_proportions(path: Path, results: Results) -> None:
    """Write held-out results, shares as counts, for a run that is resumed later."""
    numbers = {name: astuple(result) for name, result in results.items()}
    replace_text(path, json.dumps(numbers) + "\n")


def read_proportions(path: Path) -> dict[str, Proportion | Estimate]:
    """Read a file of `write_proportions`."""
    content = json.loads(path.read_text())
    return {
        name: Estimate(*numbers) if name.startswith(OWN_REWARDS) else Proportion(*numbers)
        for name, numbers in content.items()
    }


def measured_twice(before: Results, after: Results) -> list[str]:
    """The metrics of both; a reward may have had no number for any row, or none in an older run."""
    return [name for name in after if name in before]


def change_text(before: Proportion | Estimate, after: Proportion | Estimate) -> str:
    """The change of a result: in points for shares."""
    change = after.value - before.value
    return f"{100 * change:+.1f}" if isinstance(after, Proportion) else f"{change:+.3f}"


def interval_text(result: Proportion | Estimate) -> str:
    """The interval of a result."""
    return "[{}, {}]".format(*map(result.form.format, result.interval))
