"""What a model was trained on, noted in its configuration."""

from __future__ import annotations

from types import SimpleNamespace

import chess
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.tasks.coverage import coverage, note, noted, unlike

MATE = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
LATE = chess.STARTING_FEN.replace(" 0 1", " 0 9")


def test_the_ranges_are_those_of_the_rows_by_task() -> None:
    found = coverage(["policy", "policy", "environment"], [chess.STARTING_FEN, LATE, MATE])
    assert found == {
        "policy": {"move_numbers": (1, 9), "pieces": (32, 32)},
        "environment": {"move_numbers": (1, 1), "pieces": (6, 6)},
    }
    assert unlike(found, "policy", chess.STARTING_FEN) == []
    assert unlike(found, "environment", LATE) == [
        "move number 9, trained on 1 to 1",
        "32 pieces and pawns, trained on 6 to 6",
    ]
    assert unlike({}, "policy", MATE) == [], "nothing is known"


def test_two_trainings_widen_a_range_and_it_survives_the_configuration() -> None:
    first = coverage(["policy"], [chess.STARTING_FEN])
    both = coverage(["policy", "environment"], [MATE, LATE], first)
    assert both["policy"] == {"move_numbers": (1, 1), "pieces": (6, 32)}
    assert both["environment"]["move_numbers"] == (9, 9)
    config = SimpleNamespace()
    assert noted(config) == {}
    note(config, both)
    assert noted(config) == both


@pytest.mark.parametrize("wrong", [{}, "x", {"trained_on": {"policy": {"pieces": [1]}}}])
def test_a_note_that_cannot_be_read_is_said(wrong: object) -> None:
    with pytest.raises(RookWorldError, match=r"config\.json: rookworld: .* does not hold ranges"):
        noted(SimpleNamespace(rookworld=wrong))
