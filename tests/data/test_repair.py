"""Repairs change what is wrong, name it, and leave the rest as it stands."""

from __future__ import annotations

from typing import Any

import pytest

from rookworld_rlvr.data.repair import repair_row
from rookworld_rlvr.tasks.policy import (
    parse_policy_answer,
    write_policy_answer,
    write_policy_prompt,
)
from rookworld_rlvr.tasks.types import PolicyAnswer

# White: a1a8 mates. The pawn's two moves are equal, the king's are worst.
FEN = "6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1"
VALUES: list[dict[str, Any]] = [
    *({"move": "a1a8", "cp": 99_999}, {"move": "a1a7", "cp": 500}, {"move": "a1e1", "cp": 450}),
    *({"move": "h2h3", "cp": 300}, {"move": "h2h4", "cp": 300}, {"move": "a1b1", "cp": 300}),
    {"move": "h1g1", "cp": -20},
]
POLICY = ("candidates", "evaluations", "best_move")


def policy_row(answer: PolicyAnswer | None, values: list[Any] | None = VALUES) -> dict[str, Any]:
    return {
        "task": "policy",
        "prompt": write_policy_prompt(FEN),
        "completion": "" if answer is None else write_policy_answer(answer),
        "fen": FEN,
        "action": "",
        "history": [],
        "action_values": values,
    }


def environment_row(completion: str) -> dict[str, Any]:
    return {
        "task": "environment",
        "prompt": f"A: {FEN}+h2h4+h2h4+",
        "completion": completion,
        "fen": FEN,
        "action": "h2h4",
        "history": ["h2h4"],
        "action_values": None,
    }


RIGHT = PolicyAnswer(("h2h3", "a1a8", "a1e1", "a1a7", "h2h4"), (3.0, 999.99, 4.5, 5.0, 3.0), "a1a8")


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        # Another move that is worth as much as the fifth.
        PolicyAnswer(
            ("a1b1", "a1a8", "a1e1", "a1a7", "h2h4"), (3.0, 999.99, 4.5, 5.0, 3.0), "a1a8"
        ),
    ],
)
def test_a_right_answer_stays_as_it_is(answer: PolicyAnswer) -> None:
    row = policy_row(answer)
    repaired = repair_row(row, POLICY)
    assert repaired.completion == row["completion"]
    assert repaired.done == repaired.refused == ()


@pytest.mark.parametrize(
    ("repair", "before", "after"),
    [
        ("best_move", ("h1g1 a1e1 a1a7", (1.0, 2.0, 3.0), "h1g1"), ((1.0, 2.0, 3.0), "a1a7")),
        ("best_move", ("h2h4 h1g1", (3.0, 0.0), "a1a8"), ((3.0, 0.0), "h2h4")),  # not one of M
        ("best_move", ("h2h4 h2h3", (3.0, 3.0), "h2h3"), None),  # as good as the best
        ("evaluations", ("h1g1 a1a8", (9.0,), "a1a8"), ((-0.2, 999.99), "a1a8")),
    ],
)
def test_one_section_is_written_anew_and_the_others_stay(
    repair: str, before: tuple[str, Any, str], after: tuple[Any, str] | None
) -> None:
    moves = tuple(before[0].split())
    repaired = repair_row(policy_row(PolicyAnswer(moves, *before[1:])), [repair])
    assert repaired.done == ((repair,) if after else ())
    assert parse_policy_answer(repaired.completion) == PolicyAnswer(moves, *(after or before[1:]))


def test_nothing_is_repaired_that_was_not_asked_for() -> None:
    wrong = policy_row(PolicyAnswer(("h1g1", "a1a7"), (1.0, 1.0), "h1g1"))
    assert repair_row(wrong, []).completion == wrong["completion"]
    assert repair_row(wrong, ["environment", "duplicates"]).completion == wrong["completion"]


def test_other_moves_than_the_best_five_are_written_anew_with_all_that_belongs_to_them() -> None:
    row = policy_row(PolicyAnswer(("h1g1", "a1a7", "a1a8"), (1.0, 2.0, 3.0), "h1g1"))
    repaired = repair_row(row, POLICY)
    answer = parse_policy_answer(repaired.completion)
    assert set(answer.moves) == {"a1a8", "a1a7", "a1e1", "h2h3", "h2h4"}
    worth = {value["move"]: value["cp"] / 100 for value in VALUES}
    assert answer.evaluations == tuple(worth[move] for move in answer.moves)
    assert answer.best_move == "a1a8"
    assert repaired.done == ("candidates",)


def test_a_repair_that_the_values_cannot_give_is_refused_and_named() -> None:
    illegal = policy_row(PolicyAnswer(("a1h8",), (1.0,), "a1h8"))
    repaired = repair_row(illegal, ["evaluations", "best_move"])
    assert repaired.completion == illegal["completion"]
    assert repaired.refused == ("evaluations", "best_move")
    unlabelled = policy_row(RIGHT, values=None)
    assert repair_row(unlabelled, POLICY).refused == POLICY
    assert repair_row(unlabelled, []).refused == ()


def test_a_row_without_an_answer_gets_the_right_one() -> None:
    repaired = repair_row(policy_row(None), [])
    answer = parse_policy_answer(repaired.completion)
    assert answer.best_move == "a1a8" and len(answer.moves) == 5
    assert repaired.done == ("answer",)
    assert repair_row(policy_row(None, values=None), []).refused == ("answer",)


@pytest.mark.parametrize(
    "wrong",
    [
        "6k1/5ppp/8/8/7P/8/8/R6K b - h3 0 1+0.001+0+0",
        "6k1/5ppp/8/8/7P/8/8/R6K b - - 0 1+0.001+1+0",
        "6k1/5ppp/8/8/7P/8/8/R6K b - - 0 1+1.0+0+0",
    ],
)
def test_an_environment_answer_is_recomputed(wrong: str) -> None:
    right = "6k1/5ppp/8/8/7P/8/8/R6K b - - 0 1+0.001+0+0"
    repaired = repair_row(environment_row(wrong), ["environment"])
    assert (repaired.completion, repaired.done) == (right, ("environment",))
    assert repair_row(environment_row(right), ["environment"]).done == ()
    assert repair_row(environment_row(wrong), POLICY).completion == wrong
