"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.files import read_asset
from ...common.html import name, render
from ...evaluation.results import decoding_text
from ...tasks.metrics import headline, headlines
from ...tasks.registry import TASKS
from ...training.results import change_interval, change_text, interval_text, limit_lines, value_text
from ...training.resuming import stretches, words
from .plots import COLOURS, heldout_plots, main_plot, training_plots
from .record import (
    RUN_REPORT,
    AnswerGroup,
    AnswerRecord,
    RunRecord,
    choose,
    errors,
    quality,
    read_runs,
)

MOST_RUNS = COLOURS


def page_of(folders: Sequence[str]) -> str:
    """The report on runs, by their folders."""
    return page(read_runs(folders))


def page(runs: Sequence[RunRecord], rounds: Sequence[Mapping[str, str]] = ()) -> str:
    """One run, or several side by side.

    Args:
        runs: At least one, at most `MOST_RUNS`, with different names.
        rounds: Those of `rookworld evolve`, each in words by the heads of a table.
    """
    with_answers = [run for run in runs if run.answers]
    asked = {frozenset(pair.after["prompt"] for pair in run.answers) for run in with_answers}
    told = [run for run in runs if run.before]
    return render(
        "run_report.html",
        runs=runs,
        names=[run.name for run in runs],
        verdict=_verdict,
        numbers=_numbers,
        main_plot=main_plot(runs),
        errors=[(run.name, errors(run.answers)) for run in with_answers],
        **_setup(runs),
        told=told,
        same_rows=len(asked) < 2,
        metrics={
            metric: [run.rows[metric] for run in told if metric in run.rows]
            for metric in dict.fromkeys(metric for run in told for metric in run.before)
        },
        change_text=change_text,
        interval_text=interval_text,
        value_text=value_text,
        reach=sorted({line for run in told for line in limit_lines(run.results.get("limits", {}))}),
        heldout_plots=heldout_plots(runs),
        training_plots=[found for found in training_plots(runs) if found[0]],
        headline_metrics=list(headlines().values()),
        p_text=_p_text,
        quality=quality,
        quality_words={task.name: task.quality_words for task in TASKS.values()},
        boards=[(run.name, list(_boards(run, 3 if len(runs) == 1 else 1))) for run in with_answers],
        suites=[(run.name, table) for run in runs for table in _suites(run)],
        passes=[(run.name, table) for run in runs for table in _passes(run)],
        rounds=rounds,
    )


# --------------------------------------------------------------------------------------------------
# What was run, and how it went
# --------------------------------------------------------------------------------------------------
def _verdict(run: RunRecord) -> tuple[str, str]:
    """The colour of a run's line, ``warning``, ``tie`` or nothing for a gain; and how it went."""
    loud = [finding for finding in run.health or () if finding["severity"] != "info"]
    alarms = f" {len(loud)} health warning{'' if len(loud) == 1 else 's'}." if loud else ""
    if not run.finished:
        last = max((logs["step"] for logs in run.history), default=0)
        return "warning", f"did not finish; logged up to step {last}.{alarms}"
    metrics = [metric for metric in headlines().values() if metric in run.after]
    before, after = headline(run.before), headline(run.after)
    is_tie = all(metric in run.changes and run.changes[metric].is_tie for metric in metrics)
    what = f"{'the mean of ' if len(metrics) > 1 else ''}{' and '.join(metrics)}"
    went = "rose" if after > before else "fell" if after < before else "stayed"
    change = f"{what} {went} from {before:.1%} to {after:.1%} on held-out rows"
    if is_tie:
        change += ", which is a tie: chance alone may explain it"
    word = (
        "No clear change" if is_tie or after == before else "Better" if after > before else "Worse"
    )
    steps = run.results.get("steps")
    saved = f"The saved weights are those of step {run.best_step} of {steps}."
    if run.best_step is None:
        saved = f"It took {steps} steps."
    return (
        "warning" if loud or after < before else "tie" if is_tie else "",
        f"{word}: {change}. {saved}{alarms}",
    )


def _numbers(run: RunRecord) -> list[dict[str, str]]:
    """The large numbers: how each headline has changed, from what to what, and how sure that is."""
    found = []
    for metric in headlines().values():
        if metric in run.before and metric in run.after:
            old, new = run.before[metric], run.after[metric]
            sure = ""
            if pair := run.changes.get(metric):
                sure = f"{change_interval(pair)}, {_p_text(pair.p)}"
            found.append(
                {
                    "metric": metric,
                    "change": change_text(metric, new.value - old.value),
                    "values": f"{value_text(metric, old.value)} → {value_text(metric, new.value)}",
                    "sure": sure,
                }
            )
    return found


def _p_text(p: float) -> str:
    """A p-value for people.

    >>> _p_text(0.0312), _p_text(4.4e-100)
    ('p = 0.031', 'p < 0.001')
    """
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def _setup(runs: Sequence[RunRecord]) -> dict[str, Any]:
    facts = list(map(_provenance, runs))
    whole = [
        [name(key), *(words(run.config[key]) if key in run.config else "-" for run in runs)]
        for key in sorted({key for run in runs for key in run.config})
    ]
    setup = [[key, *(words(fact[key]) for fact in facts)] for key in facts[0]]
    differing = [row for row in whole if len(set(row[1:])) > 1]
    return {"setup": setup, "whole": whole, "differing": differing}


def _provenance(run: RunRecord) -> Mapping[str, Any]:
    """Facts of a run's last session, and the duration of all its sessions."""
    last = run.sessions[-1] if run.sessions else {}
    return {
        **{key: last.get(key) for key in read_asset(RUN_REPORT)["provenance"]},
        "seconds of each session": [session.get("seconds") for session in run.sessions],
        "changed when resumed": stretches(run.sessions),
    }


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def _boards(run: RunRecord, count: int) -> Iterator[tuple[AnswerGroup, list[Any]]]:
    """So many of a run's answers of each kind, each with a board that shows it beside the truth."""
    for choice in choose(run.answers, count):
        drawn = []
        for before, after in choice.pairs:
            sides = {"before": before, "after": after}
            if before["completion"] == after["completion"]:
                sides = {"before and after": after}
            boards = [((words, answer), _board(answer)) for words, answer in sides.items()]
            drawn.append((after["prompt"], boards))
        yield choice, drawn


def _board(answer: AnswerRecord) -> Markup:
    task = TASKS[answer["task"]]
    return Markup(task.board(answer, answer["completion"], answer["values"]))


# --------------------------------------------------------------------------------------------------
# Suites (``evaluation.json``) and pass@k
# --------------------------------------------------------------------------------------------------
def _suites(run: RunRecord) -> Iterator[dict[str, Any]]:
    """A table for each suite, with a column for each model and for its change from the first."""
    first = run.evaluation or {"suites": {}}
    for suite, result in first["suites"].items():
        heads, columns = ["metric"], list[Mapping[str, Any]]()
        for model in [first, *first.get("compared", ())]:
            if suite in model["suites"]:
                heads.append(model["model"])
                columns.append(model["suites"][suite]["metrics"])
            if changes := model.get("paired", {}).get(suite):
                heads.append("change")
                columns.append(changes)
        yield {
            "caption": f"{suite}, version {result['version']}, {result['n']} rows, seed "
            f"{result['seed']}, {decoding_text(result['decoding'])}"
            + (f"; pass@k of {of}" if (of := result.get("notes", {}).get("pass_right")) else ""),
            "heads": heads,
            "columns": columns,
        }


def _passes(run: RunRecord) -> Iterator[dict[str, Any]]:
    """A table of pass@k for each task that was measured."""
    for task in TASKS.values():
        before, after = (run.right.get(when, {}).get(task.name) for when in ("before", "after"))
        if counts := after or before:
            sides = [found.estimates() if found else {} for found in (before, after)]
            changes = before.compare(after) if before and after else {}
            yield {
                "caption": f"{task.name}: {len(counts.right)} held-out rows, "
                f"{counts.samples} samples each, right by {task.right_by}",
                "heads": ["", "before", "after", "change"],
                "columns": [*sides, changes],
            }
