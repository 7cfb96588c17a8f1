"""The goals that RookWorld-LM's author set for his model, and whether a result reaches them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..common.stats import Estimate

WHOSE = "Goals that the author of RookWorld-LM-124M set for that model"


@dataclass(frozen=True, slots=True)
class Goal:
    """A share that is to be reached.

    Args:
        name: What is to be right.
        least: The share, in (0, 1].
        metrics: Where we measure it: ``heldout:<metric>`` or ``<suite>:<metric>``.
        needs: A note that the suite's result must have, such as ``file``; empty for none.
    """

    name: str
    least: float
    metrics: tuple[str, ...]
    needs: str = ""


GOALS = (
    Goal("openings of the file", 0.8, ("openings:position",), "file"),
    Goal("first moves of the file", 0.8, ("openings:position/ply_1",), "file"),
    Goal("best move", 0.3, ("heldout:policy/best_move", "policy:best_move")),
    Goal("next state", 0.999, ("heldout:environment/state", "environment:next_state_exact")),
    Goal("legal moves", 0.99, ("policy:legal",)),
)


def goal_rows(
    of: str, results: Sequence[Mapping[str, Estimate]], notes: Collection[str] = ()
) -> list[list[str]]:
    """A row for each goal that some result has a metric of: the goal, the metric, a cell per result.

    Args:
        of: ``heldout`` or a suite's name.
        results: Estimates by metric, for each model.
        notes: Names of the notes in the suite's result.

    >>> goal_rows("policy", [{"legal": Estimate(0.95, 0.93, 0.97, 500)}])
    [['legal moves, at least 99%', 'legal', '95.0% [93.0, 97.0], not reached']]
    """
    measured = [
        (goal, metric)
        for goal in GOALS
        if not goal.needs or goal.needs in notes
        for source, _, metric in (name.partition(":") for name in goal.metrics)
        if source == of and any(metric in result for result in results)
    ]
    return [
        [
            f"{goal.name}, at least {100 * goal.least:g}%",
            metric,
            *(_cell(goal, result.get(metric)) for result in results),
        ]
        for goal, metric in measured
    ]


def _cell(goal: Goal, found: Estimate | None) -> str:
    if found is None:
        return "-"
    shares = "{:.1f}% [{:.1f}, {:.1f}]".format(
        *(100 * n for n in (found.value, found.low, found.high))
    )
    return f"{shares}, {'reached' if found.value >= goal.least else 'not reached'}"
