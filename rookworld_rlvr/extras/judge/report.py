"""How good a judge is on pairs that it was not trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...common.errors import RookWorldError
from ...common.files import render
from ...common.stats import estimate
from .pairs import Pair
from .reward import Judge

_PAIRS_SHOWN = 2  # of a kind


# --------------------------------------------------------------------------------------------------
# The report
# --------------------------------------------------------------------------------------------------
def judge_report(judge: Judge, pairs: Sequence[Pair]) -> dict[str, Any]:
    """What `judge_report.json` holds.

    Args:
        judge: As a recipe's reward would load it.
        pairs: Held-out pairs; those that are too long for the judge are left out.

    Raises:
        RookWorldError: Every pair is too long for the judge.
    """
    prompts = [pair.prompt for pair in pairs]
    chosen = judge.scores(prompts, [pair.chosen for pair in pairs])
    rejected = judge.scores(prompts, [pair.rejected for pair in pairs])
    differences = [
        (pair.kind, better - worse)
        for pair, better, worse in zip(pairs, chosen, rejected, strict=True)
        if better is not None and worse is not None
    ]
    if not differences:
        raise RookWorldError(
            f"{judge.name}: all {len(pairs)} held-out pairs are longer than the {judge.longest:.0f} "
            "tokens that it has positions for; give a model with more positions"
        )
    too_long = len(pairs) - len(differences)
    return {"pairs": {**pair_accuracy(differences), "too_long": too_long}}


def pair_accuracy(differences: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Share of pairs whose chosen answer scores higher, in all and by kind; a tie counts as wrong.

    Args:
        differences: A pair's kind, and the score of its chosen answer less that of the rejected one.
    """
    by_kind: dict[str, list[bool]] = {}
    for kind, difference in differences:
        by_kind.setdefault(kind, []).append(difference > 0)
    return {
        **_accuracy([difference > 0 for _, difference in differences]),
        "ties": sum(difference == 0 for _, difference in differences),
        "by_kind": {kind: _accuracy(found) for kind, found in sorted(by_kind.items())},
    }


def _accuracy(hits: Sequence[bool]) -> dict[str, Any]:
    result = estimate("share", hits)
    return {"accuracy": result.value, "low": result.low, "high": result.high, "n": result.n}


# --------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------
def report_text(report: Mapping[str, Any]) -> str:
    """The report as Markdown tables."""
    return str(render("judge_report.md", **report)).rstrip("\n")


def pairs_text(pairs: Sequence[Pair]) -> str:
    """The number of pairs of each kind, and a few examples."""
    kinds = Counter(pair.kind for pair in pairs)
    lines = [f"{kind:<14}{count:>8} pairs" for kind, count in sorted(kinds.items())]
    for kind in sorted(kinds):
        for pair in [pair for pair in pairs if pair.kind == kind][:_PAIRS_SHOWN]:
            lines += ["", f"{kind}: {pair.prompt!r}", f"  chosen   {pair.chosen!r}"]
            lines.append(f"  rejected {pair.rejected!r}")
    return "\n".join(lines)
