"""The suite `fill_in`: its scores by hand, and what it asks."""

from collections import Counter

import pytest

from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.evaluation.suites.environment import FillInSuite
from rookworld_rlvr.tasks.fill_in_record import filled, fitting, parse_fill_in_prompt
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS

from ...rows import AFTER_E4, START

E4 = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+0.001+0+0+"
WHOLE = f"F: {START}+e2e4+e2e4+[MASK]+0.001+0+0+"


def test_metrics_by_hand() -> None:
    for prompt, completion, *numbers in (
        (E4, " e2e4", 0, 1, 1),
        (E4, " e2e3", 0, 0, 0.95 * 3 / 4),  # one character of four
        (E4, "", 1, 0, 0),
        (WHOLE, f" {AFTER_E4}", 0, 1, 1),
        # An en passant square where no capture is legal: "-" becomes "e3", two edits of 59.
        (WHOLE, f" {AFTER_E4.replace(' - ', ' e3 ')}", 0, 0, 0.95 * (1 - 2 / 59)),
    ):
        found = FillInSuite.judge({"prompt": prompt}, completion)
        expected = dict(zip(("invalid", "exact", "similarity"), numbers, strict=True))
        assert found == pytest.approx(expected, abs=1e-12)


def test_items_are_held_out_records_each_field_as_often() -> None:
    fens = FillInSuite(150, 0).positions()
    prompts = [parse_fill_in_prompt(item) for item in fens]
    assert Counter(prompt.field for prompt in prompts) == dict.fromkeys(FILL_IN_FIELDS, 15)
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in fens.values())
    for prompt, fen in zip(prompts, fens.values(), strict=True):
        states = {filled(prompt.columns, answer)[0].fen for answer in fitting(prompt)}
        assert fen in states, "the position is the true one, hidden or not"
        assert states == {fen} or prompt.column == "state"
    assert len(fens) == len({*map(str, prompts)})
