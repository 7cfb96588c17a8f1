"""A diagnosis as one page that asks for nothing: plots and boards inside, readable on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.errors import IllegalPositionError
from ..common.html import bars, curve, details, document, histogram, percent, table, text
from ..tasks.boards import action_arrows, position_board
from .lines import LINES, completion_numbers, megabytes, number
from .run import PARTS, Diagnosis

Part = Mapping[str, Any]


GROUPS_SHOWN = 12  # with boards; the JSON file holds all


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The page: one diagnosis in full width, two side by side where there is room."""
    title = "Diagnosis of " + " and ".join(diagnosis.recipe for diagnosis in diagnoses)
    heads = "".join(
        f"<div><h2>{text(d.recipe)}</h2>{_verdict(d.parts['findings'])}</div>" for d in diagnoses
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
    return document(
        title,
        f'<div class="columns">{heads}</div><nav>{links} <a href="#costs">Cost</a></nav>{sections}'
        f'<section id="costs"><h2>Cost of the phases</h2><div class="columns">{costs}</div>'
        "</section>",
    )


def _verdict(part: Part) -> str:
    worst = next((f["severity"] for f in part["findings"] if f["severity"] != "info"), "good")
    return f'<p class="verdict {worst}">{text(part["verdict"])}</p>'


def _part(key: str, diagnosis: Diagnosis) -> str:
    part = diagnosis.parts[key]
    if key == "findings":
        return _findings(part)
    extras = {
        "setup": _overrides,
        "completions": _groups,
        "rewards": _rewards,
        "advantages": _advantages,
        "loss_terms": _prompts,
        "shares": _shares,
        "gradients": _layers,
    }
    lines = table([(text(a), text(b)) for a, b in LINES[key](part)], ())
    extra = extras[key](part) if key in extras else ""
    if key == "heldout_after":
        extra = _heldout(diagnosis.parts["heldout_before"], part)
    return lines + extra


def _overrides(part: Part) -> str:
    rows = [[text(o[name]) for name in ("key", "value", "why")] for o in part.get("overrides", ())]
    return details("Set by the diagnosis", table(rows, ("key", "value", "why"))) if rows else ""


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
            f"<code>{text(c['text'])}</code>",
            *completion_numbers(c),
        )
        for c in group["completions"]
    ]
    heads = ("completion", "reward", "advantage", "sampler", "policy", "reference")
    numbers = table(rows, (*heads, "gap to sampler", "gap to reference"))
    tokens = "".join(_tokens(completion) for completion in _extremes(group["completions"]))
    return (
        f'<article>{_board(group)}<div class="grow"><h3>{text(group["task"])}: '
        f"<code>{text(group['prompt'])}</code></h3>{numbers}"
        f"{details('Token by token: the best and the worst', tokens)}</div></article>"
    )


def _extremes(completions: Sequence[Part]) -> list[Part]:
    ordered = sorted(completions, key=lambda c: -1e9 if c["reward"] is None else c["reward"])
    return [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered


def _board(group: Part) -> str:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        drawn = position_board(group["fen"] or "", action_arrows(group["action"]))
    except IllegalPositionError:
        return ""
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
            f'<span title="{text(notes)}" style="background:color-mix(in srgb,{colour} {weight}%,'
            f'transparent)">{text(token)}<sub>{number(columns["policy"], ".2f")}</sub></span>'
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
            f"{g['group']} {text(g['task'])}",
            number(g["mean"]),
            number(g["deviation"]),
            " ".join(number(r, ".2f") for r in g["rewards"]),
            " ".join(number(a, "+.2f") for a in g["advantages"]),
        )
        for g in groups
    ]
    numbers = table(rows, ("group", "mean", "deviation", "rewards", "advantages"))
    plots = histogram(rewards, "rewards") + histogram(flat, "advantages")
    return f'<div class="plots">{plots}</div>{details("Group by group", numbers)}'


def _prompts(part: Part) -> str:
    rows = [
        (str(p["group"]), text(p["task"]), number(p["policy"], "+.4f"), number(p["kl"], "+.4f"))
        for p in part["prompts"]
    ]
    heads = ("prompt", "task", "policy gradient a token", "KL a token")
    return details("Prompt by prompt", table(rows, heads))


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
                f'<span class="track"><i style="width:{percent(1 - kl)}"></i></span></p>'
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
        keys = f" Keys: <code>{text(', '.join(f['keys']))}</code>." if f["keys"] else ""
        items.append(
            f'<li class="{text(f["severity"])}"><b>{text(f["severity"])}: {text(f["rule"])}</b>: '
            f"{text(f['message'])}.{text(cause)}{keys}</li>"
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
    return f"{bars(rows)}<p>Memory: {text(phases['memory'])}.</p>"


def _repetitions(diagnosis: Diagnosis) -> str:
    rows = diagnosis.repetitions
    if not rows:
        return ""
    plots = "".join(curve([row[n] for row in rows], n) for n in rows[0] if n != "step")
    return f'<h3>One batch, {len(rows)} times</h3><div class="plots">{plots}</div>'
