"""The evaluation suites' results of a run's folder, ``evaluation.json``, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...common.html import details, name, table, text
from ...evaluation.results import SCHEMA_VERSION, decoding_text
from .published import published
from .record import RunRecord

Model = Mapping[str, Any]


def section(runs: Sequence[RunRecord]) -> str:
    """A table a suite and run; empty where no folder has an ``evaluation.json``."""
    told = [run for run in runs if run.evaluation is not None]
    return "".join(_evaluation(run) for run in told)


def _evaluation(run: RunRecord) -> str:
    content = run.evaluation or {}
    head = f"<h3>{text(run.name)}</h3>"
    if content.get("schema_version") != SCHEMA_VERSION:
        found = text(content.get("schema_version"))
        return (
            f"{head}<p>evaluation.json has schema version {found}; this report reads version "
            f"{SCHEMA_VERSION}.</p>"
        )
    models = [content, *content.get("compared", ())]
    names = list(dict.fromkeys(suite for model in models for suite in model["suites"]))
    tables = "".join(_suite(suite, models) for suite in names)
    reasons = "".join(
        f"<li>{text(model['model'])}, {text(suite)}: {text(reason)}</li>"
        for model in models
        for suite, reason in model["left_out"].items()
    )
    left_out = f"<p>Left out:</p><ul>{reasons}</ul>" if reasons else ""
    return head + tables + left_out


def _suite(suite: str, models: Sequence[Model]) -> str:
    """All models in columns; the parts of a metric (by ply, by kind of move) below, on demand."""
    having = [model for model in models if suite in model["suites"]]
    result = having[0]["suites"][suite]
    metrics = list(dict.fromkeys(m for model in having for m in model["suites"][suite]["metrics"]))
    wholes = [metric for metric in metrics if "/" not in metric]
    parts = [metric for metric in metrics if "/" in metric]
    heads = ["metric"]
    for model in having:
        heads += [model["model"]] + (["change"] if suite in model.get("paired", {}) else [])
    rows = f"{result['n']} rows, seed {result['seed']}"
    caption = f"{suite}, version {result['version']}, {rows}, {decoding_text(result['decoding'])}"
    found = table([_row(suite, m, having) for m in wholes], (*heads, "published"), caption)
    if not parts:
        return found
    below = table([_row(suite, m, having) for m in parts], (*heads, "published"))
    return found + details(f"{suite} by kind", below)


def _row(suite: str, metric: str, models: Sequence[Model]) -> tuple[str, ...]:
    cells = [name(metric)]
    for model in models:
        cells.append(_estimate(model["suites"][suite]["metrics"].get(metric)))
        if suite in model.get("paired", {}):
            cells.append(_paired(model["paired"][suite].get(metric)))
    notes = models[0]["suites"][suite].get("notes", {})
    return (*cells, published(f"{suite}:{metric}", notes))


def _estimate(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    numbers = [value["value"], value["low"], value["high"]]
    return f"<b>{numbers[0]:.4g}</b> <small>[{numbers[1]:.4g}, {numbers[2]:.4g}], n {value['n']}</small>"


def _paired(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    return (
        f"<b>{value['difference']:+.4g}</b> <small>[{value['low']:+.4g}, {value['high']:+.4g}], "
        f"p {value['p']:.2g} ({text(value['test'])})</small>"
    )
