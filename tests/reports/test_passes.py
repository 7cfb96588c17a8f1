"""Curves of pass@k in the report: where they lie, whose they are, and how they look."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from rookworld_rlvr.evaluation.pass_at_k import RightCounts, write_counts
from rookworld_rlvr.reports.run import page, read_runs
from rookworld_rlvr.reports.run.page import passes
from rookworld_rlvr.reports.run.record import RunRecord

BEFORE = RightCounts(64, [0, 1, 3, 60] * 25, [0, 0, 0, 1] * 25)
AFTER = RightCounts(64, [0, 9, 30, 64] * 25, [0, 0, 1, 1] * 25)
TASKS = ("environment", "policy", "fill_in")


def record(name: str, before: RightCounts = BEFORE, after: RightCounts = AFTER) -> RunRecord:
    sides = {"before": before, "after": after}
    return RunRecord(
        name, {}, right={when: dict.fromkeys(TASKS, found) for when, found in sides.items()}
    )


def test_doublings_of_k_take_the_same_room() -> None:
    run = record("run")
    run.right = {"after": {"policy": RightCounts(5, [0, 5], [0, 1])}}
    drawn = str(passes([run]))
    (path,) = re.findall(r'<polyline[^>]* points="([^"]*)"', drawn)
    x = [float(point.split(",")[0]) for point in path.split()]
    steps = [right - left for left, right in itertools.pairwise(x)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)
    assert re.findall(r'text-anchor="(?:start|middle|end)">k (\d+)</text>', drawn) == list("1245")
    (ring,) = re.findall(r'ring" cx="([^"]*)"', drawn)
    assert float(ring) == x[0]
    assert "<title>after, greedy: 50%</title>" in drawn and "after, k 4: 50%" in drawn


def test_before_is_drawn_against_after_with_intervals() -> None:
    drawn = str(passes([record("run")]))
    assert drawn.count("<polyline") == drawn.count('class="band') == 6, "two lines a task"
    assert re.findall(r"</svg>(before|after)</li>", drawn) == ["before", "after"] * 3
    found = BEFORE.compare(AFTER)["pass@64"]
    low, high = (100 * number for number in (found.low, found.high))
    assert found.difference == 0 and f"<b>+0.0</b> <small>[{low:+.1f}, {high:+.1f}]" in drawn
    assert "fill_in: 100 held-out rows, 64 samples each" in drawn


def test_a_run_that_has_not_finished_shows_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "resolved_config.yaml").write_text("seed: 0\n")
    write_counts(folder / "heldout_pass.json", {}, {"before": {"policy": BEFORE}})
    drawn = page(read_runs([str(folder)]))
    assert "policy: 100 held-out rows" in drawn
    part = drawn[drawn.index('<section id="passes">') :]
    assert part.count("<polyline") == 1
    (folder / "heldout_pass.json").write_text(json.dumps({"before": 3}))
    (run,) = read_runs([str(folder)])
    assert any("heldout_pass.json could not be read" in line for line in run.missing)
