"""Results of suites as JSON and as a table; several models compared with the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import RookWorldError
from ..common.files import RESOLVED_CONFIG, read_keys
from ..common.stats import Estimate, MetricKind, Paired, estimate, paired_by_metric
from ..common.terminal import wrapped
from .registry import SUITE_HEADLINES, SUITES

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite's outcome for one model.

    Args:
        version: Results of different versions are not comparable.
        n: Items that were asked: prompts, positions or games.
        seed: The seed of the items; None if they come from a file alone.
        decoding: How the model chose its tokens.
        kinds: Of the metrics, by name.
        values: By metric and item. Those of a group of items are under ``metric/group``.
        estimates: Metrics that are not a mean over items, such as an Elo difference.
        notes: What else is worth knowing, such as the engine and its limit.
    """

    version: int
    n: int
    seed: int | None
    decoding: Mapping[str, Any]
    kinds: Mapping[str, MetricKind]
    values: Mapping[str, Mapping[str, float]]
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def metrics(self) -> dict[str, Estimate]:
        """Each metric's value and interval, the groups behind their metric."""
        found = {name: estimate(self._kind(name), [*v.values()]) for name, v in self.values.items()}
        return {**found, **self.estimates}

    def compare(self, other: SuiteResult) -> dict[str, Paired]:
        """How `other` differs from this one, metric by metric, on the items of both."""
        return paired_by_metric(self._kind, self.values, other.values)

    def _kind(self, name: str) -> MetricKind:
        return self.kinds[name.split("/", 1)[0]]


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
    results: Sequence[ModelResults],
    trained_on: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of a results file.

    The first model is at the top, with ``model``, ``suites`` and ``left_out``. Each further model is
    under ``compared``, with the same keys and ``paired``: by suite and metric, how it differs from the
    first on the same items.

    Args:
        results: One for each model.
        trained_on: What `suite.keep_apart` found, one for each data set.
        provenance: What else is needed to repeat the evaluation.
    """
    first, *others = results
    return {
        "schema_version": SCHEMA_VERSION,
        **_model(first),
        "compared": [{**_model(other), "paired": _paired(first, other)} for other in others],
        "training_data": list(trained_on),
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
        "metrics": _plain(result.metrics()),
        "notes": dict(result.notes),
    }


def _plain(values: Mapping[str, Estimate] | Mapping[str, Paired]) -> dict[str, Any]:
    """For JSON, which has no nan: a bound that the items are too few for is null."""
    return {
        name: {key: None if number != number else number for key, number in asdict(value).items()}
        for name, value in values.items()
    }


def _paired(first: ModelResults, other: ModelResults) -> dict[str, dict[str, Any]]:
    return {
        name: _plain(result.compare(other.suites[name])) for name, result in first.suites.items()
    }


# --------------------------------------------------------------------------------------------------
# For a terminal
# --------------------------------------------------------------------------------------------------
def results_text(results: Sequence[ModelResults]) -> str:
    """For each suite a table of each model: values, intervals, changes; then a summary."""
    first, lines, summary = results[0], [""], ["", "summary: the headline of each suite"]
    for name, result in first.suites.items():
        headline = SUITE_HEADLINES[name].split("/", 2)[2]
        how = decoding_text(result.decoding)
        lines.append(f"{name} (version {result.version}, n {result.n}, {how})")
        said = (
            result.notes[note] for note in ("positions", "adjudication") if note in result.notes
        )
        lines += [f"  {line}" for line in said]
        lines += [f"  {line}" for line in pool_lines(result.notes.get("pool", {}))]
        if "pass_samples" in result.notes:
            how = decoding_text(result.notes["pass_decoding"])
            of = f"pass@k of {result.notes['pass_right']}"
            lines.append(f"  {of}: {result.notes['pass_samples']} answers an item, {how}")
        measured = [model.suites[name].metrics() for model in results]
        numbers = {metric: one.n for metric, one in measured[0].items()}
        for model, metrics in zip(results, measured, strict=True):
            changes = {} if model is first else result.compare(model.suites[name])
            cells = {
                m: f"{_estimate(x)}{_change(changes.get(m), max(x.n, numbers.get(m, 0)))}"
                for m, x in metrics.items()
            }
            lines.append(f"  {short_name(model.model)}")
            lines += [f"    {key:<32}{metrics[key].n:>6}  {cell}" for key, cell in cells.items()]
            if name != "openings" or "file" in result.notes:
                lines += goal_lines(name, model.model, metrics)
            cell, named = cells[headline], short_name(model.model, 16)
            summary.append(f"  {f'{name} {headline}':<26} {cell:<30} {named}")
        lines.append("")
    lines += [f"{name}: left out: {reason}" for name, reason in first.left_out.items()]
    if len(results) > 1:
        lines.append(_LEGEND.format(short_name(first.model)))
    return wrapped("\n".join([*lines, *summary]).strip())


def goal_lines(suite: str, model: str, metrics: Mapping[str, Estimate]) -> list[str]:
    """The goals that RookWorld's author set for the model of that name, and whether they are reached.

    No other model has them, see `is_rookworld_lm`.
    """
    goals = SUITES.get(suite, {}).get("goals", {}) if is_rookworld_lm(model) else {}
    return [
        f"    goal of RookWorld's author: {metric} of at least {100 * least:g}%: "
        f"{'reached' if metrics[metric].value >= least else 'not reached'}"
        for metric, least in goals.items()
        if metric in metrics
    ]


def is_rookworld_lm(model: str, seen: frozenset[Path] = frozenset()) -> bool:
    """Whether a model is one of RookWorld-LM's, or comes from a run that started from one.

    Args:
        model: Its name or folder. Of a run whose record cannot be read, nothing is known.
        seen: Folders that were looked into; runs may have been started from each other.

    >>> is_rookworld_lm("jrahn/RookWorld-LM-124M"), is_rookworld_lm("rookworld-nano")
    (True, False)
    """
    path = Path(model)
    if path.name.lower().startswith("rookworld-lm"):
        return True
    for folder in (path, path.parent):  # a checkpoint is in its run's folder
        if (file := folder / RESOLVED_CONFIG).is_file():
            try:
                start = str(read_keys(file).get("model_name_or_path", ""))
            except RookWorldError:
                return False
            seen |= {path, folder}
            return Path(start) not in seen and is_rookworld_lm(start, seen)
    return False


def pool_lines(pool: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each player that was rated, the strongest first.

    Args:
        pool: The note `pool` of the suite elo.

    >>> pool_lines({"random": {"elo": 0.0, "low": 0.0, "high": 0.0, "games": 4}})
    ['pool: Elo, 95% interval, games', '     0 [0, 0]          4  random']
    """
    lines = ["pool: Elo, 95% interval, games"] if pool else []
    for name, one in sorted(pool.items(), key=lambda item: -item[1]["elo"]):
        has_interval = one["low"] is not None
        bounds = f"[{one['low']:.0f}, {one['high']:.0f}]" if has_interval else "[no interval]"
        lines.append(f"{one['elo']:6.0f} {bounds:<13}{one['games']:>4}  {short_name(name)}")
    return lines


_LEGEND = (
    "Differences from {} are over the items that both models have a value for. * means p < 0.05 in a "
    "two-sided test of these pairs, and a 95% interval without 0; without a star it may be chance."
)


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


def _estimate(value: Estimate) -> str:
    if math.isnan(value.low):
        return f"{value.value:.3f} [no interval]"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _change(value: Paired | None, n: int) -> str:
    """The difference, with a star if chance alone would rarely be as large, see `_LEGEND`.

    Args:
        value: The comparison of the items that both models have a value for.
        n: The most that one of them has; if those are more, their number is said.
    """
    if value is None:
        return ""
    shared = f" (of the {value.n} of both)" if value.n < n else ""
    return f" {value.difference:+.3f}{'' if value.is_tie else '*'}{shared}"
