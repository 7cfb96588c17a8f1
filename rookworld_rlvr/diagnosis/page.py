"""A diagnosis as one page that asks for nothing: plots and boards inside, readable on a phone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chess
import chess.svg

from .run import PARTS, Diagnosis
from .summary import LINES, completion_numbers, megabytes, number

Part = Mapping[str, Any]

GROUPS_SHOWN = 12  # with boards; the JSON file holds all
BOARD_SIZE = 200  # pixels


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The page: one diagnosis in full width, two side by side where there is room."""
    title = "Diagnosis of " + " and ".join(diagnosis.recipe for diagnosis in diagnoses)
    heads = "".join(
        f"<div><h2>{_text(d.recipe)}</h2>{_verdict(d.parts['findings'])}</div>" for d in diagnoses
    )
    sections = "".join(
        f'<section id="{key}"><h2>{place}. {title_of}</h2>'
        f'<div class="columns">{"".join(f"<div>{_part(key, d)}</div>" for d in diagnoses)}</div>'
        "</section>"
        for place, (key, title_of) in enumerate(PARTS.items(), 1)
    )
    costs = "".join(f"<div>{_phases(d.phases)}{_repetitions(d)}</div>" for d in diagnoses)
    links = " ".join(
        f'<a href="#{key}">{place}. {name}</a>'
        for place, (key, name) in enumerate(PARTS.items(), 1)
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{_text(title)}</h1>"
        f'<div class="columns">{heads}</div><nav>{links} <a href="#costs">Cost</a></nav>{sections}'
        f'<section id="costs"><h2>Cost of the phases</h2><div class="columns">{costs}</div>'
        "</section></body></html>\n"
    )


def _text(value: Any) -> str:
    return html.escape(str(value))


def _verdict(part: Part) -> str:
    worst = next((f["severity"] for f in part["findings"] if f["severity"] != "info"), "good")
    return f'<p class="verdict {worst}">{_text(part["verdict"])}</p>'


def _part(key: str, diagnosis: Diagnosis) -> str:
    part = diagnosis.parts[key]
    if key == "findings":
        return _findings(part)
    details = {
        "setup": _overrides,
        "completions": _groups,
        "rewards": _rewards,
        "advantages": _advantages,
        "loss_terms": _prompts,
        "shares": _shares,
        "gradients": _layers,
    }
    lines = _table([(_text(a), _text(b)) for a, b in LINES[key](part)], ())
    extra = details[key](part) if key in details else ""
    if key == "heldout_after":
        extra = _heldout(diagnosis.parts["heldout_before"], part)
    return lines + extra


def _table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if heads else ""}{body}</table></div>'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{_text(summary)}</summary>{content}</details>"


# --------------------------------------------------------------------------------------------------
# Plots
# --------------------------------------------------------------------------------------------------
def bars(rows: Sequence[tuple[str, float | None, str]], kind: str = "") -> str:
    """Horizontal bars: label, value from 0 up, and its text; the largest is as wide as there is room."""
    largest = max((value or 0.0 for _, value, _ in rows), default=0.0) or 1.0
    return '<div class="bars">' + "".join(
        f"<span>{_text(label)}</span>"
        f'<span class="track"><i class="{kind}" style="width:{_percent((value or 0) / largest)}"></i>'
        f"</span><span>{_text(text)}</span>"
        for label, value, text in rows
    ) + "</div>"  # fmt: skip


def _percent(part: float) -> str:
    return f"{100 * min(1.0, max(0.0, part)):.2f}%"


def histogram(values: Sequence[float], title: str, bins: int = 24) -> str:
    """How often values of a range occur."""
    if not values:
        return ""
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    top = max(counts)
    columns = "".join(
        f'<rect x="{10 * place + 1}" y="{60 - 56 * count / top:.1f}" width="8" '
        f'height="{56 * count / top:.1f}"><title>{low + place * width:.3g}: {count}</title></rect>'
        for place, count in enumerate(counts)
    )
    return (
        f'<figure><svg viewBox="0 0 {10 * bins} 60" role="img" aria-label="{_text(title)}">{columns}'
        f"</svg><figcaption>{_text(title)}: {low:.3g} to {high:.3g}</figcaption></figure>"
    )


def curve(values: Sequence[float | None], title: str) -> str:
    """A line over steps; steps without a value are passed over."""
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(points) < 2:
        return ""
    low, high = min(v for _, v in points), max(v for _, v in points)
    span, last = high - low or 1.0, max(1, len(values) - 1)
    path = " ".join(f"{240 * x / last:.1f},{56 - 52 * (v - low) / span:.1f}" for x, v in points)
    return (
        f'<figure><svg viewBox="0 0 240 60" role="img" aria-label="{_text(title)}">'
        f'<polyline points="{path}"/></svg><figcaption>{_text(title)}: first {points[0][1]:.4g}, last '
        f"{points[-1][1]:.4g}, {low:.4g} to {high:.4g}</figcaption></figure>"
    )


# --------------------------------------------------------------------------------------------------
# Parts
# --------------------------------------------------------------------------------------------------
def _overrides(part: Part) -> str:
    rows = [[_text(o[name]) for name in ("key", "value", "why")] for o in part.get("overrides", ())]
    return _details("Set by the diagnosis", _table(rows, ("key", "value", "why"))) if rows else ""


def _heldout(before: Part, after: Part) -> str:
    rows = []
    for name, metric in after["metrics"].items():
        old = before["metrics"][name]["value"]
        for words, value in (("before", old), ("after", metric["value"])):
            rows.append((f"{name}, {words}", value, number(value, ".1%")))
    return bars([*rows, ("all", 1.0, "100%")])


def _groups(part: Part) -> str:
    shown = part["groups"][:GROUPS_SHOWN]
    note = f"{len(shown)} of {len(part['groups'])} prompts; the JSON file holds all."
    return f"<p>{note}</p>" + "".join(map(_group, shown))


def _group(group: Part) -> str:
    rows = [
        (
            f"<code>{_text(c['text'])}</code>",
            *completion_numbers(c),
        )
        for c in group["completions"]
    ]
    heads = ("completion", "reward", "advantage", "sampler", "policy", "reference")
    table = _table(rows, (*heads, "gap to sampler", "gap to reference"))
    tokens = "".join(_tokens(completion) for completion in _extremes(group["completions"]))
    return (
        f'<article>{_board(group)}<div class="grow"><h3>{_text(group["task"])}: '
        f"<code>{_text(group['prompt'])}</code></h3>{table}"
        f"{_details('Token by token: the best and the worst', tokens)}</div></article>"
    )


def _extremes(completions: Sequence[Part]) -> list[Part]:
    ordered = sorted(completions, key=lambda c: -1e9 if c["reward"] is None else c["reward"])
    return [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered


def _board(group: Part) -> str:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        board = chess.Board(group["fen"])
        arrows = []
        if group["action"]:
            move = chess.Move.from_uci(group["action"])
            arrows = [chess.svg.Arrow(move.from_square, move.to_square)]
    except (TypeError, ValueError):
        return ""
    drawn = chess.svg.board(
        board, size=BOARD_SIZE, arrows=arrows, orientation=board.turn, coordinates=False
    )
    return f'<div class="board">{drawn}</div>'


def _tokens(completion: Part) -> str:
    """A completion's tokens, coloured by the policy's term: green pulls up, red pushes down."""
    terms = completion["policy_term"] or []
    largest = max((abs(t) for t in terms if t is not None), default=0.0) or 1.0
    spans = []
    for place, token in enumerate(completion["tokens"]):
        columns = {
            name: completion[name][place] if completion[name] else None
            for name in ("sampler", "policy", "reference", "policy_term", "kl_term")
        }
        term = columns["policy_term"] or 0.0
        colour = "var(--up)" if term < 0 else "var(--down)"
        weight = int(60 * abs(term) / largest)
        notes = ", ".join(f"{name} {number(value, '.3f')}" for name, value in columns.items())
        spans.append(
            f'<span title="{_text(notes)}" style="background:color-mix(in srgb,{colour} {weight}%,'
            f'transparent)">{_text(token)}<sub>{number(columns["policy"], ".2f")}</sub></span>'
        )
    head = f"reward {number(completion['reward'])}, advantage {number(completion['advantage'], '+.2f')}"
    return f'<p class="tokens"><b>{head}</b><br>{"".join(spans)}</p>'


def _rewards(part: Part) -> str:
    rows = [
        (name, c["mean"], f"{number(c['mean'])} ± {number(c['deviation'])}")
        for name, c in part["components"].items()
    ]
    return bars(rows)


def _advantages(part: Part) -> str:
    groups = part["groups"]
    flat = [a for group in groups for a in group["advantages"] if a is not None]
    rewards = [r for group in groups for r in group["rewards"] if r is not None]
    rows = [
        (
            f"{g['group']} {_text(g['task'])}",
            number(g["mean"]),
            number(g["deviation"]),
            " ".join(number(r, ".2f") for r in g["rewards"]),
            " ".join(number(a, "+.2f") for a in g["advantages"]),
        )
        for g in groups
    ]
    table = _table(rows, ("group", "mean", "deviation", "rewards", "advantages"))
    plots = histogram(rewards, "rewards") + histogram(flat, "advantages")
    return f'<div class="plots">{plots}</div>{_details("Group by group", table)}'


def _prompts(part: Part) -> str:
    rows = [
        (str(p["group"]), _text(p["task"]), number(p["policy"], "+.4f"), number(p["kl"], "+.4f"))
        for p in part["prompts"]
    ]
    heads = ("prompt", "task", "policy gradient a token", "KL a token")
    return _details("Prompt by prompt", _table(rows, heads))


def _shares(part: Part) -> str:
    found = ""
    for key, words in (("step", "in the step"), ("one_step_on", "one step on")):
        shares = part[key]
        if shares is None:
            continue
        for name, value in (
            ("loss, before the ratio's clip", shares["kl_share_unclipped"]),
            ("loss, after it", shares["kl_share"]),
            ("gradient", shares["kl_share_of_gradient"]),
        ):
            kl = value or 0.0
            found += (
                f"<p>{words}, {name}: policy gradient {1 - kl:.1%}, KL {kl:.1%}"
                f'<span class="track"><i style="width:{_percent(1 - kl)}"></i></span></p>'
                if value is not None
                else ""
            )
    return found


def _layers(part: Part) -> str:
    layers = part["layers"]
    gradients = [
        (x["layer"], x["gradient_norm"], number(x["gradient_norm"]) + _flags(x)) for x in layers
    ]
    updates = [
        (x["layer"], x["update_to_weight"], number(x["update_to_weight"], ".1e")) for x in layers
    ]
    return (
        f"<h3>Gradient norm</h3>{bars(gradients)}<h3>Update / weight</h3>{bars(updates, 'other')}"
    )


def _flags(layer: Part) -> str:
    flags = (
        (" frozen", layer["frozen_parameters"]),
        (" zero", layer["zero"]),
        (" not finite", layer["non_finite"]),
    )
    return "".join(name for name, is_so in flags if is_so)


def _findings(part: Part) -> str:
    items = []
    for f in part["findings"]:
        cause = f" Consequence of {f['consequence_of']}." if f["consequence_of"] else ""
        keys = f" Keys: <code>{_text(', '.join(f['keys']))}</code>." if f["keys"] else ""
        items.append(
            f'<li class="{_text(f["severity"])}"><b>{_text(f["severity"])}: {_text(f["rule"])}</b>: '
            f"{_text(f['message'])}.{_text(cause)}{keys}</li>"
        )
    return _verdict(part) + f"<ul>{''.join(items)}</ul>"


def _phases(phases: Part) -> str:
    rows = [
        (
            row["name"],
            row["seconds"],
            f"{row['seconds']:.2f} s, {megabytes(row['peak_memory_bytes'])}"
            + (f", {row['tokens_per_second']:,.0f} tokens/s" if row["tokens_per_second"] else ""),
        )
        for row in phases["rows"]
    ]
    return f"{bars(rows)}<p>Memory: {_text(phases['memory'])}.</p>"


def _repetitions(diagnosis: Diagnosis) -> str:
    rows = diagnosis.repetitions
    if not rows:
        return ""
    plots = "".join(curve([row[n] for row in rows], n) for n in rows[0] if n != "step")
    return f'<h3>One batch, {len(rows)} times</h3><div class="plots">{plots}</div>'


_STYLE = """
:root{color-scheme:light dark;--ink:#1c1f23;--paper:#fff;--soft:#eef0f3;--line:#d5d9df;--bar:#3b6fb6;
--other:#a0662d;--up:#2c9a5c;--down:#cf4a3d}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--paper:#15181c;--soft:#22272e;--line:#3a424d;
--bar:#6ea2e8;--other:#d69a5b;--up:#4fc483;--down:#ef7a6c}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
padding:1rem;max-width:1400px}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:.5rem 0}h3{font-size:1rem;margin:.5rem 0}
section{border-top:1px solid var(--line);padding:.5rem 0 1rem}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:1rem 0}a{color:var(--bar)}
.columns{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr))}
.columns>*{min-width:0}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.15rem .6rem .15rem 0;text-align:left;
vertical-align:top;border-bottom:1px solid var(--soft)}
code{font-size:.85rem;overflow-wrap:anywhere}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:.1rem .6rem;align-items:center;
font-size:.85rem;margin:.5rem 0}
.track{display:block;background:var(--soft);height:.8rem;border-radius:2px;min-width:3rem}
.track i{display:block;height:100%;background:var(--bar);border-radius:2px}.track i.other{
background:var(--other)}
.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 16rem;max-width:26rem}
figure svg{width:100%;background:var(--soft)}figure rect{fill:var(--bar)}
polyline{fill:none;stroke:var(--bar);stroke-width:2}figcaption{font-size:.8rem}
article{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0;border-top:1px dashed var(--line);
padding-top:.7rem}.grow{flex:1 1 20rem;min-width:0}
.tokens span{padding:0 1px;border-radius:2px;white-space:pre-wrap}.tokens sub{font-size:.6rem;opacity:.6}
.verdict{padding:.6rem .8rem;border-left:5px solid var(--up);background:var(--soft)}
.verdict.stop{border-color:var(--down)}.verdict.warning{border-color:var(--other)}
li.stop b{color:var(--down)}li.warning b{color:var(--other)}
@media(max-width:600px){.bars{grid-template-columns:1fr max-content}.bars .track{grid-column:1/-1;
grid-row:auto}}
"""
