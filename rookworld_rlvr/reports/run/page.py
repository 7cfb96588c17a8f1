"""The report as one HTML page that asks for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...common.html import name, prose, render
from ...common.stats import Proportion
from ...tasks.metrics import headline, headlines
from ...tasks.registry import TASKS
from . import answers, suites
from .curves import heldout_plots, training_plots
from .plots import COLOURS, Dot, intervals
from .published import PUBLISHED, published
from .record import Answer, RunRecord

MOST_RUNS = COLOURS


_BOARD_BYTES = 3_000_000  # of all the boards: with the plots the page stays under 5 MB


Row = Sequence[str]  # cells; what is no `Markup` is text


def page(runs: Sequence[RunRecord]) -> str:
    """One run, or several side by side.

    Args:
        runs: At least one, at most `MOST_RUNS`, with names of their own.
    """
    with_answers = [run for run in runs if run.answers]
    return render(
        "run_report.html",
        runs=runs,
        names=[run.name for run in runs],
        sentence=_sentence,
        **_setup(runs),
        **_before_after(runs),
        heldout_plots=heldout_plots(runs),
        training_plots=list(training_plots(runs)) if any(run.history for run in runs) else [],
        quality=answers.quality,
        qualities={name: task.quality_words for name, task in TASKS.items()},
        boards=[(run.name, list(_boards(run, len(with_answers)))) for run in with_answers],
        preflight=_preflight,
        findings=_findings,
        suites=suites.section(runs),
    )


# --------------------------------------------------------------------------------------------------
# What was run
# --------------------------------------------------------------------------------------------------
def _sentence(run: RunRecord) -> str:
    """How a run went, in one line."""
    loud = [f for f in run.health or () if f["severity"] != "info"]
    alarms = f"; {len(loud)} health warning{'' if len(loud) == 1 else 's'}" if loud else ""
    if not run.finished:
        last = max((logs["step"] for logs in run.history), default=0)
        return f"did not come to its end, logged up to step {last}{alarms}."
    metrics = [metric for metric in headlines().values() if metric in run.after]
    before, after = headline(run.before), headline(run.after)
    best, steps = run.results.get("best_step"), run.results.get("steps")
    model = f"checkpoint of step {best} of {steps}" if best else f"{steps} steps"
    return (
        f"held out, {'mean of ' if len(metrics) > 1 else ''}{' and '.join(metrics)}: "
        f"{before:.1%} before, {after:.1%} after ({100 * (after - before):+.1f} points); "
        f"{model}{alarms}."
    )


_CONFIGURED = (
    "model_name_or_path",
    "dataset_name",
    "synthetic_rows",
    "tasks",
    "rewards",
    "seed",
    "max_steps",
    "learning_rate",
    "beta",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "temperature",
    "loss_type",
    "use_peft",
    "labels",
)


def _setup(runs: Sequence[RunRecord]) -> dict[str, Sequence[Row]]:
    def of(key: str) -> Row:
        return [name(key), *(_config(run, key) for run in runs)]

    whole = [of(key) for key in sorted({key for run in runs for key in run.config})]
    told = [[what, *map(tell, runs)] for what, tell in _PROVENANCE.items()]
    return {
        "setup": [*map(of, _CONFIGURED), *told],
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


def _last(run: RunRecord, key: str) -> Any:
    return run.sessions[-1].get(key) if run.sessions else None


def _told(key: str, form: str = "") -> Callable[[RunRecord], str]:
    return lambda run: "-" if (found := _last(run, key)) is None else format(found, form)


def _data(run: RunRecord) -> str:
    data = _last(run, "data")
    if data is None:
        return "-"
    kinds = (("train", "for training"), ("heldout", "held out"))
    parts = [
        f"{' + '.join(f'{n:,} {task}' for task, n in data[key].items())} {words}"
        for key, words in kinds
    ]
    quarantined = sum(data["quarantined"].values())
    parts += [f"{quarantined:,} quarantined", f"{data['duplicates']:,} duplicates dropped"]
    return "; ".join([*parts, f"{data['overlap']} positions in both splits"])


def _engine(run: RunRecord) -> str:
    engine, data = _last(run, "engine"), _last(run, "data")
    if engine is not None:
        return f"asked in training: {engine['engine']}, {engine['limit']}"
    return (data or {}).get("values") or "-"


def _versions(run: RunRecord) -> str:
    versions = _last(run, "versions") or {}
    return ", ".join(f"{package} {version}" for package, version in versions.items()) or "-"


def _machine(run: RunRecord) -> str:
    if not run.sessions:
        return "-"
    devices = ", ".join(_last(run, "devices")) or "no GPU"
    return (
        f"{_last(run, 'processes')} process(es), {_last(run, 'cores')} CPU cores, "
        f"{_last(run, 'threads')} threads, {devices}; {_last(run, 'platform')}"
    )


def _duration(run: RunRecord) -> str:
    """Of all sessions; one that was killed has none."""
    known = [session["seconds"] for session in run.sessions if "seconds" in session]
    if not known:
        return "-"
    killed = len(run.sessions) - len(known)
    more = f", and {killed} session(s) that did not come to their end" if killed else ""
    minutes, seconds = divmod(round(sum(known)), 60)
    return f"{minutes} min {seconds} s{more}"


_PROVENANCE: Mapping[str, Callable[[RunRecord], str]] = {
    "parameters": _told("parameters", ","),
    "rows": _data,
    "values of moves": _engine,
    "command": _told("command"),
    "started": _told("started"),
    "duration": _duration,
    "resumed from": _told("resumed_from"),
    "machine": _machine,
    "Python": _told("python"),
    "versions": _versions,
    "commit": _told("commit"),
}


# --------------------------------------------------------------------------------------------------
# Held-out results
# --------------------------------------------------------------------------------------------------
def _before_after(runs: Sequence[RunRecord]) -> dict[str, Any]:
    told = [run for run in runs if run.before]
    metrics = list(dict.fromkeys(metric for run in told for metric in run.before))
    dots = [
        (metric, [dot for run in told for dot in _dots(metric, run, runs)]) for metric in metrics
    ]
    held = {f"heldout:{metric}" for metric in metrics}
    return {
        "told": [run.name for run in told],
        "outcomes": [_outcomes(metric, told) for metric in metrics],
        "dots": intervals("Held-out shares: ring before, dot after", dots),
        "agreeing": [number for number in PUBLISHED if held & {*number.metrics}],
        "others": [number for number in PUBLISHED if not number.metrics or number.needs],
    }


def _outcomes(metric: str, told: Sequence[RunRecord]) -> Row:
    """A metric's row: before, after and change, which several runs have in one cell each."""
    counts = sorted({run.rows[metric] for run in told if metric in run.rows})
    head = Markup("{}<br><small>{} rows</small>").format(
        name(metric), " or ".join(map(str, counts))
    )
    cells: Sequence[str] = [Markup("<br>").join(_outcome(metric, run)) for run in told]
    if len(told) == 1:
        cells = _outcome(metric, told[0])
    return [head, *cells, published(f"heldout:{metric}")]


def _outcome(metric: str, run: RunRecord) -> Row:
    old, new = run.before.get(metric), run.after.get(metric)
    if old is None or new is None:
        return share(old), share(new), "-"
    return share(old), share(new), f"{100 * (new.value - old.value):+.1f}"


def share(result: Proportion | None) -> Markup:
    """A share with its interval; a dash where there is none."""
    if result is None:
        return Markup("-")
    low, high = result.interval
    return Markup(f"<b>{result.value:.1%}</b> <small>[{100 * low:.1f}, {100 * high:.1f}]</small>")


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
def _preflight(run: RunRecord) -> list[Row]:
    """The gaps of a run's preflight, from its log where it did not come to its end."""
    logged = {
        metric.removeprefix("preflight/"): value
        for logs in run.history
        for metric, value in logs.items()
        if metric.startswith("preflight/")
    }
    gaps = run.results.get("preflight") or logged
    return [(name(gap), f"{value:.2g}") for gap, value in gaps.items()]


def _findings(run: RunRecord) -> list[Row]:
    severity = Markup('<b class="{0}">{0}</b>')
    return [
        (str(f["step"]), severity.format(f["severity"]), name(f["rule"]), prose(f["message"]))
        for f in run.health or ()
    ]
