"""Where an answer goes wrong, and where its fields stand: indices counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.fill_in import FILL_IN
from rookworld_rlvr.tasks.policy import POLICY
from rookworld_rlvr.tasks.task import FieldSpan

from .test_fuzz import PIECES
from .test_scoring import PERFECT, VALUES

ASKED = "A: 8/8/8/8/8/4k3/8/4K3 w - - 0 1+e1d1+e1d1+"
# 0: board to 19, 20: side, 22, 24, 26, 28: the clocks, 29: +, 30: reward to 33, 34, 36: flags
RIGHT = "8/8/8/8/8/4k3/8/3K4 b - - 1 1+0.5+1+0"
POSITION = "P: 7k/8/8/8/8/8/5PPP/7K w - - 0 1"
# The next state's clock is one more than the hidden one.
HIDDEN = "F: 8/8/8/8/8/4k3/8/4K3 w - - [MASK] 3+e1d1+e1d1+8/8/8/8/8/4k3/8/3K4 b - - 5 3+0.5+1+0+"


@pytest.mark.parametrize(
    ("completion", "index"),
    [
        (RIGHT, 38),  # one more than its 37 characters
        (f"  {RIGHT.replace('+', ' + ')} ", 37 + 2 + 6 + 1 + 1),  # right for the scorer
        (RIGHT.replace("0.5", "0.50"), 39),
        (RIGHT.replace(" b ", " w "), 20),
        (RIGHT.replace(" b ", "  w "), 21),  # more spaces are no error
        (RIGHT.replace("3K4", "4K3"), 16),
        (RIGHT.replace("- -", "-  KQ"), 25),
        (RIGHT.replace("1 1+", "1 12+"), 29),  # where + should stand
        (RIGHT.replace("+0.5", "+0.001"), 32),  # 0. is right so far
        (RIGHT.replace("+0.5+1", "+0.50+0"), 35),  # 0.50 is right
        (RIGHT.replace("4k3", "4k 3"), 12),  # where 3 should stand
        (f"{RIGHT}+0", 37),
        (f"{RIGHT}x", 37),
        ("hello", 0),
        (f" {RIGHT[:12]}", 13),  # ends too early: the end token's place
        (RIGHT[:-2], 35),
        ("", 0),
    ],
)
def test_where_an_environment_answer_departs(completion: str, index: int) -> None:
    assert ENVIRONMENT.first_error(ASKED, completion) == index


@pytest.mark.parametrize(
    ("completion", "index"), [(" 4", 3), ("4", 2), (" 6", 1), (" 45", 2), (" x", 1), (" ", 1)]
)
def test_a_fill_in_answer_is_compared_with_the_nearest_right_one(
    completion: str, index: int
) -> None:
    assert FILL_IN.truth(HIDDEN) == " 4"
    assert FILL_IN.first_error(HIDDEN, completion) == index


def test_of_several_right_answers_the_one_that_goes_furthest_counts() -> None:
    first_move = "F: {} w [MASK] - 0 1+e2e4+e2e4+{} b - - 0 1+0.001+0+0+".format(
        "4k3/8/8/8/8/8/4P3/4K3", "4k3/8/8/8/4P3/8/8/4K3"
    )
    assert FILL_IN.first_error(first_move, " -") == 3
    assert FILL_IN.fields(first_move, " -") is None


def test_environment_fields_are_nine() -> None:
    completion = " 8/8/8/8/8/4k3/8/4K3 b  - - 1 1 + 0.5+0+0"
    assert ENVIRONMENT.fields(ASKED, completion) == [
        FieldSpan("board", 1, 20, 0.0),
        FieldSpan("side to move", 21, 22, 1.0),
        FieldSpan("castling", 24, 25, 1.0),
        FieldSpan("en passant", 26, 27, 1.0),
        FieldSpan("halfmoves", 28, 29, 1.0),
        FieldSpan("move number", 30, 31, 1.0),
        FieldSpan("reward", 34, 37, 1.0),
        FieldSpan("terminated", 38, 39, 0.0),
        FieldSpan("truncated", 40, 41, 1.0),
    ]
    assert ENVIRONMENT.fields(ASKED, "8/8") == ()


def test_policy_fields_are_the_sections_with_their_scores() -> None:
    # Two of the top five moves; both evaluations are right; an illegal move loses everything.
    completion = " M: g2g4 f2f4      E: 1.0 1.0  B: a1a1"
    assert POLICY.fields(POSITION, completion, VALUES) == [
        FieldSpan("M", 1, 13, 0.4),
        FieldSpan("E", 19, 29, 1.0),
        FieldSpan("B", 31, 38, 0.0),
    ]
    assert [span.score for span in POLICY.fields(POSITION, PERFECT, VALUES) or ()] == [1, 1, 1]
    assert POLICY.fields(POSITION, "M: g2g4", VALUES) == ()


def test_what_cannot_be_judged_has_no_places() -> None:
    assert POLICY.fields(POSITION, PERFECT) is None, "without values"
    assert POLICY.first_error(POSITION, PERFECT, VALUES) is None, "M may come in any order"
    for task, prompt in ((ENVIRONMENT, "A: hello"), (FILL_IN, "F: hello")):
        assert task.first_error(prompt, RIGHT) is None and task.fields(prompt, RIGHT) is None


@given(st.lists(PIECES | st.sampled_from([RIGHT, RIGHT[:9], "3K4", "0.5", PERFECT]), max_size=12))
def test_any_heap_of_pieces_has_places_inside_the_text(pieces: list[str]) -> None:
    for glue in ("", " ", "+"):
        text = glue.join(pieces)
        for task, prompt in ((ENVIRONMENT, ASKED), (FILL_IN, HIDDEN)):
            index, score = task.first_error(prompt, text), task.score(prompt, text)
            assert index is not None and score is not None
            assert 0 <= index <= len(text) + 1
            assert (index > len(text)) == task.is_right(score)
        for spans in (ENVIRONMENT.fields(ASKED, text), POLICY.fields(POSITION, text, VALUES)):
            assert spans is not None
            places = [place for span in spans for place in (span.start, span.end)]
            assert places == sorted(places) and all(0 <= place <= len(text) for place in places)
            assert all(span.start < span.end and 0 <= span.score <= 1 for span in spans)
