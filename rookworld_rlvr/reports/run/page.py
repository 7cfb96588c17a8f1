"""The report as one HTML page that asks for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...common.html import details, document, name, prose, table, text
from ...common.stats import Proportion
from ...tasks.metrics import HEADLINES, headline
from . import answers, suites
from .curves import heldout_plots, training_plots
from .plots import COLOURS, Dot, intervals
from .published import PUBLISHED, published
from .record import AnswerPair, RunRecord

MOST_RUNS = COLOURS


_BOARD_BYTES = 3_000_000  # of all the boards: with the plots the page stays under 5 MB


Section = Callable[[Sequence[RunRecord]], str]


def page(runs: Sequence[RunRecord]) -> str:
    """One run, or several side by side.

    Args:
        runs: At least one, at most `MOST_RUNS`, with names of their own.
    """
    title = "Report on " + ", ".join(run.name for run in runs)
    sections: Sequence[tuple[str, str, Section]] = (
        ("run", "What was run", _setup),
        ("heldout", "Before and after", _before_after),
        ("curves", "Held-out curves", _heldout_curves),
        ("training", "Training curves", _training_curves),
        ("boards", "Answers", _boards),
        ("health", "Health and preflight", _health),
        ("suites", "Evaluation suites", suites.section),
        ("missing", "What is missing", _missing),
    )
    filled = [(key, head, make(runs)) for key, head, make in sections]
    filled = [(key, head, content) for key, head, content in filled if content]
    links = " ".join(f'<a href="#{key}">{head}</a>' for key, head, _ in filled)
    body = "".join(
        f'<section id="{key}"><h2>{head}</h2>{content}</section>' for key, head, content in filled
    )
    return document(title, f"{_summary(runs)}<nav>{links}</nav><main>{body}</main>")


# --------------------------------------------------------------------------------------------------
# What was run
# --------------------------------------------------------------------------------------------------
def _summary(runs: Sequence[RunRecord]) -> str:
    lines = []
    for place, run in enumerate(runs):
        key = f'<i class="key s{place % COLOURS}"></i>' if len(runs) > 1 else ""
        lines.append(f"<p>{key}<b>{text(run.name)}</b>: {text(_sentence(run))}</p>")
    return f'<div class="verdict">{"".join(lines)}</div>'


def _headline_words(run: RunRecord) -> str:
    metrics = [metric for metric in HEADLINES.values() if metric in run.after]
    return f"{'mean of ' if len(metrics) > 1 else ''}{' and '.join(metrics)}"


def _sentence(run: RunRecord) -> str:
    """How a run went, in one line."""
    loud = [f for f in run.health or () if f["severity"] != "info"]
    alarms = f"; {len(loud)} health warning{'' if len(loud) == 1 else 's'}" if loud else ""
    if not run.finished:
        last = max((logs["step"] for logs in run.history), default=0)
        return f"did not come to its end, logged up to step {last}{alarms}."
    before, after = headline(run.before), headline(run.after)
    best, steps = run.results.get("best_step"), run.results.get("steps")
    model = f"checkpoint of step {best} of {steps}" if best else f"{steps} steps"
    return (
        f"held out, {_headline_words(run)}: "
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


def _setup(runs: Sequence[RunRecord]) -> str:
    rows = [(name(key), *(_config(run, key) for run in runs)) for key in _CONFIGURED]
    rows += [(what, *(text(tell(run)) for run in runs)) for what, tell in _PROVENANCE.items()]
    heads = [run.name for run in runs]
    keys = sorted({key for run in runs for key in run.config})
    whole = [(name(key), *(_config(run, key) for run in runs)) for key in keys]
    other = [row for row in whole if len(set(row[1:])) > 1]
    found = table(rows, ("", *heads), "Configuration, data and machine")
    if other:
        found += table(other, ("key", *heads), "Keys that differ between the runs")
    return found + details("The whole configuration", table(whole, ("key", *heads)))


def _config(run: RunRecord, key: str) -> str:
    value = run.config.get(key)
    if key == "rewards" and isinstance(value, list):
        return "<br>".join(text(_reward(reward)) for reward in value)
    if isinstance(value, list):
        return text(", ".join(map(str, value)))
    return "-" if value is None else text(value)


def _reward(reward: Mapping[str, Any]) -> str:
    options = {key: value for key, value in reward.items() if key not in ("name", "weight")}
    words = "".join(f", {key} {value}" for key, value in options.items())
    return f"{reward['name']} x {reward.get('weight', 1)}{words}"


def _last(run: RunRecord, key: str) -> Any:
    return run.sessions[-1].get(key) if run.sessions else None


def _told(key: str) -> Callable[[RunRecord], str]:
    return lambda run: "-" if _last(run, key) is None else str(_last(run, key))


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
    versions = _last(run, "versions")
    if versions is None:
        return "-"
    return ", ".join(f"{package} {version}" for package, version in versions.items())


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


def _parameters(run: RunRecord) -> str:
    count = _last(run, "parameters")
    return "-" if count is None else f"{count:,}"


_PROVENANCE: Mapping[str, Callable[[RunRecord], str]] = {
    "parameters": _parameters,
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
def _before_after(runs: Sequence[RunRecord]) -> str:
    told = [run for run in runs if run.before]
    if not told:
        return ""
    metrics = list(dict.fromkeys(metric for run in told for metric in run.before))
    if len(told) == 1:
        heads = ["metric", "before", "after", "change"]
        rows = [[_metric(metric, told), *_outcome(metric, told[0])] for metric in metrics]
    else:
        heads = ["metric", *(run.name for run in told)]
        rows = [
            [_metric(metric, told), *("<br>".join(_outcome(metric, run)) for run in told)]
            for metric in metrics
        ]
    rows = [
        [*row, published(f"heldout:{metric}")] for row, metric in zip(rows, metrics, strict=True)
    ]
    words = "" if len(told) == 1 else "before, after, change; "
    caption = (
        f"Greedy, one completion a held-out row: {words}95% Wilson intervals, change in points"
    )
    dots = [
        (metric, [dot for run in told for dot in _dots(metric, run, runs)]) for metric in metrics
    ]
    return (
        f'<div class="beside">{table(rows, [*heads, "published"], caption)}'
        f"{intervals('Held-out shares: ring before, dot after', dots)}</div>{_sources(metrics)}"
    )


def _metric(metric: str, runs: Sequence[RunRecord]) -> str:
    counts = sorted({run.rows[metric] for run in runs if metric in run.rows})
    return f"{name(metric)}<br><small>{' or '.join(map(str, counts))} rows</small>"


def _outcome(metric: str, run: RunRecord) -> tuple[str, str, str]:
    old, new = run.before.get(metric), run.after.get(metric)
    if old is None or new is None:
        return share(old), share(new), "-"
    return share(old), share(new), f"{100 * (new.value - old.value):+.1f}"


def share(result: Proportion | None) -> str:
    """A share with its interval, as HTML; a dash where there is none."""
    if result is None:
        return "-"
    low, high = result.interval
    return f"<b>{result.value:.1%}</b> <small>[{100 * low:.1f}, {100 * high:.1f}]</small>"


def _dots(metric: str, run: RunRecord, runs: Sequence[RunRecord]) -> list[Dot]:
    colour = list(runs).index(run) % COLOURS
    return [
        Dot(run.name, result.value, *result.interval, colour, hollow=words == "before")
        for words, results in (("before", run.before), ("after", run.after))
        if (result := results.get(metric)) is not None
    ]


def _sources(metrics: Sequence[str]) -> str:
    """What the published numbers are, and why the others are not beside ours."""
    held = {f"heldout:{metric}" for metric in metrics}
    agreeing = [number for number in PUBLISHED if held & {*number.metrics}]
    others = [number for number in PUBLISHED if not number.metrics or number.needs]
    lists = "".join(
        f"<h3>{head}</h3><ul>"
        + "".join(
            f"<li>{text(n.name)} {n.words}, {text(n.source[0])} "
            f"(<code>{text(n.source[1])}</code>): {prose(n.remark)}</li>"
            for n in numbers
        )
        + "</ul>"
        for head, numbers in (("Same definition", agreeing), ("Not compared", others))
        if numbers
    )
    note = "Published numbers are of RookWorld-LM with 124M parameters and of others' rows."
    return (
        f'<p class="note">{note}</p>{details("Which numbers are compared, and which not", lists)}'
    )


# --------------------------------------------------------------------------------------------------
# Curves
# --------------------------------------------------------------------------------------------------
def _heldout_curves(runs: Sequence[RunRecord]) -> str:
    drawn = heldout_plots(runs)
    note = "Shares of held-out rows at each evaluation, with 95% Wilson intervals."
    return f'<p class="note">{note}</p><div class="grid-of-plots">{drawn}</div>' if drawn else ""


def _training_curves(runs: Sequence[RunRecord]) -> str:
    drawn = training_plots(runs)
    return f'<div class="grid-of-plots">{drawn}</div>' if any(run.history for run in runs) else ""


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def _boards(runs: Sequence[RunRecord]) -> str:
    told = [run for run in runs if run.answers]
    if not told:
        return ""
    words = "; ".join(f"{task}: {what}" for task, what in answers.QUALITY.items())
    note = (
        f"Held-out rows before and after training, ordered by {words}. Blue is the model's, green the "
        "truth, red a wrong square, dashes an illegal move. The best and the worst are those after "
        "training; of equal ones, the first."
    )
    columns = "".join(_run_boards(run, len(told)) for run in told)
    return f'<p class="note">{note}</p><div class="columns">{columns}</div>'


def _run_boards(run: RunRecord, runs: int) -> str:
    """A run's answers; the last ones go without a board once its part of the page is full."""
    left = _BOARD_BYTES // runs
    found = f"<h3>{text(run.name)}</h3>" if runs > 1 else ""
    for choice in answers.choose(run.answers, 3 if runs == 1 else 2 if runs < 4 else 1):
        drawn = ""
        for pair in choice.pairs:
            one = _pair(pair, with_boards=left > 0)
            left -= len(one)
            drawn += one
        found += f'<h3>{choice.task}: {choice.title}</h3><div class="{choice.task}">{drawn}</div>'
    return f"<div>{found}</div>"


def _pair(pair: AnswerPair, with_boards: bool) -> str:
    sides = ""
    shown = [("before", pair.before), ("after", pair.after)]
    if pair.before["completion"] == pair.after["completion"]:
        shown = [("before and after", pair.after)]
    for words, answer in shown:
        drawn = answers.board(answer) if with_boards else ""
        sides += (
            f'<figure class="board">{drawn}<figcaption>{words}: {answers.quality(answer):.2f} '
            f"<code>{text(answer['completion'])}</code></figcaption></figure>"
        )
    prompt = f"<p><code>{text(pair.after['prompt'])}</code></p>"
    return f'<article class="pair">{prompt}<div>{sides}</div></article>'


# --------------------------------------------------------------------------------------------------
# Health
# --------------------------------------------------------------------------------------------------
def _health(runs: Sequence[RunRecord]) -> str:
    return f'<div class="columns">{"".join(map(_run_health, runs))}</div>'


def _run_health(run: RunRecord) -> str:
    gaps = run.results.get("preflight") or _logged_preflight(run)
    preflight = table(
        [(name(gap), f"{value:.2g}") for gap, value in gaps.items()],
        ("preflight", "nats"),
        "Before the first update",
    )
    none = '<p class="note">The preflight did not run, or is not in the log.</p>'
    findings = _findings(run)
    return f"<div><h3>{text(run.name)}</h3>{findings}{preflight if gaps else none}</div>"


def _logged_preflight(run: RunRecord) -> dict[str, float]:
    return {
        metric.removeprefix("preflight/"): value
        for logs in run.history
        for metric, value in logs.items()
        if metric.startswith("preflight/")
    }


def _findings(run: RunRecord) -> str:
    if run.health is None:
        return '<p class="note">The run was not watched.</p>'
    if not run.health:
        return '<p class="note">No health rule spoke.</p>'
    rows = [
        (
            str(finding["step"]),
            f'<b class="{text(finding["severity"])}">{text(finding["severity"])}</b>',
            name(finding["rule"]),
            prose(finding["message"]),
        )
        for finding in run.health
    ]
    return table(rows, ("step", "severity", "rule", "message"), "Health log")


# --------------------------------------------------------------------------------------------------
# What is missing
# --------------------------------------------------------------------------------------------------
def _missing(runs: Sequence[RunRecord]) -> str:
    told = [run for run in runs if run.missing]
    return "".join(
        f"<h3>{text(run.name)}</h3><ul>{''.join(f'<li>{text(line)}</li>' for line in run.missing)}</ul>"
        for run in told
    )
