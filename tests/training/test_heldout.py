"""What a run measures on held-out rows, and pass@k: once, kept, and without a trace in training."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.evaluation.models import LanguageModel
from rookworld_rlvr.evaluation.pass_at_k import read_counts
from rookworld_rlvr.evaluation.suites.environment import EnvironmentSuite
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import GREEDY, complete
from rookworld_rlvr.training import sampling
from rookworld_rlvr.training.measurements import evenly

from ..killed import differences, outcome
from ..support import history, script

SMALL = """
    --heldout_rows 8 --max_steps 2 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 16 --num_generations 4 --logging_steps 1
    --max_completion_length 64 --use_cpu --report_to none --output_dir run
""".split()


@contextlib.contextmanager
def decoded() -> Iterator[list[bool]]:
    """Whether each call of the decoder for an evaluation is greedy."""
    calls: list[bool] = []

    def noted(*args: Any, **options: Any) -> list[str]:
        calls.append(options["decoding"] == GREEDY)
        return complete(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "complete", noted)
        yield calls


METRIC = "suites/environment/exact"


@pytest.mark.parametrize("keeps_best", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_suite_chooses_the_checkpoint(keeps_best: bool, tokenizer: Any, build: Any) -> None:
    """A reward for nonsense drives the model down, so the best checkpoint is not the last one."""
    suite, model = EnvironmentSuite(16, 0), loading.load_model(loading.PACKAGED_MODEL)
    start = LanguageModel("nano", partial(complete, model, tokenizer, max_new_tokens=64))
    before = suite.run(start).metrics()["exact"]
    trainer = build(
        model,
        reward_funcs=[lambda completions, **_: [-float(len(set(text))) for text in completions]],
        max_completion_length=64,
        max_steps=3,
        learning_rate=1e-2,
        eval_steps=1,
        save_steps=1,
        save_total_limit=3,
        load_best_model_at_end=keeps_best,
        metric_for_best_model=METRIC,
    )
    heldout, trainer.heldout.suites = trainer.heldout, [suite]
    trainer.train()
    logs = {log["step"]: log for log in trainer.state.log_history if "eval_overall" in log}
    exact = {step: log[f"eval_{METRIC}"] for step, log in logs.items()}
    assert list(exact) == [0, 1, 2, 3] and exact.pop(0) == before.value > 0
    assert min(exact.values()) < max(exact.values()), exact
    with decoded() as calls:
        step = heldout.run_final()
    assert calls == [], "nothing was decoded"
    if keeps_best:
        assert trainer.state.best_metric == exact[step] == max(exact.values())
    assert step == (trainer.state.best_global_step if keeps_best else 3)
    last = heldout.suite_results["environment"].metrics()
    assert heldout.suites_before["environment"].metrics()["exact"] == before
    assert last["exact"].value == exact[step]

    restored = heldout.results, heldout.completions, last
    assert heldout.run(trainer.eval_dataset, "eval")["eval_overall"] == logs[step]["eval_overall"]
    found = heldout.suite_results["environment"].metrics()
    assert restored == (heldout.results, heldout.completions, found)
    assert len({log["eval_overall"] for log in logs.values()}) > 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bool]]:
    """The same run without pass@k and with it, `plain/run` and `passes/run`; how the latter decoded."""
    folder = tmp_path_factory.mktemp("passes")
    for name, samples in (("plain", "0"), ("passes", "4")):
        (folder / name).mkdir()
        with decoded() as calls:
            done = script("grpo.py", *SMALL, "--pass_samples", samples, cwd=folder / name)
        (folder / name / "stdout").write_text(done.stdout)
    return folder, calls


def test_a_resumed_run_measures_nothing_anew(runs: tuple[Path, list[bool]], tmp_path: Path) -> None:
    folder, calls = runs
    printed, run = (folder / "passes" / "stdout").read_text(), tmp_path / "run"
    assert sum(calls) == 3, "before training, in the middle and at the end"
    assert printed.count("held-out  overall") == 3, "the final measurement not again"
    shutil.copytree(folder / "passes" / "run", run)
    measured = {log["step"]: log["eval_overall"] for log in history(run) if "eval_overall" in log}
    best = max((1, 2), key=lambda step: (measured[step], -step))  # the earlier one of equals
    assert f"model: run (step {best} of 2)" in printed
    assert json.loads((run / "results.json").read_text())["best_step"] == best

    whole, counts = outcome(run), (run / "heldout_pass.json").read_bytes()
    shutil.rmtree(run / "checkpoint-2")
    for name in ("results.json", "trainer_state.json", "heldout_answers_after.jsonl", "README.md"):
        (run / name).unlink()
    words = "--pass_samples 4 --resume_from_checkpoint true".split()
    with decoded() as again:
        done = script("grpo.py", *SMALL, *words, cwd=tmp_path)
    assert "step     1  held-out" not in done.stdout
    assert sum(again) == (2 if best == 1 else 1), "step 2; step 1 was measured by another process"
    assert again.count(False) == calls.count(False) / 2 > 0, "only the final weights"
    assert differences(outcome(run), whole) == []
    assert (run / "heldout_pass.json").read_bytes() == counts


def test_a_run_with_pass_at_k_trains_as_one_without(runs: tuple[Path, list[bool]]) -> None:
    plain, passes = (runs[0] / name / "run" for name in ("plain", "passes"))
    for name in ("model.safetensors", "checkpoint-2/model.safetensors", "heldout_before.json"):
        assert (plain / name).read_bytes() == (passes / name).read_bytes(), name
    losses = [[log["loss"] for log in history(run) if "loss" in log] for run in (plain, passes)]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    assert not (plain / "heldout_pass.json").exists()
    assert not any("pass" in name for log in history(plain) for name in log)


def test_a_run_keeps_its_curves(runs: tuple[Path, list[bool]]) -> None:
    run = runs[0] / "passes" / "run"
    curves = json.loads((run / "results.json").read_text())["pass"]
    settings, measured = read_counts(run / "heldout_pass.json")
    assert settings["pass_samples"] == 4 and settings["temperature"] == 1.0
    assert set(curves) == set(measured["before"]) == {"environment", "policy"}
    start, end = (log for log in history(run) if "eval_pass/environment/pass@4" in log)
    assert (start["step"], end["step"]) == (0, 2), "not at each evaluation"
    for task, entry in curves.items():
        assert (entry["prompts"], entry["samples"]) == (8, 4)
        for when, log in (("before", start), ("after", end)):
            found, right = entry[when], measured[when][task].right
            assert list(found) == ["greedy", "pass@1", "pass@2", "pass@4", "majority@4"]
            assert found["pass@1"]["value"] == pytest.approx(sum(right) / 32)
            assert found["pass@4"]["value"] == sum(map(bool, right)) / 8
            assert log[f"eval_pass/{task}/pass@4"] == found["pass@4"]["value"]
    assert any(0 < count < 4 for count in measured["before"]["environment"].right)
    before, after = (curves["environment"][when]["pass@4"]["value"] for when in ("before", "after"))
    assert f"pass@4 {before:.1%} -> {after:.1%} (" in (run.parent / "stdout").read_text()
    answers = map(json.loads, (run / "heldout_answers_before.jsonl").read_text().splitlines())
    scores = [one["score"]["exact"] for one in answers if one["task"] == "environment"]
    chosen = [scores[place] for place in evenly(range(len(scores)), 8)]
    assert measured["before"]["environment"].greedy == chosen, "of the same rows"
