"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.files import read_asset
from ...common.html import name, render
from ...common.stats import Estimate, Paired, Proportion, newcombe
from ...evaluation.pass_at_k import GREEDY_SHARE, RightCounts, ks
from ...evaluation.results import SCHEMA_VERSION, WHOSE, decoding_text, goal_rows
from ...tasks.metrics import headline, headlines
from ...tasks.registry import TASKS
from ...training.changes import stretches, words
from ...training.results import change_text, interval_text, limit_lines
from .plots import COLOURS, Series, heldout_plots, plot, training_plots
from .record import Answer, Choice, RunRecord, changes, choose, errors, quality

MOST_RUNS = COLOURS
_BOARD_BYTES = 3_000_000  # of all the boards: with the plots the page stays under 5 MB
_PUBLISHED = read_asset("published.yaml")  # numbers that others have published

Model = Mapping[str, Any]


def page(runs: Sequence[RunRecord], rounds: Sequence[Mapping[str, Any]] = ()) -> str:
    """One run, or several side by side.

    Args:
        runs: At least one, at most `MOST_RUNS`, with different names.
        rounds: Entries of the ledger of `rookworld evolve`.
    """
    with_answers = [run for run in runs if run.answers]
    changed = {run.name: changes(run.answers) for run in with_answers}
    return render(
        "run_report.html",
        runs=runs,
        names=[run.name for run in runs],
        sentence=lambda run: _sentence(run, changed.get(run.name, {})),
        tone=lambda run: _tone(run, changed.get(run.name, {})),
        paired=[(run.name, _paired(changed[run.name])) for run in with_answers],
        changes=changed,
        probability=_probability,
        errors=[(run.name, errors(run.answers)) for run in with_answers],
        **_setup(runs),
        **_before_after(runs),
        heldout_plots=heldout_plots(runs),
        training_plots=list(training_plots(runs)) if any(run.history for run in runs) else [],
        quality=quality,
        qualities={
            task: TASKS[task].quality_words
            for task in dict.fromkeys(pair.after["task"] for run in runs for pair in run.answers)
            if task in TASKS
        },
        boards=[(run.name, list(_boards(run, len(with_answers)))) for run in with_answers],
        gaps=_gaps,
        suites=suites(runs),
        passes=passes(runs),
        rounds=[_round(entry) for entry in rounds],
    )


def _round(entry: Mapping[str, Any]) -> list[str]:
    """The cells of a round: number, rows, expected score, Elo difference, what became of it."""
    before, after = entry["heldout"]["policy/expected_score"]
    change, elo = entry["expected_score"], entry["match"].get("elo_difference")
    return [
        str(entry["round"]),
        str(entry["policy_rows"]),
        str(entry["environment_rows"]),
        f"{before:.1%} → {after:.1%}",
        "{:+.1f} [{:+.1f}, {:+.1f}]".format(
            *(100 * change[key] for key in ("difference", "low", "high"))
        ),
        "{value:+.0f} [{low:+.0f}, {high:+.0f}]".format(**elo) if elo else "not finite",
        "accepted" if entry["accepted"] else "; ".join(entry["reasons"]),
    ]


# --------------------------------------------------------------------------------------------------
# What was run
# --------------------------------------------------------------------------------------------------
def _is_tie(run: RunRecord, changes: Mapping[str, Paired]) -> bool:
    """Whether no headline has changed by more than chance may explain."""
    for metric in headlines().values():
        if metric in changes and not changes[metric].is_tie:
            return False
        if metric not in changes and metric in run.before and metric in run.after:
            low, high = newcombe(run.before[metric], run.after[metric])
            if low > 0 or high < 0:
                return False
    return True


def _sentence(run: RunRecord, changes: Mapping[str, Paired]) -> str:
    """How a run went, in one line."""
    loud = [f for f in run.health or () if f["severity"] != "info"]
    alarms = f"; {len(loud)} health warning{'' if len(loud) == 1 else 's'}" if loud else ""
    if not run.finished:
        last = max((logs["step"] for logs in run.history), default=0)
        return f"did not finish; logged up to step {last}{alarms}."
    metrics = [metric for metric in headlines().values() if metric in run.after]
    before, after = headline(run.before), headline(run.after)
    steps = run.results.get("steps")
    model = (
        f"checkpoint of step {run.best_step} of {steps}"
        if run.best_step is not None
        else f"{steps} steps"
    )
    return (
        f"held out, {'mean of ' if len(metrics) > 1 else ''}{' and '.join(metrics)}: "
        f"{before:.1%} before, {after:.1%} after ({100 * (after - before):+.1f} points"
        f"{', a tie: chance alone may explain it' if _is_tie(run, changes) else ''}); "
        f"{model}{alarms}."
    )


def _tone(run: RunRecord, changes: Mapping[str, Paired]) -> str:
    """The colour of the line: ``warning``, ``tie``, or nothing for a gain."""
    severities = {finding["severity"] for finding in run.health or ()}
    fell = run.finished and headline(run.after) < headline(run.before)
    if "warning" in severities or fell or not run.finished:
        return "warning"
    return "tie" if _is_tie(run, changes) else ""


def _paired(changes: Mapping[str, Paired]) -> str:
    """What the exact test says of the headlines, in one line."""
    return "; ".join(
        f"{metric} {100 * change.difference:+.1f} points ({_probability(change.p)})"
        for metric in headlines().values()
        if (change := changes.get(metric)) is not None
    )


def _probability(p: float) -> str:
    """A p-value as text, to two digits.

    >>> _probability(0.00001), _probability(0.0431), _probability(1.0)
    ('p < 0.001', 'p = 0.043', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _setup(runs: Sequence[RunRecord]) -> dict[str, Any]:
    def of(key: str) -> list[str]:
        return [name(key), *(words(run.config[key]) if key in run.config else "-" for run in runs)]

    shown = read_asset("run_report.yaml")
    facts = list(map(_provenance, runs))
    known = [[key, *(words(fact[key]) for fact in facts)] for key in facts[0]]
    whole = [of(key) for key in sorted({key for run in runs for key in run.config})]
    return {
        "setup": [*map(of, shown["configured"]), *known],
        "whole": whole,
        "differing": [row for row in whole if len(set(row[1:])) > 1],
    }


def _provenance(run: RunRecord) -> Mapping[str, Any]:
    """Facts of a run's last session, and the duration of all its sessions."""
    last = run.sessions[-1] if run.sessions else {}
    return {
        **{key: last.get(key) for key in read_asset("run_report.yaml")["provenance"]},
        "seconds of each session": [session.get("seconds") for session in run.sessions],
        "changed when resumed": stretches(run.sessions),
    }


# --------------------------------------------------------------------------------------------------
# Held-out results
# --------------------------------------------------------------------------------------------------
def _before_after(runs: Sequence[RunRecord]) -> dict[str, Any]:
    told = [run for run in runs if run.before]
    metrics = list(dict.fromkeys(metric for run in told for metric in run.before))
    held = {f"heldout:{metric}" for metric in metrics}
    numbers = _PUBLISHED["numbers"]
    return {
        "told": told,
        "metrics": {m: [run.rows[m] for run in told if m in run.rows] for m in metrics},
        "published": published,
        "change_text": change_text,
        "interval_text": interval_text,
        "reach": sorted(
            {line for run in told for line in limit_lines(run.results.get("limits", {}))}
        ),
        "goals": goal_rows("heldout", [_shares(run) for run in told]),
        "whose": WHOSE,
        "agreeing": [number for number in numbers if held & {*number.get("metrics", ())}],
        "others": [number for number in numbers if "metrics" not in number],
        "sources": _PUBLISHED["sources"],
        "number_words": _number_words,
    }


def _shares(run: RunRecord) -> dict[str, Estimate]:
    return {m: found.estimate for m, found in run.after.items() if isinstance(found, Proportion)}


def comparable(metric: str) -> list[Mapping[str, Any]]:
    """The published numbers with the same definition as one of our metrics.

    Args:
        metric: ``heldout:<metric>`` or ``<suite>:<metric>``.

    >>> [number["value"] for number in comparable("heldout:environment/state")]
    [0.999, 0.9961]
    """
    return [n for n in _PUBLISHED["numbers"] if metric in n.get("metrics", ())]


def published(metric: str) -> Markup:
    """These numbers with their sources; a dash if there are none."""
    form = Markup('{} <small class="source">{}</small>')
    sources = _PUBLISHED["sources"]
    found = [form.format(_number_words(n), sources[n["source"]][0]) for n in comparable(metric)]
    return Markup("<br>").join(found) or Markup("-")


def _number_words(number: Mapping[str, Any]) -> str:
    """A published number as text, a share in per cent."""
    value = number["value"]
    return f"{100 * value:.4g}%" if value <= 1 else f"{value:g}"


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def _boards(run: RunRecord, runs: int) -> Iterator[tuple[Choice, list[Any]]]:
    """A run's answers; the last ones go without a board once its part of the page is full."""
    left = _BOARD_BYTES // runs
    for choice in choose(run.answers, 3 if runs == 1 else 2 if runs < 4 else 1):
        drawn = []
        for pair in choice.pairs:
            sides = [("before", pair.before), ("after", pair.after)]
            if pair.before["completion"] == pair.after["completion"]:
                sides = [("before and after", pair.after)]
            boards = [_board(answer) if left > 0 else Markup() for _, answer in sides]
            left -= sum(map(len, boards))
            drawn.append((pair.after["prompt"], list(zip(sides, boards, strict=True))))
        yield choice, drawn


def _board(answer: Answer) -> Markup:
    """The answer beside the truth."""
    task = TASKS[answer["task"]]
    return Markup(task.board(answer, answer["completion"], answer["values"]))


# --------------------------------------------------------------------------------------------------
# Health
# --------------------------------------------------------------------------------------------------
def _gaps(run: RunRecord) -> Mapping[str, float]:
    """The gaps of a run's preflight; from its log if it did not finish."""
    logged = {
        metric.removeprefix("preflight/"): value
        for logs in run.history
        for metric, value in logs.items()
        if metric.startswith("preflight/")
    }
    return run.results.get("preflight") or logged


# --------------------------------------------------------------------------------------------------
# Suites: ``evaluation.json``
# --------------------------------------------------------------------------------------------------
_ESTIMATE = Markup("<b>{value:.4g}</b> <small>{bounds}, n {n}</small>")
_PAIRED = Markup("<b>{difference:+.4g}</b> <small>{bounds}, p {p:.2g} ({test})</small>")
_BOUNDS = {_ESTIMATE: "[{low:.4g}, {high:.4g}]", _PAIRED: "[{low:+.4g}, {high:+.4g}]"}


def suites(runs: Sequence[RunRecord]) -> Markup:
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


# --------------------------------------------------------------------------------------------------
# pass@k
# --------------------------------------------------------------------------------------------------
_SHARE = Markup("<b>{:.1%}</b> <small>[{:.1f}, {:.1f}]</small>")
_CHANGE = Markup("<b>{:+.1f}</b> <small>[{:+.1f}, {:+.1f}]</small>")


def passes(runs: Sequence[RunRecord]) -> Markup:
    """Plots and tables; empty if no run measured pass@k."""
    told = [run for run in runs if run.right]
    measured = [counts for run in told for found in run.right.values() for counts in found.items()]
    if not measured:
        return Markup()
    tasks = [task for task in TASKS if any(task == name for name, _ in measured)]
    steps = {
        float(place): f"k {k}"
        for _, counts in measured
        for place, k in enumerate(ks(counts.samples))
    }
    return render(
        "run_passes.html",
        plots=[plot(task, _lines(task, runs), is_share=True, steps=steps) for task in tasks],
        is_open=len(told) == 1,
        tables=[table for task in tasks for run in told for table in _tables(task, run, len(runs))],
    )


def _lines(task: str, runs: Sequence[RunRecord]) -> list[Series]:
    """The starts, each once, then every run's end."""
    starts: list[tuple[str, RightCounts]] = []
    ends = []
    for place, run in enumerate(runs):
        before, after = (run.right.get(when, {}).get(task) for when in ("before", "after"))
        if before is not None and all(before != other for _, other in starts):
            starts.append((run.name, before))
        if after is not None:
            label = "after" if len(runs) == 1 else f"{run.name}, after"
            ends.append(_line(label, after, place))
    named = len(starts) > 1
    return [
        _line(f"{name}, before" if named else "before", counts, COLOURS - 1 - place)
        for place, (name, counts) in enumerate(starts)
    ] + ends


def _line(label: str, counts: RightCounts, colour: int) -> Series:
    found = counts.estimates()
    curve = [found[f"pass@{k}"] for k in ks(counts.samples)]
    points = [(float(place), value.value) for place, value in enumerate(curve)]
    band = [value.interval for value in curve]
    return Series(label, points, band, colour, apart=[(0.0, found[GREEDY_SHARE].value)])


def _tables(task: str, run: RunRecord, runs: int) -> Iterator[dict[str, Any]]:
    before, after = (run.right.get(when, {}).get(task) for when in ("before", "after"))
    counts = after or before
    if counts is None:
        return
    sides = [found.estimates() if found else {} for found in (before, after)]
    changes = before.compare(after) if before and after else {}
    yield {
        "caption": f"{f'{run.name}, ' if runs > 1 else ''}{task}: {len(counts.right)} held-out rows, "
        f"{counts.samples} samples each",
        "rows": [
            [
                name,
                *(_share(side.get(name)) for side in sides),
                _points(changes, name),
            ]
            for name in counts.estimates()
        ],
    }


def _share(value: Estimate | None) -> Markup:
    if value is None:
        return Markup("-")
    return _SHARE.format(value.value, 100 * value.low, 100 * value.high)


def _points(changes: Mapping[str, Paired], name: str) -> Markup:
    if name not in changes:
        return Markup("-")
    found = changes[name]
    return _CHANGE.format(*(100 * number for number in (found.difference, found.low, found.high)))
