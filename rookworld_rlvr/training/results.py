"""Held-out results: the tables that a run prints, and the files that it writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.files import RESOLVED_CONFIG as RESOLVED_CONFIG
from ..common.files import read_json_lines, replace_text
from ..common.stats import Estimate, Paired
from ..common.terminal import wrapped
from ..tasks.metrics import Results, compare, headline, headlines

# Files of a run's folder.
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

Limits = Mapping[str, Sequence[float]]
"""Headline → what random and the best answers to the held-out rows get."""

OWN_REWARDS = "rewards/"
"""What the names of the means of a user's own rewards begin with."""


def before_after_table(
    before: Results,
    after: Results,
    pairs: Mapping[str, Paired] | None = None,
    limits: Limits | None = None,
    kept: str = "",
) -> str:
    """Metric, before, after, change, and the 95% intervals, as text; shares change in points.

    Below the table a sentence says what that means, see `outcome`.

    Args:
        before: Results before training.
        after: Results of the same rows after it.
        pairs: The comparison row by row, see `compared`.
        limits: See `tasks.metrics.limits`.
        kept: Which weights were kept, a clause.
    """
    lines = [f"{'held-out metric':<24}{'n':>5}{'before':>7}{'after':>7}{'change':>7}"]
    lines[0] += "  95% intervals before, after"
    lines.append("-" * len(lines[0]))
    # A reward may have had no number for any row on one of the sides.
    for name in [name for name in after if name in before]:
        old, new = before[name], after[name]
        first, then = (value_text(name, result.value) for result in (old, new))
        was, now = (interval_text(name, result).replace("%", "") for result in (old, new))
        change = change_text(name, new.value - old.value)
        if len(name) > 23:  # on a line of its own, so that the table fits into 80 columns
            lines.append(name)
            name = ""
        lines.append(f"{name:<24}{new.n:>5}{first:>7}{then:>7}{change:>7}  {was:<13} {now}")
    lines += ["", *limit_lines(limits)] if limits else []
    if said := outcome(before, after, pairs or {}, kept):
        lines += ["", wrapped(said, 0)]
    return "\n".join(lines)


def limit_lines(limits: Limits) -> list[str]:
    """What random and the best answers to the same rows get, a line each.

    >>> limit_lines({"policy/expected_score": (0.385, 0.5512)})
    ['policy/expected_score: on these rows random answers would get 38.5%, the best answers 55.1%']
    """
    return [
        f"{name}: on these rows random answers would get {low:.1%}, the best answers {high:.1%}"
        for name, (low, high) in limits.items()
    ]


def compared(folder: Path) -> dict[str, Paired]:
    """Metric → its change row by row, from a run's answers before and after; empty without both."""
    paths = folder / ANSWERS_BEFORE, folder / ANSWERS_AFTER
    if not all(path.is_file() for path in paths):
        return {}
    before, after = map(read_json_lines, paths)
    if [answer["prompt"] for answer in before] != [answer["prompt"] for answer in after]:
        return {}
    scores = ([answer["score"] for answer in side] for side in (before, after))
    return compare(after, *scores)


def verdicts(before: Results, after: Results, pairs: Mapping[str, Paired]) -> list[str]:
    """A sentence for each headline on how it changed, and one if nothing was gained.

    Args:
        before: Results before training.
        after: Results after it.
        pairs: The comparison row by row.
    """
    lines = [f"{change}." for change in _changes(before, after, pairs)]
    if headline(after) <= headline(before):
        lines.append(_NO_BETTER)
    return lines


def outcome(before: Results, after: Results, pairs: Mapping[str, Paired], kept: str = "") -> str:
    """What a run improved, by how much, and which weights were kept.

    Args:
        before: Results before training.
        after: Results after it.
        pairs: The comparison row by row.
        kept: Which weights were kept, a clause; empty if there was no choice.
    """
    said = "; ".join(_changes(before, after, pairs))
    said = f"{kept}: {said}." if kept else f"{said}."
    return said if headline(after) > headline(before) else f"{said} {_NO_BETTER}"


def kept_text(step: int, steps: int, has_guard: bool) -> str:
    """A clause that says which weights of a run were kept.

    Args:
        step: The optimiser step of these weights.
        steps: Those that the run took.
        has_guard: Whether it had a `guard`, which may keep the start.

    >>> kept_text(120, 150, False)
    'The weights of step 120 of 150 are kept'
    """
    if step == steps:
        return f"The weights of the last step, {steps}, are kept"
    if has_guard and not step:
        return "The starting model is kept, as no evaluated checkpoint kept the guard"
    return f"The weights of step {step} of {steps} are kept"


_NO_BETTER = "The saved model is no better than the starting model."


def _changes(before: Results, after: Results, pairs: Mapping[str, Paired]) -> list[str]:
    """A clause for each headline that was measured before and after."""
    return [
        _changed(name, after[name].value - before[name].value, pairs.get(name))
        for name in headlines().values()
        if name in before and name in after
    ]


def _changed(name: str, change: float, pair: Paired | None) -> str:
    """A clause on the change of a headline; without `pair` it is not known whether it may be chance.

    >>> _changed("environment/exact", 0.413, Paired(0.413, 0.38, 0.445, 1e-9, 926))
    'environment/exact rose by 41.3 points (95% interval [+38.0, +44.5])'
    """
    moved = f"{name} {'rose' if change > 0 else 'fell'} by {abs(100 * change):.1f} points"
    moved = moved if change else f"{name} stayed as it was"
    if pair is None:
        return moved
    interval = change_interval(pair)
    if pair.is_tie:
        may_be = f"{name} is a tie: the change of {100 * change:+.1f} points may be chance"
        return f"{may_be} ({interval}, p = {pair.p:.2g})"
    return f"{moved} ({interval})"


def change_interval(pair: Paired) -> str:
    """The 95% interval of a change, in points, in words.

    >>> change_interval(Paired(0.1, math.nan, math.nan, 1.0, 2))
    'no interval: too few rows'
    """
    if math.isnan(pair.low):
        return "no interval: too few rows"
    return f"95% interval [{100 * pair.low:+.1f}, {100 * pair.high:+.1f}]"


def write_results(path: Path, sides: Mapping[str, Results], **extra: Any) -> None:
    """Write held-out results as JSON, and other numbers.

    Args:
        path: The file.
        sides: Results by when they were measured: ``before`` training, and ``after`` it.
        extra: What else the file has.
    """
    *_, last = sides.values()
    results = {
        name: {
            "n": last[name].n,
            **{when: found[name].value for when, found in sides.items()},
            **{f"interval_{when}": _interval(found[name]) for when, found in sides.items()},
        }
        for name in last
        if all(name in found for found in sides.values())
    }
    replace_text(path, json.dumps({"heldout": results, **extra}, indent=2) + "\n")


def _interval(result: Estimate) -> list[float | None]:
    """An interval for JSON, which has no nan: a bound for which the items are too alike is null."""
    return [None if math.isnan(bound) else bound for bound in result.interval]


def heldout_results(content: Mapping[str, Any], when: str) -> dict[str, Estimate]:
    """The held-out results in a file of `write_results`.

    Args:
        content: The file's content.
        when: ``before`` or ``after``.
    """
    results = {}
    for name, entry in content.get("heldout", {}).items():
        low, high = (math.nan if bound is None else bound for bound in entry[f"interval_{when}"])
        results[name] = Estimate(entry[when], low, high, entry["n"])
    return results


def value_text(name: str, value: float) -> str:
    """A number of a held-out metric: a share in per cent, the mean of an own reward as it is."""
    return f"{value:.3f}" if name.startswith(OWN_REWARDS) else f"{value:.1%}"


def change_text(name: str, change: float) -> str:
    """The change of a held-out metric: in points, but for the mean of an own reward."""
    return f"{change:+.3f}" if name.startswith(OWN_REWARDS) else f"{100 * change:+.1f}"


def interval_text(name: str, result: Estimate) -> str:
    """The interval of a held-out result; of values that are all equal there may be none."""
    if math.isnan(result.low):
        return "no interval"
    return f"[{value_text(name, result.low)}, {value_text(name, result.high)}]"
