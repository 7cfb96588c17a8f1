"""The evaluation suites' results of a run's folder, ``evaluation.json``, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.html import name, render
from ...common.stats import Estimate
from ...evaluation.results import SCHEMA_VERSION, WHOSE, decoding_text, goal_rows
from .published import published
from .record import RunRecord

Model = Mapping[str, Any]


_ESTIMATE = Markup("<b>{value:.4g}</b> <small>{bounds}, n {n}</small>")


_PAIRED = Markup("<b>{difference:+.4g}</b> <small>{bounds}, p {p:.2g} ({test})</small>")


_BOUNDS = {_ESTIMATE: "[{low:.4g}, {high:.4g}]", _PAIRED: "[{low:+.4g}, {high:+.4g}]"}


def section(runs: Sequence[RunRecord]) -> Markup:
    """A table for each suite and run; empty if no folder has an ``evaluation.json``."""
    told = [(run.name, run.evaluation) for run in runs if run.evaluation is not None]
    return render(
        "run_suites.html", whose=WHOSE, told=[(run, _evaluation(content)) for run, content in told]
    )


def _evaluation(content: Mapping[str, Any]) -> dict[str, Any]:
    found = content.get("schema_version")
    if found != SCHEMA_VERSION:
        return {"unread": f"has schema version {found}; this report reads version {SCHEMA_VERSION}"}
    models = [content, *content.get("compared", ())]
    left_out = [
        f"{model['model']}, {suite}: {reason}"
        for model in models
        for suite, reason in model["left_out"].items()
    ]
    return {"suites": list(_suites(models)), "left_out": left_out}


def _suites(models: Sequence[Model]) -> Iterator[dict[str, Any]]:
    """A column for each model; the parts of a metric, such as kinds of moves, come separately."""
    for suite in dict.fromkeys(suite for model in models for suite in model["suites"]):
        having = [model for model in models if suite in model["suites"]]
        results = [model["suites"][suite] for model in having]
        first, heads = results[0], ["metric"]
        for model in having:
            heads += [model["model"]] + (["change"] if suite in model.get("paired", {}) else [])
        rows = {m: _row(suite, m, having) for result in results for m in result["metrics"]}
        yield {
            "name": suite,
            "caption": f"{suite}, version {first['version']}, {first['n']} rows, seed "
            f"{first['seed']}, {decoding_text(first['decoding'])}",
            "heads": [*heads, "published"],
            "wholes": [row for metric, row in rows.items() if "/" not in metric],
            "parts": [row for metric, row in rows.items() if "/" in metric],
            "goals": goal_rows(suite, list(map(_estimates, results)), first.get("notes", {})),
            "models": [model["model"] for model in having],
        }


def _estimates(result: Mapping[str, Any]) -> dict[str, Estimate]:
    return {metric: Estimate(**value) for metric, value in result["metrics"].items()}


def _row(suite: str, metric: str, models: Sequence[Model]) -> list[Markup]:
    cells = [name(metric)]
    for model in models:
        cells.append(_filled(_ESTIMATE, model["suites"][suite]["metrics"].get(metric)))
        if suite in model.get("paired", {}):
            cells.append(_filled(_PAIRED, model["paired"][suite].get(metric)))
    return [*cells, published(f"{suite}:{metric}")]


def _filled(form: Markup, value: Mapping[str, Any] | None) -> Markup:
    if value is None:
        return Markup("-")
    few = "n too small for an interval"
    bounds = few if value["low"] is None else _BOUNDS[form].format(**value)
    return form.format(**value, bounds=bounds)
