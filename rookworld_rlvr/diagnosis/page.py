"""A diagnosis as one self-contained page with plots and boards, readable on a phone."""

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


_ELSEWHERE = ("findings", "heldout_before", "heldout_after", "setup")


Bars = list[tuple[str, float | None, str]]  # label, value and text


SECTIONS: Mapping[str, str] = {
    "findings": PARTS["findings"],
    "heldout": "Held-out score before and after",
    **{key: title for key, title in PARTS.items() if key not in _ELSEWHERE},
    "setup": PARTS["setup"],
    "costs": "Cost of the phases",
}
"""Id → title, in the order of the page: the verdict comes first, the set-up near the end."""


NARROW = ("rewards", "advantages", "loss_terms", "shares")  # two side by side


_WEIGHTS = 12  # of a token's colour, see style.css


GROUPS_SHOWN = 12  # of part 3, the first of each task unfolded; the JSON file holds all


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The page: one diagnosis in full width, two side by side if there is room."""
    return render(
        "diagnosis.html",
        diagnoses=diagnoses,
        titles=SECTIONS,
        narrow=NARROW if len(diagnoses) == 1 else (),
        summary=lines,
        groups_shown=GROUPS_SHOWN,
        unfolded=_unfolded,
        board=_board,
        tokens=_tokens,
        heldout_rows=_heldout_rows,
        share_bars=_share_bars,
        phase_bars=_phase_bars,
    )


def _unfolded(groups: Sequence[Part]) -> list[int]:
    """Places of the first group of each task."""
    tasks = [group["task"] for group in groups]
    return [tasks.index(task) for task in dict.fromkeys(tasks)]


def _board(group: Part) -> Markup:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        return Markup(position_board(group["fen"] or "", action_arrows(group["action"])))
    except IllegalPositionError:
        return Markup()


def _tokens(completion: Part) -> Iterator[Part]:
    """Tokens with a colour and its weight by what the loss does; green makes a token likelier.

    Both are classes of the style sheet, because the page's policy forbids `style` attributes.
    """
    found = lines.tokens(completion)
    pulls = [(t["policy_term"] or 0.0) + (t.get("teach_term") or 0.0) for t in found]
    largest = max(map(abs, pulls), default=0.0) or 1.0
    for token, term in zip(found, pulls, strict=True):
        yield {
            **token,
            "colour": "up" if term < 0 else "down",
            "weight": int(_WEIGHTS * abs(term) / largest),
        }


# --------------------------------------------------------------------------------------------------
# Bars
# --------------------------------------------------------------------------------------------------
def _heldout_rows(before: Part, after: Part) -> list[tuple[str, float, float, str]]:
    """Metric, shares before and after, and their text with what became right and wrong."""
    rows = []
    for name, new in after["metrics"].items():
        old, pair = before["metrics"][name]["value"], after["paired"].get(name)
        words = lines.filled("{old:.1%} → {value:.1%} of {n}", {**new, "old": old})
        if pair is not None:
            words += lines.filled(": {wrong_to_right} gained, {right_to_wrong} lost", pair)
        rows.append((name, old, new["value"], words))
    return rows


def _share_bars(shares: Part) -> Bars:
    """KL's shares of loss and gradient."""
    names = {
        "kl_share_unclipped": "loss, before the ratio's clip",
        "kl_share": "loss, after it",
        "kl_share_of_gradient": "gradient",
    }
    bars: Bars = [
        (f"{words}, {label}", kl, f"{kl:.1%}")
        for key, words in lines.STEPS.items()
        if shares[key] is not None
        for name, label in names.items()
        if (kl := shares[key][name]) is not None
    ]
    return [*bars, ("all", 1.0, "100%")] if bars else []


def _phase_bars(phases: Part) -> Bars:
    def words(row: Part) -> str:
        speed = row["tokens_per_second"]
        cost = lines.filled("{seconds:.2f} s, {peak_memory_bytes:MiB}", row)
        return cost + (f", {speed:,.0f} tokens/s" if speed else "")

    return [(row["name"], row["seconds"], words(row)) for row in phases["rows"]]
