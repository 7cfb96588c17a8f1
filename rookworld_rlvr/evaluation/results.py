"""Results of suites as JSON and as a table; several models compared with the first."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..common.stats import Estimate, Paired
from ..common.terminal import width, wrapped
from .registry import SUITE_HEADLINES

if TYPE_CHECKING:
    from .suite import Proof, SuiteResult

SCHEMA_VERSION = 1


_WIDEST = 120  # columns of a table, where the terminal has so many, and in a log


@dataclass(frozen=True, slots=True)
class ModelResults:
    """What a model did in each suite.

    Args:
        model: Its name.
        suites: Results by suite.
        left_out: Why suites were left out, by suite.
    """

    model: str
    suites: Mapping[str, SuiteResult]
    left_out: Mapping[str, str]


def results_document(
    results: Sequence[ModelResults], proofs: Sequence[Proof], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a results file.

    The first model is at the top, with ``model``, ``suites`` and ``left_out``. Each further model is
    under ``compared``, with the same keys and ``paired``: by suite and metric, how it differs from the
    first on the same items.

    Args:
        results: One for each model.
        proofs: The results of searching training sets for test positions.
        provenance: What else is needed to repeat the evaluation.
    """
    first, *others = results
    return {
        "schema_version": SCHEMA_VERSION,
        **_model(first),
        "compared": [{**_model(other), "paired": _paired(first, other)} for other in others],
        "training_data": [asdict(proof) for proof in proofs],
        "provenance": dict(provenance),
    }


def _model(results: ModelResults) -> dict[str, Any]:
    return {
        "model": results.model,
        "suites": {name: _suite(result) for name, result in results.suites.items()},
        "left_out": dict(results.left_out),
    }


def _suite(result: SuiteResult) -> dict[str, Any]:
    return {
        "version": result.version,
        "n": result.n,
        "seed": result.seed,
        "decoding": dict(result.decoding),
        "metrics": {name: _plain(value) for name, value in result.metrics().items()},
        **({"notes": dict(result.notes)} if result.notes else {}),
    }


def _plain(value: Estimate | Paired) -> dict[str, Any]:
    """For JSON, which has no nan: a bound that the items are too few for is null."""
    return {key: None if number != number else number for key, number in asdict(value).items()}


def _paired(first: ModelResults, other: ModelResults) -> dict[str, dict[str, Any]]:
    return {
        name: {
            metric: _plain(value) for metric, value in result.compare(other.suites[name]).items()
        }
        for name, result in first.suites.items()
        if name in other.suites
    }


# --------------------------------------------------------------------------------------------------
# For a terminal
# --------------------------------------------------------------------------------------------------
def results_text(results: Sequence[ModelResults]) -> str:
    """A table for each suite: values with intervals, and differences from the first; then a summary."""
    first, *others = results
    lines = []
    for name, result in first.suites.items():
        lines += [
            "",
            f"{name} (version {result.version}, n {result.n}, {decoding_text(result.decoding)})",
        ]
        if "positions" in result.notes:
            lines.append(f"  {result.notes['positions']}")
        if "pass_samples" in result.notes:
            how = decoding_text(result.notes["pass_decoding"])
            lines.append(f"  pass@k: {result.notes['pass_samples']} answers an item, {how}")
        lines += _tables(name, result, first, others)
        lines += _goals(name, [first, *others])
    for name, reason in first.left_out.items():
        lines += ["", f"{name}: left out: {reason}"]
    if others:
        lines += ["", _LEGEND.format(short_name(first.model))]
    lines += ["", *_summary(results)]
    return wrapped("\n".join(lines[1:]), most=_WIDEST)


_LEGEND = (
    "Differences from {} are over the items that both models have a value for. * means p < 0.05 in a "
    "two-sided test of these pairs (McNemar's exact test for shares, sign-flip permutation for means), "
    "and a 95% interval without 0. A difference without a star is a tie: it may be chance. If fewer "
    "than six items differ, there is never a star."
)


def _tables(
    name: str, result: SuiteResult, first: ModelResults, others: Sequence[ModelResults]
) -> list[str]:
    """A suite's metrics with a column for each model, in as many tables as the width needs."""
    models = [first, *(other for other in others if name in other.suites)]
    columns = [model.suites[name].metrics() for model in models]
    changes = [{}, *(result.compare(model.suites[name]) for model in models[1:])]
    metrics = list(dict.fromkeys(metric for column in columns for metric in column))
    space = max(map(len, metrics)) + 2
    at_once = max(1, (width(_WIDEST) - space - 8) // 34)
    lines = []
    for begin in range(0, len(models), at_once):
        of = slice(begin, begin + at_once)
        heads = "".join(f"  {short_name(model.model):<32}" for model in models[of])
        lines.append(f"  {'':<{space}}{'n':>6}{heads}".rstrip())
        for metric in metrics:
            counts = [column[metric].n for column in columns[of] if metric in column]
            if not counts:
                continue  # the models of another table have it
            n = "-".join(map(str, sorted({min(counts), max(counts)})))
            cells = [
                f"{_estimate(column.get(metric))}{_change(change.get(metric))}".ljust(32)
                for column, change in zip(columns[of], changes[of], strict=True)
            ]
            lines.append(f"  {metric:<{space}}{n:>6}  {'  '.join(cells)}".rstrip())
    return lines


def _summary(results: Sequence[ModelResults]) -> list[str]:
    """The headline metric of each suite, for each model."""
    first = results[0]
    lines = [
        f"summary: {short_name(first.model) if len(results) == 1 else 'the headline of each suite'}"
    ]
    for name, result in first.suites.items():
        metric = SUITE_HEADLINES[name].split("/", 2)[2]
        head = f"{name} {metric}"
        for model in results:
            if (other := model.suites.get(name)) is None:
                continue
            change = None if model is first else result.compare(other).get(metric)
            cell = f"{_estimate(other.metrics().get(metric))}{_change(change)}"
            named = short_name(model.model, 16) if len(results) > 1 else f"n {result.n}"
            lines.append(f"  {head:<26} {cell:<30} {named}")
            head = ""
    return lines


def _goals(name: str, models: Sequence[ModelResults]) -> list[str]:
    """The goals that the suite measures, with a line for each model."""
    having = [model for model in models if name in model.suites]
    results = [model.suites[name].metrics() for model in having]
    rows = goal_rows(name, results, having[0].suites[name].notes)
    lines = [f"  {WHOSE}:"] if rows else []
    for goal, metric, *cells in rows:
        lines.append(f"    {goal} ({metric})")
        for model, cell in zip(having, cells, strict=True):
            lines.append(f"      {short_name(model.model)}: {cell}")
    return lines


def short_name(model: str, most: int = 32) -> str:
    """A path or name; one of over `most` characters without its beginning.

    >>> short_name("runs/grpo_nano/checkpoint-100", 15)
    '…checkpoint-100'
    """
    return model if len(model) <= most else f"…{model[1 - most :]}"


def decoding_text(decoding: Mapping[str, Any]) -> str:
    """How tokens were chosen, in a few words.

    >>> decoding_text({"name": "sampled", "temperature": 0.6})
    'sampled, temperature 0.6'
    """
    return ", ".join(
        str(value) if key == "name" else f"{key} {value}" for key, value in decoding.items()
    )


def _estimate(value: Estimate | None) -> str:
    if value is None:
        return "-"
    if math.isnan(value.low):
        return f"{value.value:.3f} [n too small]"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _change(value: Paired | None) -> str:
    """The difference, with a star if chance alone would rarely be as large, see `_LEGEND`."""
    if value is None:
        return ""
    return f" {value.difference:+.3f}{'' if value.is_tie else '*'}"


# --------------------------------------------------------------------------------------------------
# Goals
# --------------------------------------------------------------------------------------------------
WHOSE = "Goals that the author of RookWorld-LM-124M set for that model"


GOALS = (
    ("openings", "position", "openings of the file", 0.8),
    ("openings", "position/ply_1", "first moves of the file", 0.8),
    ("heldout", "policy/best_move", "best move", 0.3),
    ("policy", "best_move", "best move", 0.3),
    ("heldout", "environment/state", "next state", 0.999),
    ("environment", "next_state_exact", "next state", 0.999),
    ("policy", "legal", "legal moves", 0.99),
)
"""The suite, or ``heldout``, the metric, what is to be right, and the share that is to be reached."""


def goal_rows(
    of: str, results: Sequence[Mapping[str, Estimate]], notes: Collection[str] = ()
) -> list[list[str]]:
    """A row for each goal that some result has a metric of: the goal, the metric, a cell per result.

    Args:
        of: ``heldout`` or a suite's name.
        results: Estimates by metric, for each model.
        notes: Names of the notes in the suite's result; those of `openings` are goals of a file's.

    >>> goal_rows("policy", [{"legal": Estimate(0.95, 0.93, 0.97, 500)}])
    [['legal moves, at least 99%', 'legal', '95.0% [93.0, 97.0], not reached']]
    """
    if of == "openings" and "file" not in notes:
        return []
    return [
        [
            f"{what}, at least {100 * least:g}%",
            metric,
            *(_cell(least, result.get(metric)) for result in results),
        ]
        for place, metric, what, least in GOALS
        if place == of and any(metric in result for result in results)
    ]


def _cell(least: float, value: Estimate | None) -> str:
    if value is None:
        return "-"
    shares = "{:.1f}% [{:.1f}, {:.1f}]".format(
        *(100 * n for n in (value.value, value.low, value.high))
    )
    return f"{shares}, {'reached' if value.value >= least else 'not reached'}"
