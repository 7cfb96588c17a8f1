"""Suites of whole games: what is asked, and how answers are judged."""

from collections.abc import Sequence

import chess
import pytest

from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.evaluation.suites import whole_games
from rookworld_rlvr.evaluation.suites.whole_games import (
    BoardsSuite,
    CoherenceSuite,
    MovesSuite,
    TacticsSuite,
    tactic,
)
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.policy import POLICY, write_policy_answer
from rookworld_rlvr.tasks.types import MATE_CP, PolicyAnswer

from ...scripted import GARBAGE


class Calculator(Answerer):
    """Says what python-chess says of a move, and of a position what a function says."""

    name = "calculator"

    def __init__(self, analyse: object = None) -> None:
        self.decoding = {"name": "none"}
        self.analyse = analyse
        self.asked: list[str] = []

    def answers(self, prompts: Sequence[str]) -> list[str]:
        self.asked += prompts
        if self.analyse is None:
            return [str(ENVIRONMENT.truth(prompt)) for prompt in prompts]
        return [self.analyse(POLICY.position(prompt).fen) for prompt in prompts]  # type: ignore[operator]


def test_boards_asks_as_many_moves_of_played_as_of_random_games() -> None:
    suite = BoardsSuite(120, 0)
    kinds = [item.kind for item in suite.items.values()]
    assert kinds.count("played") == kinds.count("random") == 60
    assert all(is_held_out(item.fen, HELDOUT_SHARE) for item in suite.items.values())
    assert all(item.prompt.history[-1] == item.prompt.action for item in suite.items.values())
    result = suite.run(Calculator())
    assert result.metrics()["exact"].value == result.metrics()["exact/random"].value == 1
    bands = [name for name in result.values if name.startswith("exact/played_plies")]
    assert len(bands) == 3, "openings, middle games and late positions"
    wrong = suite.run(Copier())
    assert wrong.metrics()["exact"].value == 0 and wrong.metrics()["invalid"].value == 0


class Copier(Calculator):
    """Says that nothing moved."""

    def answers(self, prompts: Sequence[str]) -> list[str]:
        return [f"{ENVIRONMENT.position(prompt).fen}+0.001+0+0" for prompt in prompts]


def test_moves_counts_a_move_that_is_nearly_the_best() -> None:
    suite = MovesSuite(60, 0)
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in suite.items)
    values = {"e2e4": 30, "d2d4": 25, "a2a3": -40}
    for move, near, best in (("e2e4", 1, 1), ("d2d4", 1, 0), ("a2a3", 0, 0), ("e2e5", 0, 0)):
        said = write_policy_answer(PolicyAnswer((move,), (0.0,), move))
        judged = suite.judge(values, said)
        assert (judged["near_best"], judged["best_move"]) == (near, best), move
    assert suite.judge(values, GARBAGE)["near_best"] == 0
    assert suite.notes["values"] and "depth 10" in suite.notes["values"][0]
    groups = {group for fen in suite.items for group in suite.groups_of(fen)}
    assert groups == set(suite.groups)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"a": MATE_CP - 1, "b": 500}, "mate_in_1"),
        ({"a": MATE_CP - 3, "b": MATE_CP - 3}, "mate_in_3"),
        ({"a": MATE_CP - 4, "b": 900}, None),
        ({"a": 0, "b": -600}, "only_move"),
        ({"a": 50, "b": 40}, None),
        ({"a": -400}, None),
    ],
)
def test_a_tactic_is_a_short_mate_or_the_only_good_move(
    values: dict[str, int], found: str | None
) -> None:
    assert tactic(values) == found


def test_tactics_are_found_by_a_best_move_alone() -> None:
    suite = TacticsSuite(400, 0)
    groups = [group for fen in suite.items for group in suite.groups_of(fen)]
    assert len(groups) == len(suite.items) and set(groups) == set(suite.groups)
    for fen, values in suite.items.items():
        moves = {move.uci() for move in chess.Board(fen).legal_moves}
        assert values.keys() == moves, "all legal moves have a value"
        best = max(values, key=values.__getitem__)
        if suite.groups_of(fen) == ["mate_in_1"]:
            board = chess.Board(fen)
            board.push_uci(best)
            assert board.is_checkmate()
        worst = min(values, key=values.__getitem__)
        for move, hit in ((best, 1), (worst, 0)):
            said = write_policy_answer(PolicyAnswer((move,), (0.0,), move))
            assert suite.judge(values, said)["found"] == hit


def test_coherence_compares_evaluations_a_move_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    start = chess.STARTING_FEN
    monkeypatch.setattr(whole_games, "labelled_positions", lambda _: {start: {"e2e4": 0}})
    after = {}
    for move, value in (("e2e4", -1.0), ("d2d4", 2.0), ("a2a3", 0.2)):
        board = chess.Board()
        board.push_uci(move)
        after[board.fen()] = write_policy_answer(PolicyAnswer(("e7e5",), (value,), "e7e5"))
    # E says 1, 1.5 and 0.1; the moves after them say 1, -2 and -0.2.
    own = PolicyAnswer(("e2e4", "d2d4", "a2a3", "e2e5"), (1.0, 1.5, 0.1, 9.0), "d2d4")
    model = Calculator(lambda fen: write_policy_answer(own) if fen == start else after[fen])
    values = {name: found[start] for name, found in CoherenceSuite(5, 0).run(model).values.items()}
    assert len(model.asked) == 4, "illegal candidates are not asked about"
    assert values["sign"] == 0.5, "of e4 and d4, as 0.1 is too small to count"
    assert values["order"] == pytest.approx(1 / 3), "only e4 against a3 agrees"
    assert values["difference"] == pytest.approx((0 + 3.5 + 0.3) / 3)
    assert values["chosen"] == 0, "the illegal move has the highest E"
    broken = CoherenceSuite(5, 0).run(Calculator(lambda _: GARBAGE))
    assert broken.values["invalid"][start] == 1 and broken.values["chosen"][start] == 0
