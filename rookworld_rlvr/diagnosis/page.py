"""A diagnosis as one page that asks for nothing: plots and boards inside, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..common.errors import IllegalPositionError
from ..common.html import render
from ..tasks.boards import action_arrows, position_board
from . import lines
from .run import PARTS, Diagnosis

Part = Mapping[str, Any]


Bars = list[tuple[str, float | None, str]]  # label, value and text


GROUPS_SHOWN = 12  # with boards; the JSON file holds all


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The page: one diagnosis in full width, two side by side where there is room."""
    return render(
        "diagnosis.html",
        diagnoses=diagnoses,
        titles=PARTS,
        summary=lines,
        groups_shown=GROUPS_SHOWN,
        board=_board,
        extremes=_extremes,
        tokens=_tokens,
        heldout_bars=_heldout_bars,
        phase_bars=_phase_bars,
    )


def _extremes(completions: Sequence[Part]) -> list[Part]:
    ordered = sorted(completions, key=lambda c: -1e9 if c["reward"] is None else c["reward"])
    return [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered


def _board(group: Part) -> Markup:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        return Markup(position_board(group["fen"] or "", action_arrows(group["action"])))
    except IllegalPositionError:
        return Markup()


def _tokens(completion: Part) -> Iterator[Part]:
    """Tokens with a colour and its weight by the policy's term: green pulls up."""
    found = lines.tokens(completion)
    largest = max((abs(token["policy_term"] or 0.0) for token in found), default=0.0) or 1.0
    for token in found:
        term = token["policy_term"] or 0.0
        yield {
            **token,
            "colour": "up" if term < 0 else "down",
            "weight": int(60 * abs(term) / largest),
        }


# --------------------------------------------------------------------------------------------------
# Bars
# --------------------------------------------------------------------------------------------------
def _heldout_bars(before: Part, after: Part) -> Bars:
    both = {
        f"{name}, {words}": part["metrics"][name]
        for name in after["metrics"]
        for words, part in (("before", before), ("after", after))
    }
    return [*lines.bar_rows(both, "{name}", "value", "{value:.1%}"), ("all", 1.0, "100%")]


def _phase_bars(phases: Part) -> Bars:
    def words(row: Part) -> str:
        speed = row["tokens_per_second"]
        cost = lines.filled("{seconds:.2f} s, {peak_memory_bytes:MiB}", row)
        return cost + (f", {speed:,.0f} tokens/s" if speed else "")

    return [(row["name"], row["seconds"], words(row)) for row in phases["rows"]]
