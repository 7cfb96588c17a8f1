"""Which held-out answers are worth a look: the best, the worst, the most changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...tasks.registry import TASKS
from .record import Answer, AnswerPair


@dataclass(frozen=True, slots=True)
class Choice:
    """Answers of one kind.

    Args:
        task: Of the rows.
        title: What they have in common.
        pairs: The one that shows it most comes first.
    """

    task: str
    title: str
    pairs: Sequence[AnswerPair]


def choose(pairs: Sequence[AnswerPair], count: int) -> list[Choice]:
    """The answers to show, no row twice: most gained, most lost, worst, best.

    Rows of equal quality keep their order; a row that was not scored is left out.

    Args:
        pairs: Of all tasks.
        count: Of each kind.
    """
    choices = []
    for task in TASKS:
        mine = [p for p in pairs if p.after["task"] == task and p.after["score"] is not None]
        orders = {
            "most gained": sorted((p for p in mine if change(p) > 0), key=change, reverse=True),
            "most lost": sorted((p for p in mine if change(p) < 0), key=change),
            "worst": sorted(mine, key=lambda pair: quality(pair.after)),
            "best": sorted(mine, key=lambda pair: quality(pair.after), reverse=True),
        }
        seen: list[AnswerPair] = []
        for title, order in orders.items():
            chosen = [pair for pair in order if pair not in seen][:count]
            seen += chosen
            if chosen:
                choices.append(Choice(task, title, chosen))
    return choices


def quality(answer: Answer) -> float:
    """How good an answer is, in [0, 1], see `Task.quality`."""
    return TASKS[answer["task"]].quality(answer["score"])


def change(pair: AnswerPair) -> float:
    """By how much training has made an answer better, in [-1, 1]."""
    return quality(pair.after) - quality(pair.before)
