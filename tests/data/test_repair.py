"""Repairs change what is wrong, name it, and leave the rest as it stands."""

from typing import Any

from rookworld_rlvr.data.prepare import Repaired, repair_row
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_answer
from rookworld_rlvr.tasks.types import PolicyAnswer

from ..rows import column

# White: a1a8 mates. The pawn's two moves are equal, the king's are worst.
FEN = "6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1"
WORTH = {"a1a8": 99_999, "a1a7": 500, "a1e1": 450}
WORTH |= {"h2h3": 300, "h2h4": 300, "a1b1": 300, "h1g1": -20}
VALUES = column(WORTH)


def policy_row(answer: PolicyAnswer | None, values: list[Any] | None = VALUES) -> dict[str, Any]:
    completion = "" if answer is None else write_policy_answer(answer)
    row = {"task": "policy", "prompt": f"P: {FEN:<88}", "completion": completion}
    return {**row, "fen": FEN, "action_values": values}


def test_the_best_move_is_written_anew_and_the_rest_stays() -> None:
    for moves, best, right in (
        ("h1g1 a1e1 a1a7", "h1g1", "a1a7"),
        ("h2h4 h1g1", "a1a8", "h2h4"),  # not one of M
        ("h2h4 h2h3", "h2h3", "h2h3"),  # as good as the best
    ):
        before = PolicyAnswer(tuple(moves.split()), (1.0, 2.0), best)
        repaired = repair_row(policy_row(before), ["best_move"])
        after = PolicyAnswer(before.moves, before.evaluations, right)
        assert parse_policy_answer(repaired.completion) == after
        assert repaired.done == ("best_move" if best != right else "")


def test_a_policy_answer_is_rewritten_by_the_values() -> None:
    for wrong in (PolicyAnswer(("h1g1", "a1h8"), (1.0,), "h1g1"), None):
        repaired = repair_row(policy_row(wrong), ["policy", "best_move"])
        answer = parse_policy_answer(repaired.completion)
        assert set(answer.moves) == {"a1a8", "a1a7", "a1e1", "h2h3", "h2h4"}
        assert answer.evaluations == tuple(WORTH[move] / 100 for move in answer.moves)
        assert (answer.best_move, repaired.done) == ("a1a8", "policy" if wrong else "answer")
        again = repair_row({**policy_row(None), "completion": repaired.completion}, ["policy"])
        assert again == Repaired(repaired.completion)


def test_what_was_not_asked_for_or_cannot_be_repaired_stays_as_it_is() -> None:
    row = policy_row(PolicyAnswer(("a1h8",), (1.0,), "a1h8"))
    for repairs, refused in (([], ""), (["environment"], ""), (["best_move"], "best_move")):
        assert repair_row(row, repairs) == Repaired(row["completion"], refused=refused)
    bare = {**row, "action_values": None}
    assert repair_row(bare, ["policy"]) == Repaired(row["completion"], refused="policy")
    assert repair_row(policy_row(None, None), []) == Repaired("", refused="answer")


def test_an_environment_answer_is_recomputed() -> None:
    board = "6k1/5ppp/8/8/7P/8/8/R6K"
    right = f"{board} b - - 0 1+0.001+0+0"
    row = {"task": "environment", "prompt": f"A: {FEN}+h2h4+h2h4+", "fen": FEN}
    for wrong in (f"{board} b - h3 0 1+0.001+0+0", f"{board} b - - 0 1+1.0+1+0"):
        given = {**row, "completion": wrong, "action_values": None}
        assert repair_row(given, ["environment"]) == Repaired(right, "environment")
        assert repair_row(given, ["policy"]) == Repaired(wrong)
    bare = {**row, "completion": "", "action_values": None}
    assert repair_row(bare, ["environment"]) == Repaired(right, "answer")
