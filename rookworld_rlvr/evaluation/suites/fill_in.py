"""Suite `fill_in`: a hidden field of a record, judged by every answer that fits the rest."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ...data.sources import Row
from ...data.synthesis import fill_in_row
from ...tasks.fill_in import score_fill_in
from ...tasks.fill_in_text import parse_fill_in_prompt
from ...tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, FillInField, FillInPrompt
from ..answerers import Answerer
from ..suite import Judged, Metric, Suite
from .environment import heldout_prompts


class FillInSuite(Suite[Row]):
    """Records of the packaged environment prompts, each field hidden equally often.

    Their positions are those of the suite `environment`, from the held-out tenth.

    Args:
        rows: The largest number of records.
        seed: Decides which, and what is hidden.
    """

    name = "fill_in"
    summary = "Restores what is hidden in a record; every answer that fits the rest is right."
    version = 1
    headline = "exact"
    one_answer = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "invalid": Metric("share", "The answer does not have the form of the hidden field."),
        "exact": Metric("share", "The answer fits the rest of the record."),
        "similarity": Metric(
            "mean", "Similarity to the nearest answer that fits; 1 if exact, 0 if invalid."
        ),
    }
    grouped = ("exact",)  # by hidden field
    about = (
        "Held-out positions of whole games, each field hidden equally often. The held-out rows of a run "
        "may be openings, and hide fields unequally."
    )

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(dict(_items(rows, seed)), seed)

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {item: row["fen"] for item, row in self.items.items()}

    def groups(self) -> Iterable[str]:
        """See `Suite`."""
        return FILL_IN_FIELDS

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        for item, completion in zip(self.items, model.answers(list(self.items)), strict=True):
            prompt = parse_fill_in_prompt(item)
            yield item, judge(prompt, completion), [prompt.field]


def judge(prompt: FillInPrompt, completion: str) -> dict[str, float]:
    """The suite's metrics for one answer."""
    score = score_fill_in(prompt, completion)
    return {
        "invalid": 1 - score["format"],
        "exact": score["exact"],
        "similarity": score["similarity"],
    }


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------
def _items(rows: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Rows by their prompt, which names the item; the fields take turns, no record is used twice."""
    known = list(heldout_prompts().values())
    used: set[EnvironmentPrompt] = set()
    streams = {field: _masked(known, field, used, seed) for field in FILL_IN_FIELDS}
    while streams:
        for field in list(streams):
            if not rows:
                return
            row = next(streams[field], None)
            if row is None:
                del streams[field]
                continue
            rows -= 1
            yield row["prompt"], row


def _masked(
    known: list[EnvironmentPrompt], field: FillInField, used: set[EnvironmentPrompt], seed: int
) -> Iterator[Row]:
    rng = random.Random(f"{seed} {field}")
    for asked in rng.sample(known, len(known)):
        row = None if asked in used else fill_in_row(rng, asked, field)
        if row is not None:
            used.add(asked)
            yield row
