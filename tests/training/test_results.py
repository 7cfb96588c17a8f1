import json
import math
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.common.stats import Estimate, estimate, proportion
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.tasks.metrics import compare, evaluate_completions, headline, limits, metrics
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.results import before_after_table, heldout_results, write_results


def test_references_are_right_and_those_of_other_rows_wrong(packaged: LoadedData) -> None:
    rows = packaged.heldout
    texts = [TASKS[row["task"]].reference(row) for row in rows]
    right = evaluate_completions(rows, texts)
    tasks = set(rows["task"])
    assert set(right) == {name for name, (task, _) in metrics().items() if task.name in tasks}
    assert tasks == {"environment", "policy"}
    low, best = limits(rows)["policy/expected_score"]
    assert right["policy/expected_score"].value == pytest.approx(best) and 0 < low < best < 1
    assert {found.value for name, found in right.items() if "score" not in name} == {1.0}
    turns = [row["fen"].split()[1] for row in rows if row["task"] == "policy"]
    for side in ("white", "black"):
        assert right[f"policy/best_move_{side}"].n == turns.count(side[0])
    answers = list(zip(rows["task"], texts, strict=True))
    elsewhere = [
        next(text for other, text in answers if other == task and text != own)
        for task, own in answers
    ]
    wrong = evaluate_completions(rows, elsewhere)
    assert wrong["environment/exact"].value == 0
    assert wrong["policy/best_move"].value < 0.1
    assert wrong["policy/format"].value == 1


def test_the_table_of_a_run() -> None:
    before, after = ({"environment/exact": proportion(right, 100)} for right in (50, 75))
    table = before_after_table(before, after)
    (row,) = (line for line in table.splitlines() if line.startswith("environment/exact  "))
    assert row.split()[1:5] == ["100", "50.0%", "75.0%", "+25.0"]
    assert row.endswith("[40.4, 59.6]  [65.7, 82.5]")
    others = {f"other/policy/best_move_{side}": proportion(9, 10) for side in ("white", "black")}
    long = before_after_table({**before, **others}, {**after, **others})
    assert all(len(line) <= 80 for line in [*table.splitlines(), *long.splitlines()])
    assert "other/policy/best_move_white\n" in long
    assert headline({**after, "policy/expected_score": proportion(1, 4)}) == 0.5
    assert table.endswith("\nenvironment/exact rose by 25.0 points."), "not compared row by row"
    # Of the same rows, six that become right and none that becomes wrong are no chance, one is.
    rows = [{"task": "environment", "fen": chess.STARTING_FEN}] * 40
    for gained, is_tie in ((6, False), (1, True), (0, True)):
        counts = (14, 14 + gained)
        pairs = compare(rows, *([{"exact": float(i < n)} for i in range(40)] for n in counts))
        share, then = ({"environment/exact": proportion(n, 40)} for n in counts)
        said = " ".join(before_after_table(share, then, pairs, kept="The last is kept").split())
        assert ("is a tie" in said) is is_tie, gained
        assert is_tie or said.endswith(
            "The last is kept: environment/exact rose by 15.0 points (95% interval [+1.8, +26.8])."
        )
    assert "(95% interval [-6.6, +6.6], p = 1)." in " ".join(said.split())
    worse = " ".join(before_after_table(after, before).split())
    assert "The saved model is no better than the starting" in worse


def test_the_mean_of_an_own_reward_is_in_its_own_unit_and_read_again(tmp_path: Path) -> None:
    share = {"environment/exact": proportion(5, 10)}
    before = {**share, "rewards/short": Estimate(-2.5, -3.0, -2.0, 10)}
    better = Estimate(-1.25, -2.0, -0.5, 10)
    after = {**share, "rewards/short": better, "rewards/new": before["rewards/short"]}
    (row,) = (line for line in before_after_table(before, after).splitlines() if "rewards/" in line)
    assert row.split()[1:5] == ["10", "-2.500", "-1.250", "+1.250"]
    assert row.endswith("[-3.000, -2.000] [-2.000, -0.500]")
    write_results(tmp_path / "r.json", {"before": before, "after": after}, steps=3)
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["steps"] == 3
    assert heldout_results(content, "before") == before
    assert heldout_results(content, "after") == {name: after[name] for name in before}
    # One that is always the same has no interval, which JSON has no number for.
    same = {**share, "rewards/penalty": estimate("amount", [-1.0] * 40)}
    assert "no interval" in before_after_table(same, same)
    write_results(tmp_path / "r.json", {"before": same})
    text = (tmp_path / "r.json").read_text()
    assert "NaN" not in text
    found = heldout_results(json.loads(text), "before")["rewards/penalty"]
    assert found.value == -1 and found.n == 40 and math.isnan(found.interval[0])
