"""A diagnosis as one page that asks for nothing: plots and boards inside, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..common.errors import IllegalPositionError
from ..common.html import render
from ..tasks.boards import action_arrows, position_board
from . import lines
from .lines import completion_numbers, flags, number
from .run import PARTS, Diagnosis

Part = Mapping[str, Any]


Bars = list[tuple[str, float | None, str]]  # label, value and text


GROUPS_SHOWN = 12  # with boards; the JSON file holds all


_COLUMNS = ("sampler", "policy", "reference", "policy_term", "kl_term")  # of a token


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The page: one diagnosis in full width, two side by side where there is room."""
    return render(
        "diagnosis.html",
        diagnoses=diagnoses,
        titles=PARTS,
        summary=lines,
        groups_shown=GROUPS_SHOWN,
        completion_rows=_completion_rows,
        all_of=_all_of,
        board=_board,
        extremes=_extremes,
        tokens=_tokens,
        bars_of={
            "rewards": _reward_bars,
            "heldout": _heldout_bars,
            "gradients": _gradient_bars,
            "updates": _update_bars,
            "phases": _phase_bars,
        },
    )


def _completion_rows(group: Part) -> list[tuple[str, ...]]:
    code = Markup("<code>{}</code>")
    return [(code.format(c["text"]), *completion_numbers(c)) for c in group["completions"]]


def _all_of(groups: Sequence[Part], name: str) -> list[float]:
    return [value for group in groups for value in group[name] if value is not None]


def _extremes(completions: Sequence[Part]) -> list[Part]:
    ordered = sorted(completions, key=lambda c: -1e9 if c["reward"] is None else c["reward"])
    return [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered


def _board(group: Part) -> Markup:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        return Markup(position_board(group["fen"] or "", action_arrows(group["action"])))
    except IllegalPositionError:
        return Markup()


def _tokens(completion: Part) -> Iterator[tuple[str, str, str, int, str]]:
    """Token, its numbers, colour and weight by the policy's term (green pulls up), and log-prob."""
    terms = completion["policy_term"] or []
    largest = max((abs(t) for t in terms if t is not None), default=0.0) or 1.0
    for place, token in enumerate(completion["tokens"]):
        values = {n: completion[n][place] if completion[n] else None for n in _COLUMNS}
        notes = ", ".join(f"{name} {number(value, '.3f')}" for name, value in values.items())
        term = values["policy_term"] or 0.0
        weight = int(60 * abs(term) / largest)
        yield token, notes, "up" if term < 0 else "down", weight, number(values["policy"], ".2f")


# --------------------------------------------------------------------------------------------------
# Bars
# --------------------------------------------------------------------------------------------------
def _reward_bars(part: Part) -> Bars:
    return [
        (name, c["mean"], f"{number(c['mean'])} ± {number(c['deviation'])}")
        for name, c in part["components"].items()
    ]


def _heldout_bars(before: Part, after: Part) -> Bars:
    values = [
        (f"{name}, {words}", part["metrics"][name]["value"])
        for name in after["metrics"]
        for words, part in (("before", before), ("after", after))
    ]
    return [
        *((label, value, lines.share(value)) for label, value in values),
        ("all", 1.0, "100%"),
    ]


def _gradient_bars(part: Part) -> Bars:
    return [
        (x["layer"], x["gradient_norm"], " ".join([number(x["gradient_norm"]), *flags(x)]))
        for x in part["layers"]
    ]


def _update_bars(part: Part) -> Bars:
    return [
        (x["layer"], x["update_to_weight"], number(x["update_to_weight"], ".1e"))
        for x in part["layers"]
    ]


def _phase_bars(phases: Part) -> Bars:
    def words(row: Part) -> str:
        speed = row["tokens_per_second"]
        cost = lines.filled("{seconds:.2f} s, {peak_memory_bytes:MiB}", row)
        return cost + (f", {speed:,.0f} tokens/s" if speed else "")

    return [(row["name"], row["seconds"], words(row)) for row in phases["rows"]]
