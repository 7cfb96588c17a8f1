"""pass@k by hand and against all subsets, its intervals, and suites that report it."""

import itertools
import json
from pathlib import Path

import pytest

from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.evaluation import pass_at_k as module
from rookworld_rlvr.evaluation.models import RandomMover
from rookworld_rlvr.evaluation.pass_at_k import RightCounts, majority, pass_at_k, pass_summary
from rookworld_rlvr.evaluation.results import ModelResults, results_text
from rookworld_rlvr.evaluation.suites.environment import FillInSuite
from rookworld_rlvr.evaluation.suites.policy import PolicySuite
from rookworld_rlvr.tasks.fill_in import FILL_IN
from rookworld_rlvr.tasks.policy import POLICY

from ..support import recipe


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample() -> None:
    for samples in range(1, 8):
        for right, k in itertools.product(range(samples + 1), range(1, samples + 1)):
            subsets = list(itertools.combinations([1] * right + [0] * (samples - right), k))
            found = pass_at_k(right, samples, k)
            assert found == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)
    product = 1.0  # Chen et al. multiply 1 - k / i over i = n - c + 1 ... n
    for i in range(64 - 3 + 1, 65):
        product *= 1 - 16 / i
    assert pass_at_k(3, 64, 16) == pytest.approx(1 - product, abs=1e-12)


def counts_of(prompts: int) -> RightCounts:
    """Prompts of different difficulty, with the same counts again every eight prompts."""
    right = [(0, 0, 1, 2, 4, 0, 7, 16)[prompt % 8] for prompt in range(prompts)]
    return RightCounts(16, right, [int(count > 6) for count in right])


def test_a_majority_of_analyses_is_one_of_their_moves() -> None:
    moves = ("e2e4", "d2d4", "d2d4", "e2e4", "g1f3")
    texts = [f" M: a2a3 {move} E: 0.1 0.{place} B: {move}" for place, move in enumerate(moves)]
    assert majority(texts, POLICY.vote) == texts[0], "of equals, the first"
    assert majority(texts[1:], POLICY.vote) == texts[1]
    assert majority([*texts, "d2d4", " B: d2d4"], POLICY.vote) == texts[1], "unreadable ones count"
    votes = RightCounts(4, [1, 4], [0, 1], [0, 1]).estimates()["majority@4"]
    assert votes.value == 0.5 and votes.interval == proportion(1, 2).interval


def test_counts_are_written_and_read(tmp_path: Path) -> None:
    measured = {"before": {"policy": counts_of(8)}, "after": {"policy": counts_of(8)}}
    path = tmp_path / "pass.json"
    module.write_counts(path, {"pass_samples": 16}, measured)
    assert module.read_counts(path) == ({"pass_samples": 16}, measured)
    told = pass_summary(measured)["policy"]
    assert (told["prompts"], told["samples"]) == (8, 16)
    assert told["before"]["pass@1"]["value"] == pytest.approx(30 / 8 / 16)
    assert told["change"]["pass@16"]["difference"] == 0
    assert "change" not in pass_summary({"after": measured["after"]})["policy"]
    for broken in ("{}", "[]", '{"settings": {}, "before": {"policy": {"samples": 4}}}'):
        path.write_text(broken)
        with pytest.raises(ValueError, match="hold"):
            module.read_counts(path)


def test_the_samples_of_a_suite_are_counted_item_by_item() -> None:
    suite = FillInSuite(24, 0)
    plain = suite.run(RandomMover())
    suite.pass_samples = 8
    found = suite.run(RandomMover())
    samples = RandomMover().samples(list(suite.items), 8)
    right = {
        item: sum(suite.judge(row, text)["exact"] for text in texts)
        for (item, row), texts in zip(suite.items.items(), samples, strict=True)
    }
    values = found.values
    assert values["pass@1"] == {item: count / 8 for item, count in right.items()}
    assert values["pass@8"] == {item: float(count > 0) for item, count in right.items()}
    assert sum(right.values()) > 0 and max(right.values()) < 8, "chance is right now and then"
    assert plain.values.items() <= values.items(), "the other metrics do not change"
    assert found.notes["pass_right"] == "exact" == FILL_IN.right_by
    assert found.notes["pass_samples"] == 8 and "pass_samples" not in plain.notes
    assert set(found.compare(found)) >= {"pass@1", "pass@8"}


def test_of_the_policy_suite_best_moves_count_and_not_its_headline() -> None:
    suite = PolicySuite(12, 0)
    suite.pass_samples = 4
    found = suite.run(RandomMover())
    assert suite.headline == "expected_score"
    assert found.notes["pass_right"] == "best_move" == POLICY.right_by
    samples = RandomMover().samples(suite.prompts(), 4)
    judged = zip(suite.items.items(), samples, strict=True)
    best = {n: any(suite.judge(i, text)["best_move"] for text in texts) for (n, i), texts in judged}
    assert found.values["pass@4"] == {name: float(hit) for name, hit in best.items()}
    assert 0 < sum(best.values()) < 12
    (text,) = (
        line
        for line in results_text([ModelResults("m", {"policy": found}, {})]).splitlines()
        if "@k" in line
    )
    assert text.startswith("  pass@k of best_move: 4 answers an item")


def test_evaluate_reports_pass_at_k_beside_the_greedy_numbers(tmp_path: Path, capsys) -> None:
    path = tmp_path / "results.json"
    words = f"--suites environment --suite_rows 16 --pass_samples 4 --output_file {path}"
    recipe("evaluate").main(words.split())
    said = capsys.readouterr().out
    assert "pass@4" in said and "pass@k of exact: 4 answers an item" in said
    sampled = json.loads(path.read_text())["suites"]["environment"]
    passes = [sampled["metrics"][f"pass@{k}"]["value"] for k in (1, 2, 4)]
    assert passes == sorted(passes) and passes[0] < passes[-1], "different answers were drawn"
    decoding = {"name": "sampled", "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    assert sampled["notes"]["pass_decoding"] == decoding
