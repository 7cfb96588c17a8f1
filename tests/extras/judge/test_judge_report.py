"""What is reported of a judge: golden numbers by hand, and the recipe run small."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.extras.judge.pairs import PAIR_SHARES, make_pairs
from rookworld_rlvr.extras.judge.report import judge_report, pair_accuracy, report_text
from rookworld_rlvr.extras.judge.reward import Judge, JudgeSpec, load_judge

from ...support import RECIPES, recipe, tiny_judge
from ...training.test_cards import card_of, printed_by


def test_accuracy_counts_kinds_and_no_ties() -> None:
    found = pair_accuracy([("piece", 1.0), ("piece", -1.0), ("flags", 0.0), ("flags", 2.0)])
    assert (found["accuracy"], found["n"], found["ties"]) == (0.5, 4, 1)
    assert found["by_kind"]["flags"]["accuracy"] == 0.5
    # Wilson's interval of 2 in 4.
    assert (found["low"], found["high"]) == pytest.approx((0.1500, 0.8500), abs=1e-4)


def test_a_report_leaves_out_pairs_that_are_too_long(packaged: LoadedData, tokenizer: Any) -> None:
    pairs = make_pairs(packaged.heldout, 30, PAIR_SHARES, seed=0)
    texts = ([pair.prompt + pair.chosen, pair.prompt + pair.rejected] for pair in pairs)
    lengths = sorted(max(map(len, tokenizer(both)["input_ids"])) for both in texts)

    def report_of(n_positions: int) -> dict[str, Any]:
        return judge_report(Judge(tiny_judge(tokenizer, n_positions=n_positions), tokenizer), pairs)

    text = report_text(report_of(256))
    assert "| all | 30 |" in text and "Left out" not in text
    limit = lengths[19] + 1  # the end token
    kept = sum(length < limit for length in lengths)
    report = report_of(limit)
    assert report["pairs"]["n"] == kept < 30 and report["pairs"]["too_long"] == 30 - kept
    assert sum(item["n"] for item in report["pairs"]["by_kind"].values()) == kept
    text = report_text(report)
    assert f"| all | {kept} |" in text and f"positions: {30 - kept} pairs." in text
    with pytest.raises(RookWorldError, match=f"all 30 held-out pairs .* the {lengths[0]} tokens"):
        report_of(lengths[0])


SMALL = """
    --model_name_or_path rookworld-nano --synthetic_rows 40 --max_rows 200
    --heldout_rows 20 --train_pairs 80 --heldout_pairs 20
    --max_steps 1 --per_device_train_batch_size 8
    --logging_steps 1 --use_cpu --report_to none --output_dir judge
""".split()


@pytest.mark.parametrize("name", ["judge_nano", "judge_fill_in"])
def test_a_recipe_trains_a_judge(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    recipe("judge").main(["--config", str(RECIPES / f"{name}.yaml"), *SMALL])
    report = json.loads(Path("judge/judge_report.json").read_text())
    assert report["pairs"]["n"] == 20 and "| all | 20 |" in capsys.readouterr().out
    card, pairs = card_of(tmp_path / "judge"), report["pairs"]
    assert all(words in card.content for words in ("train_pairs: 80", "| all | 20 |", "trl 1.16"))
    shown = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert shown.pop("pairs/all") == pairs["accuracy"]
    assert shown == {f"pairs/{kind}": one["accuracy"] for kind, one in pairs["by_kind"].items()}
    (printed,) = printed_by(card, tmp_path)
    assert math.isfinite(float(printed))
    (score,) = load_judge(JudgeSpec("judge", model="judge")).scores(["A: "], ["text"])
    assert score is not None and math.isfinite(score)


def test_faults_of_the_recipe_are_found_together() -> None:
    said = r"(?s)'train_pair'.*judge is trained without adapters"
    with pytest.raises(ConfigurationError, match=said):
        recipe("judge").main("--use_peft true --train_pair 3".split())
