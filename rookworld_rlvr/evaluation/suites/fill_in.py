"""Suite `fill_in`: a hidden field of a record, judged by every answer that fits the rest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, islice, zip_longest

from ...data.sources import Row
from ...data.synthesis import fill_in_row
from ...tasks.fill_in_record import parse_fill_in_prompt, score_fill_in
from ...tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, FillInField
from ..suite import PromptSuite, packaged
from .environment import heldout_prompts


@packaged
class FillInSuite(PromptSuite[Row]):
    """Records of the packaged environment prompts, each field hidden equally often.

    Their positions are those of the suite `environment`, from the held-out tenth.

    Args:
        suite_rows: The largest number of records.
        suite_seed: Decides which, and what is hidden.
    """

    name = "fill_in"
    version = 1
    grouped = ("exact",)  # by hidden field

    groups = FILL_IN_FIELDS

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_items(suite_rows, suite_seed), suite_seed)

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {item: row["fen"] for item, row in self.items.items()}

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [parse_fill_in_prompt(name).field]

    @staticmethod
    def judge(item: Row, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        score = score_fill_in(parse_fill_in_prompt(item["prompt"]), completion)
        values = {name: score[name] for name in ("exact", "similarity")}
        return {"invalid": 1 - score["format"], **values}


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------
def _items(rows: int, seed: int) -> dict[str, Row]:
    """Rows by their prompt, which names the item; the fields take turns, no record is used twice."""
    known = list(heldout_prompts().values())
    used: set[EnvironmentPrompt] = set()
    streams = [_masked(known, field, used, seed) for field in FILL_IN_FIELDS]
    turns = filter(None, chain.from_iterable(zip_longest(*streams)))
    return {row["prompt"]: row for row in islice(turns, rows)}


def _masked(
    known: list[EnvironmentPrompt], field: FillInField, used: set[EnvironmentPrompt], seed: int
) -> Iterator[Row]:
    rng = random.Random(f"{seed} {field}")
    for asked in rng.sample(known, len(known)):
        row = None if asked in used else fill_in_row(rng, asked, field)
        if row is not None:
            used.add(asked)
            yield row
