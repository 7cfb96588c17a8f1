"""The log of tries, ``benchmarks/results/tries.jsonl``: how it is read, and the tables made from it.

``benchmarks/results/README.md`` says what the fields of a line mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rookworld_rlvr.common.stats import proportion

LOG = Path(__file__).parent.parent / "benchmarks" / "results" / "tries.jsonl"
Line = Mapping[str, Any]

FIELDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "date": (str,),
    "commit": (str,),
    "question": (str,),
    "start": (str, type(None)),
    "recipe": (str, type(None)),
    "method": (str,),
    "keys": (dict,),
    "notes": (str,),
    "seed": (int, type(None)),
    "steps": (int, type(None)),
    "labels": (int, type(None)),
    "core_seconds": (int, type(None)),
    "minutes": (int, float, type(None)),
    "metrics": (dict,),
    "conclusion": (str,),
}
"""The fields of a line in their order, and the types that each may have."""

FORMS = {
    "id": r"[\w.-]+",
    "date": r"\d{4}-\d{2}-\d{2}",
    "commit": r"[0-9a-f]{8}",
    "question": r"[a-z-]+",
    "conclusion": r".*[.]",
}
"""What a text of these fields looks like."""

SHARES = (
    "environment/exact",
    "environment/elsewhere",
    "environment/first_plies",
    "environment/first_plies_held_out",
    "fill_in/exact",
    "policy/best_move",
    "policy/legal",
)
"""Metrics whose interval follows from the value and the number of rows."""


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------
@cache
def tries() -> Mapping[str, Line]:
    """The lines of the log by their id."""
    lines = [json.loads(text) for text in LOG.read_text(encoding="utf-8").splitlines()]
    found = {line["id"]: line for line in lines}
    faults = [f"{LOG.name}, line {at}: {fault}" for at, fault in faults_of(lines)]
    if faults:
        raise ValueError("\n".join(faults))
    return found


def faults_of(lines: Sequence[Line]) -> Iterator[tuple[int, str]]:
    """What is wrong with lines of the log, each with the number of its line."""
    ids = [line.get("id") for line in lines]
    starts = {line.get("start") for line in lines if line.get("method") == "start"}
    for at, line in enumerate(lines, 1):
        if list(line) != list(FIELDS):
            yield at, f"its fields are {', '.join(line)}; they should be {', '.join(FIELDS)}"
            continue
        for name, kinds in FIELDS.items():
            if not isinstance(line[name], kinds) or isinstance(line[name], bool):
                yield at, f"{name} is {line[name]!r}; it should be one of {kinds}"
            elif name in FORMS and not re.fullmatch(FORMS[name], line[name]):
                yield at, f"{name} is {line[name]!r}; it should look like {FORMS[name]}"
        if ids.count(line["id"]) > 1:
            yield at, f"another line has the id {line['id']!r}, too"
        if line["start"] is not None and line["start"] not in starts:
            yield at, f"no line with the method start measures {line['start']!r}"
        for name, metric in line["metrics"].items():
            yield from ((at, f"{name}: {fault}") for fault in metric_faults(metric))


def metric_faults(metric: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a metric of a line."""
    if "value" not in metric or not set(metric) <= {"value", "low", "high", "n"}:
        yield f"it has {', '.join(metric)}; it needs a value, and may have low, high and n"
    elif not all(isinstance(number, int | float) for number in metric.values()):
        yield f"{dict(metric)} are not all numbers"
    elif ("low" in metric) != ("high" in metric):
        yield "an interval has a lower and an upper bound"
    elif "low" in metric and not metric["low"] <= metric["value"] <= metric["high"]:
        yield f"{metric['value']} is outside of its interval"


def interval(name: str, metric: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval that was measured, or the one that follows from a share of `n` rows, in %."""
    if "low" in metric:
        return metric["low"], metric["high"]
    if name in SHARES and "n" in metric:
        rows = metric["n"]
        share = proportion(round(metric["value"] * rows / 100), rows)
        return 100 * share.low, 100 * share.high
    return None


# --------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TryTable:
    """A table of tries.

    Args:
        first: The heading of the first column.
        columns: The other headings, each with a metric or a field. ``start:`` before a metric is for
            that of the starting model.
        rows: What the first column says, and the ids of a row's tries. Several tries share a row if
            they differ in nothing but the seed; the row then says from where to where they reach.
    """

    first: str
    columns: Mapping[str, str]
    rows: Mapping[str, str]

    @property
    def head(self) -> list[str]:
        return [self.first, *self.columns]

    def lines(self) -> Iterator[list[str]]:
        for label, ids in self.rows.items():
            found = [tries()[name] for name in ids.split()]
            yield [label, *(cell(found, column) for column in self.columns.values())]


def cell(lines: Sequence[Line], column: str) -> str:
    """What a table says of tries that differ in their seed only."""
    if column == "seed":
        return ", ".join(str(line["seed"]) for line in lines if line["seed"] is not None) or "-"
    if column in FIELDS:
        return span([f"{line[column]:,}" for line in lines if line[column] is not None])
    name = column.removeprefix("start:")
    if name != column:
        lines = [start_of(line, name) for line in lines]
    found = [line["metrics"][name] for line in lines if name in line["metrics"]]
    texts = [number(name, metric["value"]) for metric in found]
    if len(set(texts)) != 1:
        return span(texts)
    bounds = interval(name, found[0])
    if bounds is None:
        return texts[0]
    low, high = (number(name, bound) for bound in bounds)
    return f"{texts[0]} [{low}, {high}]"


def start_of(line: Line, name: str) -> Line:
    """The line that measures a try's starting model on as many rows."""
    rows = line["metrics"].get(name, {}).get("n")
    for start in tries().values():
        if start["method"] == "start" and start["start"] == line["start"]:
            metric = start["metrics"].get(name)
            if metric and metric.get("n") == rows:
                return start
    raise ValueError(f"no line measures {name} of {line['start']} on {rows} rows")


def span(texts: Sequence[str]) -> str:
    """From the smallest to the largest of some numbers as text."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: float(text.replace(",", "")))
    if not ordered:
        return "-"
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def number(name: str, value: float) -> str:
    """As the log's values were measured: shares to a tenth of a per cent."""
    if name.startswith(("kl/", "judge/reward")):
        return f"{value:.3f}"
    return f"{value:.0f}" if name == "elo" else f"{value:.1f}"


_MOVES = {
    "expected": "policy/expected_score",
    "best move": "policy/best_move",
    "legal": "policy/legal",
    "environment": "environment/exact",
}

TABLES: Mapping[str, TryTable] = {
    "tries_methods": TryTable(
        "method",
        {
            "expected": "policy/expected_score",
            "lost": "policy/win_probability_loss",
            "best move": "policy/best_move",
            "legal": "policy/legal",
            "environment": "environment/exact",
        },
        {
            "the start": "policy-e",
            "all legal moves (the recipe)": "policy-e-method-all-moves",
            "GRPO from samples": "policy-e-samples",
            "soft targets alone": "policy-e-soft-targets",
            "supervised": "policy-e-supervised",
            "DPO": "policy-e-dpo",
            "control: the move alone": "policy-e-control",
        },
    ),
    "tries_narrowing": TryTable(
        "method",
        {"seconds of a core": "core_seconds", "pass@16": "policy/pass@16"},
        {
            "the start": "policy-e",
            "all legal moves (the recipe)": "policy-e-method-all-moves",
            "GRPO from samples": "policy-e-samples",
            "soft targets alone": "policy-e-soft-targets",
            "supervised": "policy-e-supervised",
            "DPO": "policy-e-dpo",
        },
    ),
    "tries_environment": TryTable(
        "what is added",
        {**_MOVES, "before": "start:environment/exact"},
        {
            "KL, 95% policy": "policy-a-95",
            "KL, 95% policy, a start's share of 0.3": "policy-a-95-start",
            "KL, 65% policy": "policy-a-65",
            "KL, 65% policy, a start's share of 0.3": "policy-a-old-recipe-0 policy-a-old-recipe-1 "
            "policy-a-old-recipe-2",
            "KL, 65% policy, a start's share of 0.5": "policy-a-start-0.5",
            "and `keep_coef: 50`, a share of 0.3": "policy-c-keep-65-0 policy-c-keep-65-1",
            "and Muon with further positions": "policy-d-2026-11-27-0 policy-d-2026-11-27-1 "
            "policy-d-2026-11-27-2",
            "the recipe": "policy-e-recipe-0 policy-e-recipe-1 policy-e-recipe-2",
        },
    ),
    "tries_terms": TryTable(
        "coefficients",
        {"steps": "steps", **_MOVES},
        {
            "5, 1, no logarithm": "policy-a-5-1-kl",
            "20, 1, no logarithm": "policy-a-20-1",
            "40, 1": "policy-a-40-1",
            "40, 4": "policy-a-40-4",
            "40, 1.5": "policy-a-65",
            "60, 3": "policy-c-60-3",
            "40, 1.5, softmax at 0.012": "policy-d-softmax-0.012",
            "60, 1, softmax at 0.01": "policy-d-softmax-0.01",
        },
    ),
    "tries_rounds": TryTable(
        "after",
        {
            "expected": "policy/expected_score",
            "paired gain": "policy/expected_score_gain",
            "legal": "policy/legal",
            "environment": "environment/exact",
            "Elo in its match": "elo",
        },
        {
            "the start": "policy-e-1500",
            "round 1": "rounds-e-1",
            "round 2": "rounds-e-2",
            "round 3, not accepted": "rounds-e-3",
        },
    ),
    "tries_pass": TryTable(
        "method",
        {
            "greedy": "environment/exact",
            "pass@1": "environment/pass@1",
            "pass@8": "environment/pass@8",
            "pass@64": "environment/pass@64",
        },
        {
            "the start": "openings-pass-start",
            "plain GRPO": "openings-pass-samples-plain",
            "samples and `teach`": "openings-pass-samples-teach",
            "`grpo_learning`": "openings-pass-recipe",
            "supervised": "openings-pass-supervised",
        },
    ),
    "tries_hole": TryTable(
        "method",
        {
            "seeds": "seed",
            "first plies": "environment/first_plies",
            "elsewhere": "environment/elsewhere",
            "best move": "policy/best_move",
            "core, s": "core_seconds",
        },
        {
            "the start": "hole-start",
            "`teach` (the recipe)": "hole-teach-0 hole-teach-1 hole-teach-2",
            "plain GRPO": "hole-plain-0 hole-plain-1 hole-plain-2",
            "`resample`": "hole-resample-0 hole-resample-1 hole-resample-2",
            "supervised": "hole-supervised-0 hole-supervised-1 hole-supervised-2",
            "plain, exact answers only, 1e-4": "hole-exact-plain-1e-4-0",
            "plain, exact answers only, 2e-4": "hole-exact-plain-2e-4-0 hole-exact-plain-2e-4-1 "
            "hole-exact-plain-2e-4-2",
            "`teach`, exact answers only, 2e-4": "hole-exact-teach-2e-4-0",
        },
    ),
    "tries_malformed": TryTable(
        "credit for malformed boards",
        {
            "greedy": "environment/greedy",
            "sampled": "environment/sampled",
            "readable": "environment/readable",
            "elsewhere": "environment/elsewhere",
        },
        {
            "the start": "malformed-start",
            **{f"yes, seed {seed}": f"malformed-credit-{seed}" for seed in range(3)},
            **{f"no, seed {seed}": f"malformed-no-credit-{seed}" for seed in range(3)},
        },
    ),
    "tries_first_recipe": TryTable(
        "method",
        {"seeds": "seed", "steps": "steps", "exact": "environment/exact", "minutes": "minutes"},
        {
            "the start": "openings-66",
            "GRPO": "first-recipe-0 first-recipe-1 first-recipe-2",
            "GRPO, rewards shuffled within a group": "first-recipe-shuffled",
            "supervised, the same rows with labels": "first-recipe-supervised",
        },
    ),
    "tries_labels": TryTable(
        "method",
        {
            "seeds": "seed",
            "labels": "labels",
            "exact": "environment/exact",
            "best move": "policy/best_move",
            "core, s": "core_seconds",
        },
        {
            "the start": "openings-69",
            "`grpo_learning`": "openings-recipe-0 openings-recipe-1 openings-recipe-2",
            "38,400 labels in its place": "openings-try-02",
            "samples and `teach`": "openings-samples-teach-0",
            "samples, plain GRPO": "openings-samples-plain-0",
            "supervised, 64 rows a step": "openings-supervised-0",
        },
    ),
    "tries_games": TryTable(
        "method",
        {**_MOVES, "Elo": "elo"},
        {
            "the start": "games-arena-start",
            "all legal moves (`grpo_games`)": "games-arena-recipe",
            "GRPO from samples": "games-arena-grpo",
            "soft targets alone": "games-arena-soft-380",
            "supervised": "games-arena-sft",
            "DPO": "games-arena-dpo",
            "control: the move alone": "games-arena-control",
        },
    ),
    "tries_games_recipe": TryTable(
        "recipe, seed",
        {**_MOVES, "Elo": "elo"},
        {
            "the start": "games-recipe-start",
            "`grpo_games`, 0": "games-recipe-0",
            "`grpo_games`, 1": "games-recipe-1",
            "`grpo_games`, 2": "games-recipe-2",
            "`evolve_games`, 0": "games-evolve-0",
            "`evolve_games`, 1": "games-evolve-1",
            "`evolve_games`, 2": "games-evolve-2",
        },
    ),
    "tries_games_rows": TryTable(
        "method and rows",
        {**_MOVES, "Elo": "elo"},
        {
            "all legal moves, its own games": "games-m3-own-0",
            "all legal moves, mostly decisive positions": "games-m3-decisive-0",
            "all legal moves, any positions": "games-m3-any-0",
            "GRPO from samples, any positions": "games-m3-samples-0",
        },
    ),
    "tries_fill_in": TryTable(
        "method",
        {
            "seeds": "seed",
            "fill-in": "fill_in/exact",
            "openings": "environment/exact",
            "best move": "policy/best_move",
            "core, s": "core_seconds",
        },
        {
            "the start": "fill-in-start",
            "`grpo_fill_in`": "fill-in-0 fill-in-1 fill-in-2",
            "at half the rate, 5e-4": "fill-in-5e-4-0",
        },
    ),
    "tries_judge": TryTable(
        "only reward",
        {
            "fill-in": "fill_in/exact",
            "next states": "fill_in/next_state",
            "judge": "judge/reward",
            "judge, right answers": "judge/reward_of_right",
            "judge, wrong answers": "judge/reward_of_wrong",
        },
        {
            "the start": "judge-start",
            "the judge": "judge-judge-1e-4",
            "`fill_in_exact`": "judge-verifiable-1e-4",
        },
    ),
    "tries_annealed": TryTable(
        "method",
        {"steps": "steps", "exact": "environment/exact"},
        {
            "the start": "annealed",
            "GRPO, 16 prompts with 8 each, 3e-4": "annealed-3e-4-150",
            "GRPO, 64 prompts with 4 each, 1e-4": "annealed-64x4-40",
            "credit by field, 32 with 4 each, 1e-4": "annealed-field-150",
            "supervised, 1e-4": "annealed-supervised-1e-4",
            "supervised, 1e-3": "annealed-supervised-1e-3",
        },
    ),
}
"""The tables of docs/learning.md."""
