"""pass@k on held-out rows: what a run measures, keeps and shows, and that it trains as without it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.evaluation.pass_at_k import read_counts
from rookworld_rlvr.reports.page import page
from rookworld_rlvr.reports.record import read_runs
from rookworld_rlvr.training import measurements
from rookworld_rlvr.training.measurements import evenly, sample_heldout

from ..conftest import history, script

SMALL = """
    --heldout_rows 8 --max_steps 2 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 16 --num_generations 4 --logging_steps 1
    --max_completion_length 64 --use_cpu --report_to none --output_dir run
""".split()
PASS = ["--pass_samples", "4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `plain/run` and `passes/run`: the same run without pass@k and with it."""
    folder = tmp_path_factory.mktemp("passes")
    for name, words in (("plain", []), ("passes", PASS)):
        (folder / name).mkdir()
        done = script("grpo.py", *SMALL, *words, cwd=folder / name)
        (folder / name / "stdout").write_text(done.stdout)
    return folder


def test_a_run_with_pass_at_k_trains_as_one_without(runs: Path) -> None:
    plain, passes = runs / "plain" / "run", runs / "passes" / "run"
    for name in ("model.safetensors", "checkpoint-2/model.safetensors", "heldout_before.json"):
        assert (plain / name).read_bytes() == (passes / name).read_bytes(), name
    losses = [[log["loss"] for log in history(run) if "loss" in log] for run in (plain, passes)]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    assert not (plain / "heldout_pass.json").exists()
    assert not any("pass" in name for log in history(plain) for name in log)


def test_a_run_keeps_its_curves(runs: Path) -> None:
    run = runs / "passes" / "run"
    curves = json.loads((run / "results.json").read_text())["pass"]
    settings, measured = read_counts(run / "heldout_pass.json")
    assert settings["pass_samples"] == 4 and settings["temperature"] == 1.0
    assert set(curves) == set(measured["before"]) == {"environment", "policy"}
    start, end = (log for log in history(run) if "eval_pass/environment/pass@4" in log)
    assert (start["step"], end["step"]) == (0, 2), "not at each evaluation"
    for task, entry in curves.items():
        assert (entry["prompts"], entry["samples"]) == (8, 4)
        for when in ("before", "after"):
            counts = measured[when][task]
            names = ["greedy", "pass@1", "pass@2", "pass@4", "majority@4"]
            assert list(entry[when]) == names
            assert entry[when]["pass@1"]["value"] == pytest.approx(sum(counts.right) / 32)
            assert entry[when]["pass@4"]["value"] == sum(map(bool, counts.right)) / 8
        assert start[f"eval_pass/{task}/pass@4"] == entry["before"]["pass@4"]["value"]
        assert end[f"eval_pass/{task}/pass@4"] == entry["after"]["pass@4"]["value"]
    assert any(0 < count < 4 for count in measured["before"]["environment"].right)
    printed = (runs / "passes" / "stdout").read_text()
    before, after = (curves["environment"][when]["pass@4"]["value"] for when in ("before", "after"))
    assert f"pass@4 {before:.1%} -> {after:.1%} (" in printed
    answers = map(json.loads, (run / "heldout_answers_before.jsonl").read_text().splitlines())
    scores = [one["score"]["exact"] for one in answers if one["task"] == "environment"]
    chosen = [scores[place] for place in evenly(range(len(scores)), 8)]
    assert measured["before"]["environment"].greedy == chosen, "of the same rows"
    drawn = page(read_runs([str(run)]))
    section = drawn[drawn.index('<section id="passes">') : drawn.index('<section id="errors">')]
    assert "environment: 8 held-out rows, 4 samples each" in section


@pytest.mark.slow
def test_a_resumed_run_does_not_measure_its_start_again(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(trainer: Any, *args: Any) -> Any:
        calls.append(trainer.state.global_step)
        return sample_heldout(trainer, *args)

    monkeypatch.setattr(measurements, "sample_heldout", counted)
    shutil.copytree(runs / "passes" / "run", tmp_path / "run")
    whole = runs / "passes" / "run"
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    for name in ("results.json", "trainer_state.json"):
        (tmp_path / "run" / name).unlink()
    resume = [*SMALL, "--resume_from_checkpoint", "true"]
    script("grpo.py", *resume, *PASS, cwd=tmp_path)
    assert calls == [2], "only the final weights"
    found, expected = (read_counts(run / "heldout_pass.json") for run in (tmp_path / "run", whole))
    assert found == expected
    weights = [run / "model.safetensors" for run in (tmp_path / "run", whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
