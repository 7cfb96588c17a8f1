"""Numbers are worked out by hand, in the comments, not taken from the code."""

import json
from pathlib import Path
from typing import get_args

import pytest

from rookworld_rlvr.rewards import composites
from rookworld_rlvr.tasks import policy
from rookworld_rlvr.tasks.environment import ENVIRONMENT_COMPONENTS, score_environment
from rookworld_rlvr.tasks.registry import score_row

from ..rows import AFTER_E4, PAWN_VALUES, PAWNS, START

GOES_ON = "+0.001+0+0"


def environment(completion: str):
    return score_environment(START, "e2e4", completion)


def analysis(completion: str):
    return policy.score_policy(PAWN_VALUES, completion)


NINE, TEN = "PPPP1PPPP", "PPPP1PPPPP"  # squares in White's second rank


def test_a_malformed_board_counts_by_how_near_it_is() -> None:
    for board, state in (
        # Half the ranks right, half the edits of squares with their slashes; 0.6 of it, 0.4 by fields.
        (AFTER_E4.replace("PPPP1PPP", NINE), 0.2 * (0.6 * (7 / 8 + 71 / 72) / 2 + 0.4)),
        (AFTER_E4.replace("PPPP1PPP", TEN), 0.2 * (0.6 * (7 / 8 + 71 / 73) / 2 + 0.4)),
        (AFTER_E4.replace("4P3/8", "4P3"), 0.2 * (0.6 * (7 / 8 + 62 / 71) / 2 + 0.4)),
        (AFTER_E4.replace("PPPP1PPP", NINE).replace(" 0 1", " 1 1"), 0.175667),
        (AFTER_E4.replace("PPPP1PPP/", "PPPP1PPP/8/"), 0.2 * (0.6 * (8 / 9 + 71 / 80) / 2 + 0.4)),
    ):
        score = environment(board + GOES_ON)
        others = {name: 0.0 for name in ENVIRONMENT_COMPONENTS if name != "state"}
        assert score == pytest.approx({**others, "state": state}, abs=1e-6)
        assert score["state"] < environment("8/8/8/8/8/8/8/8 w - e6 3 9+0.5+1+1")["state"]
        for shaping in get_args(composites.Shaping):
            assert composites.graduated(score, shaping) == pytest.approx(state - 0.3, abs=1e-6)


def test_wrong_answers_that_rookworld_lm_gave_differ(real_data: Path) -> None:
    lines = (real_data / "rookworld_lm_answers.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [row for row in map(json.loads, lines) if "expected_fen" in row]
    scores = [score_row(row["prompt"], row["completion"]) or {} for row in asked]
    right = [row["completion"].startswith(row["expected_fen"] + "+0.001+0+0") for row in asked]
    assert (len(asked), sum(right)) == (20, 13)
    assert [score["exact"] == 1 for score in scores] == right
    assert [score["position"] == 1 for score in scores] == right
    wrong = [score for score, is_right in zip(scores, right, strict=True) if not is_right]
    for numbers in ([s["state"] for s in wrong], list(map(composites.graduated, wrong))):
        # Alike are nine squares in one rank (three answers), and in a rank beside a missing pawn (two).
        assert len({round(number, 6) for number in numbers}) == 4
        assert max(numbers) - min(numbers) > 0.04
    assert all(0 < score["state"] < 0.2 for score in wrong)


def test_position_is_the_first_four_fields_whatever_follows() -> None:
    assert environment(AFTER_E4 + GOES_ON) == dict.fromkeys(ENVIRONMENT_COMPONENTS, 1.0)
    elsewhere = AFTER_E4.replace(" 0 1", " 3 9") + "+?"
    for right in (AFTER_E4 + GOES_ON, AFTER_E4, f"A: {AFTER_E4}\n and more", elsewhere):
        assert environment(right)["position"] == 1
    for wrong in (AFTER_E4.replace(" - ", " e3 ") + GOES_ON, START + GOES_ON, ""):
        assert environment(wrong)["position"] == 0


def test_win_probability_and_move_accuracy() -> None:
    for cp, probability in (
        (0, 0.5),
        (50, 0.545896),  # 1 / (1 + exp(-0.184104)) = 1 / 1.831849
        (100, 0.591026),  # 1 / (1 + exp(-0.368208)) = 1 / 1.691973
        (300, 0.751126),  # 1 / (1 + exp(-1.104624)) = 1 / 1.331335
        (1000, 0.975447),  # 1 / (1 + exp(-3.68208)) = 1 / 1.025170
        *((99_999, 1.0), (1e300, 1.0)),
    ):
        assert policy.win_probability(cp) == pytest.approx(probability, abs=1e-6)
        assert policy.win_probability(-cp) == pytest.approx(1 - probability, abs=1e-6)
    for loss, accuracy in (
        *((0.0, 1.0), (-0.1, 1.0)),  # better than the best: values of two searches may cross
        (0.05, 0.798153),
        (0.1, 0.635798),  # 103.16681 exp(-0.435442) - 3.16692 = 103.16681 * 0.646979 - 3.16692
        (0.2, 0.400168),  # 103.16681 exp(-0.870883) - 3.16692 = 103.16681 * 0.418582 - 3.16692
        (0.5, 0.085278),  # 103.16681 exp(-2.177208) - 3.16692 = 103.16681 * 0.113358 - 3.16692
        *((0.9, 0.0), (1.0, 0.0)),  # 103.16681 * 0.019865 - 3.16692 is negative
    ):
        assert policy.move_accuracy(loss) == pytest.approx(accuracy, abs=1e-6)


def test_quality_regret_and_rank_of_the_best_move() -> None:
    for best, quality, regret, rank in (
        ("g2g4", 1.0, 1.0, 1.0),
        ("f2f4", 1.0, 1.0, 1.0),  # as good as the other
        # Loses 0.591026 - 0.545896 = 0.045129; two of seven are better.
        ("h2h4", 0.815940, 0.954871, 5 / 7),
        # Loses 0.091026; shares the fourth place with two others.
        ("h1g1", 0.662397, 0.908974, 4 / 7),
        ("h2h3", 0.200871, 0.657849, 1 / 7),  # loses 0.342151; the worst, yet legal
        ("h1h2", 0.0, 0.0, 0.0),  # illegal
    ):
        score = analysis(f"M: g2g4 E: 1.0 B: {best}")
        assert score["best_move"] == pytest.approx(quality, abs=1e-6)
        assert score["best_move_hit"] == float(quality == 1)
        assert score["regret"] == pytest.approx(regret, abs=1e-6)
        assert score["rank"] == pytest.approx(rank)


def test_components_of_a_policy_answer() -> None:
    for component, completion, value in (
        # Of the top five, where three moves share the fourth to sixth place.
        ("candidates", "M: g2g4 f2f4 h2h4 h1g1 g2g3 E: 0.0 B: g2g4", 1.0),
        ("candidates", "M: g2g4 f2f4 h2h4 h1g1 f2f3 E: 0.0 B: g2g4", 1.0),
        ("candidates", "M: h1g1 f2f3 g2g3 E: 0.0 B: g2g4", 0.6),
        ("candidates", "M: g2g4 g2g4 g2g4 E: 0.0 B: g2g4", 0.2),  # once
        ("candidates", "M: g2g4 h2h3 a1a8 E: 0.0 B: g2g4", 0.2),
        ("candidates", "M: h2h3 E: 0.0 B: g2g4", 0.0),
        ("evaluation", "M: g2g4 h2h4 E: 1.0 0.5 B: g2g4", 1.0),
        # One pawn off: 0.5 / 2 + 0.5 (1 - (0.676212 - 0.591026)) = 0.707407.
        ("evaluation", "M: g2g4 E: 2.0 B: g2g4", 0.707407),
        # Another's view: two pawns off, 0.5 / 3 + 0.5 (1 - (0.591026 - 0.408974)).
        ("evaluation", "M: g2g4 E: -1.0 B: g2g4", 0.575641),
        # Centipawns instead of pawns: 0.5 / 100 + 0.5 (1 - (1 - 0.591026)).
        ("evaluation", "M: g2g4 E: 100 B: g2g4", 0.300513),
        ("evaluation", "M: g2g4 a1a8 E: 1.0 1.0 B: g2g4", 0.5),  # an illegal move gives 0
        ("evaluation", "M: g2g4 h2h4 E: 1.0 B: g2g4", 0.5),  # a move without evaluation gives 0
        ("evaluation", "M: g2g4 E: 1.0 0.5 B: g2g4", 0.5),  # an evaluation without move gives 0
        ("evaluation", "M: a1a8 E: 0.0 B: g2g4", 0.0),
        ("consistency", "M: h2h3 g2g4 E: 0.5 0.1 B: h2h3", 1.0),  # if wrong
        ("consistency", "M: g2g4 f2f4 E: 0.5 0.5 B: f2f4", 1.0),  # one of two highest
        ("consistency", "M: g2g4 f2f4 E: 0.1 0.5 B: g2g4", 0.75),  # B is not the highest
        ("consistency", "M: g2g4 f2f4 E: 0.1 0.5 B: h2h4", 0.5),  # nor in M
        ("consistency", "M: g2g4 f2f4 E: 0.5 B: g2g4", 0.75),  # E is short
        ("consistency", "M: g2g4 f2f4 E: 0.5 B: f2f4", 0.5),  # E is short, and lacks B's
        ("consistency", "M: g2g4 g2g4 E: 0.5 0.1 B: g2g4", 0.75),  # a move twice
        ("consistency", "M: a1a8 a1a8 E: 0.5 B: g2g4", 0.0),
    ):
        assert analysis(completion)[component] == pytest.approx(value, abs=1e-6), completion


def test_the_reference_is_the_engines_top_five_with_the_right_best_move() -> None:
    answer = policy.policy_reference(PAWNS, PAWN_VALUES)
    assert answer.best_move == "f2f4"
    moves = dict(zip(answer.moves, answer.evaluations, strict=True))
    assert moves == {"f2f4": 1.0, "g2g4": 1.0, "h2h4": 0.5, "f2f3": 0.0, "g2g3": 0.0}
    assert answer == policy.policy_reference(PAWNS, PAWN_VALUES)
    score = analysis(policy.write_policy_answer(answer))
    assert score["expected_score"] == pytest.approx(0.5910, abs=1e-4), "Lichess's of 100 centipawns"
    assert {**score, "expected_score": 1} == dict.fromkeys(policy.POLICY_COMPONENTS, 1.0)
