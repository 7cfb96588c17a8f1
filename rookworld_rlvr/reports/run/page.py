"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.files import read_asset
from ...common.html import name, render
from ...common.stats import Proportion, newcombe
from ...evaluation.results import WHOSE, goal_rows
from ...tasks.metrics import headline, headlines
from ...tasks.registry import TASKS
from ...training.changes import stretches
from ...training.results import OWN_REWARDS, change_text, interval_text, kl_words
from . import answers, passes, suites
from .curves import heldout_plots, training_plots
from .plots import COLOURS, Dot, intervals
from .published import PUBLISHED, published
from .record import Answer, RunRecord

MOST_RUNS = COLOURS


_BOARD_BYTES = 3_000_000  # of all the boards: with the plots the page stays under 5 MB


Row = Sequence[str]  # cells: plain text, or HTML as `Markup`


def page(runs: Sequence[RunRecord]) -> str:
    """One run, or several side by side.

    Args:
        runs: At least one, at most `MOST_RUNS`, with different names.
    """
    with_answers = [run for run in runs if run.answers]
    changes = {run.name: answers.changes(run.answers) for run in with_answers}
    return render(
        "run_report.html",
        runs=runs,
        names=[run.name for run in runs],
        sentence=lambda run: _sentence(run, changes.get(run.name, {})),
        tone=lambda run: _tone(run, changes.get(run.name, {})),
        paired=[(run.name, _paired(changes[run.name])) for run in with_answers],
        changes=changes,
        probability=_probability,
        errors=[(run.name, answers.errors(run.answers)) for run in with_answers],
        **_setup(runs),
        **_before_after(runs),
        heldout_plots=heldout_plots(runs),
        training_plots=list(training_plots(runs)) if any(run.history for run in runs) else [],
        quality=answers.quality,
        qualities={
            name: task.quality_words
            for name, task in TASKS.items()
            if any(pair.after["task"] == name for run in runs for pair in run.answers)
        },
        boards=[(run.name, list(_boards(run, len(with_answers)))) for run in with_answers],
        gaps=_gaps,
        suites=suites.section(runs),
        passes=passes.section(runs),
    )


# --------------------------------------------------------------------------------------------------
# What was run
# --------------------------------------------------------------------------------------------------
def _is_tie(run: RunRecord, changes: Mapping[str, answers.Change]) -> bool:
    """Whether no headline has changed by more than chance may explain."""
    for metric in headlines().values():
        if metric in changes:
            is_clear = changes[metric].p < 0.05
        elif metric in run.before and metric in run.after:
            low, high = newcombe(run.before[metric], run.after[metric])
            is_clear = low > 0 or high < 0
        else:
            continue
        if is_clear:
            return False
    return True


def _sentence(run: RunRecord, changes: Mapping[str, answers.Change]) -> str:
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


def _tone(run: RunRecord, changes: Mapping[str, answers.Change]) -> str:
    """The colour of the line: ``stop``, ``warning``, ``tie``, or nothing for a gain."""
    severities = {finding["severity"] for finding in run.health or ()}
    if "stop" in severities:
        return "stop"
    fell = run.finished and headline(run.after) < headline(run.before)
    if "warning" in severities or fell or not run.finished:
        return "warning"
    return "tie" if _is_tie(run, changes) else ""


def _paired(changes: Mapping[str, answers.Change]) -> str:
    """What the exact test says of the headlines, in one line."""
    return "; ".join(
        f"{metric} {change.gained} gained, {change.lost} lost ({_probability(change.p)})"
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
    def of(key: str) -> Row:
        return [name(key), *(_config(run, key) for run in runs)]

    shown = read_asset("run_report.yaml")
    sessions = list(map(_provenance, runs))
    told = [[key, *(session.get(key, "-") for session in sessions)] for key in shown["provenance"]]
    whole = [of(key) for key in sorted({key for run in runs for key in run.config})]
    return {
        "setup": [*map(of, shown["configured"]), *told],
        "whole": whole,
        "differing": [row for row in whole if len(set(row[1:])) > 1],
    }


def _config(run: RunRecord, key: str) -> str:
    value = run.config.get(key)
    if key == "rewards" and isinstance(value, list):
        return Markup("<br>").join(map(_reward, value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


def _reward(reward: Mapping[str, Any]) -> str:
    options = {key: value for key, value in reward.items() if key not in ("name", "weight")}
    words = "".join(f", {key} {value}" for key, value in options.items())
    return f"{reward['name']} x {reward.get('weight', 1)}{words}"


def _provenance(run: RunRecord) -> Mapping[str, str]:
    """Facts of a run's last session, and the duration of all its sessions."""
    if not run.sessions:
        return {}
    session = run.sessions[-1]
    data, engine = session["data"], session.get("engine")
    train, heldout = (
        " + ".join(f"{n:,} {task}" for task, n in data[split].items())
        for split in ("train", "heldout")
    )
    parameters, devices = session.get("parameters"), ", ".join(session["devices"])
    return {
        "parameters": "-" if parameters is None else f"{parameters:,}",
        "rows": f"{train} for training; {heldout} held out; "
        f"{sum(data['quarantined'].values()):,} quarantined; "
        f"{sum(data.get('unjudgeable', {}).values()):,} not judgeable; "
        f"{data['duplicates']:,} duplicates dropped; {data['overlap']} positions in both splits",
        "values of moves": f"asked in training: {engine['engine']}, {engine['limit']}"
        if engine
        else data.get("values") or "-",
        "command": session["command"],
        "started": session["started"],
        "duration": _duration(run.sessions),
        "resumed from": session["resumed_from"] or "-",
        "changed when resumed": Markup("<br>").join(stretches(run.sessions)) or "-",
        "machine": f"{session['processes']} process(es), {session['cores']} CPU cores, "
        f"{session['threads']} threads, {devices or 'no GPU'}; {session['platform']}",
        "Python": session["python"],
        "versions": ", ".join(map(" ".join, session["versions"].items())),
        "commit": session["commit"] or "-",
    }


def _duration(sessions: Sequence[Mapping[str, Any]]) -> str:
    """The duration of all sessions; it is not known of one that was killed."""
    known = [session["seconds"] for session in sessions if "seconds" in session]
    if not known:
        return "-"
    killed = len(sessions) - len(known)
    more = f", and {killed} session(s) that did not finish" if killed else ""
    minutes, seconds = divmod(round(sum(known)), 60)
    return f"{minutes} min {seconds} s{more}"


# --------------------------------------------------------------------------------------------------
# Held-out results
# --------------------------------------------------------------------------------------------------
def _before_after(runs: Sequence[RunRecord]) -> dict[str, Any]:
    told = [run for run in runs if run.before]
    metrics = list(dict.fromkeys(metric for run in told for metric in run.before))
    dots = [
        (metric, [dot for run in told for dot in _dots(metric, run, runs)])
        for metric in metrics
        if not metric.startswith(OWN_REWARDS)
    ]
    held = {f"heldout:{metric}" for metric in metrics}
    return {
        "told": told,
        "metrics": {m: [run.rows[m] for run in told if m in run.rows] for m in metrics},
        "published": published,
        "change_text": change_text,
        "interval_text": interval_text,
        "kl_words": kl_words,
        "goals": goal_rows(
            "heldout",
            [
                {
                    m: found.estimate
                    for m, found in run.after.items()
                    if isinstance(found, Proportion)
                }
                for run in told
            ],
        ),
        "whose": WHOSE,
        "dots": intervals("Held-out shares: ring before, dot after", dots),
        "agreeing": [number for number in PUBLISHED if held & {*number.metrics}],
        "others": [number for number in PUBLISHED if not number.metrics],
    }


def _dots(metric: str, run: RunRecord, runs: Sequence[RunRecord]) -> list[Dot]:
    return [
        Dot(run.name, result.value, *result.interval, runs.index(run), hollow=words == "before")
        for words, results in (("before", run.before), ("after", run.after))
        if (result := results.get(metric)) is not None
    ]


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def _boards(run: RunRecord, runs: int) -> Iterator[tuple[answers.Choice, list[Any]]]:
    """A run's answers; the last ones go without a board once its part of the page is full."""
    left = _BOARD_BYTES // runs
    for choice in answers.choose(run.answers, 3 if runs == 1 else 2 if runs < 4 else 1):
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
