"""Held-out answers before and after training: what changed, which errors they have, which to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...common.stats import mcnemar
from ...tasks.metrics import hits
from ...tasks.registry import TASKS
from .record import Answer, AnswerPair


@dataclass(frozen=True, slots=True)
class Change:
    """Held-out rows whose answers became right or wrong, for one metric.

    Args:
        gained: Wrong before, right after.
        lost: Right before, wrong after.
    """

    gained: int
    lost: int

    @property
    def p(self) -> float:
        """McNemar's exact two-sided test on the rows that changed."""
        return mcnemar(self.lost, self.gained)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one task's held-out answers; an answer may have several kinds.

    Args:
        task: Of the rows.
        rows: How many have a score.
        kinds: Kind → how many rows have it before, and after; the most frequent first.
    """

    task: str
    rows: int
    kinds: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Answers of one kind.

    Args:
        task: Of the rows.
        title: What they have in common.
        pairs: The clearest example comes first.
    """

    task: str
    title: str
    pairs: Sequence[AnswerPair]


def changes(pairs: Sequence[AnswerPair]) -> dict[str, Change]:
    """Metric → how many of its rows became right and wrong; both answers need a score."""
    scored = _scored(pairs)
    rows = [pair.after for pair in scored]
    old, new = (hits(rows, [a["score"] for a in side]) for side in _sides(scored))
    return {
        metric: Change(
            gained=sum(after[place] > before for place, before in old[metric].items()),
            lost=sum(after[place] < before for place, before in old[metric].items()),
        )
        for metric, after in new.items()
    }


def errors(pairs: Sequence[AnswerPair]) -> list[Errors]:
    """Errors by task and kind, see `Task.errors`."""
    found = []
    for name, task in TASKS.items():
        mine = [pair for pair in _scored(pairs) if pair.after["task"] == name]
        before, after = (
            Counter(
                kind
                for answer in side
                for kind in task.errors(answer["prompt"], answer["completion"], answer["values"])
            )
            for side in _sides(mine)
        )
        order = sorted(before | after, key=lambda kind: (-max(before[kind], after[kind]), kind))
        if mine:
            found.append(
                Errors(name, len(mine), {kind: (before[kind], after[kind]) for kind in order})
            )
    return found


def _scored(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """The pairs with two scores, of known tasks."""
    return [
        pair
        for pair in pairs
        if pair.after["task"] in TASKS and None not in (pair.before["score"], pair.after["score"])
    ]


def _sides(pairs: Sequence[AnswerPair]) -> tuple[list[Answer], list[Answer]]:
    return [pair.before for pair in pairs], [pair.after for pair in pairs]


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
    """How much better training has made an answer, in [-1, 1]."""
    return quality(pair.after) - quality(pair.before)
