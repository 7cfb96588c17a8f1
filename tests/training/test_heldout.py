import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.evaluation.models import LanguageModel
from rookworld_rlvr.evaluation.suites.environment import EnvironmentSuite
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.training import answering

from ..conftest import history, script

SMALL = """
    --max_rows 300 --synthetic_rows 100 --heldout_rows 12 --max_steps 2 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1 --max_completion_length 32
    --use_cpu --report_to none --output_dir run
""".split()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of prompts in each call of the decoder for an evaluation."""
    counts: list[int] = []

    def counted(network: Any, tokenizer: Any, prompts: Any, **options: Any) -> list[str]:
        counts.append(len(prompts))
        return complete(network, tokenizer, prompts, **options)

    monkeypatch.setattr(answering, "complete", counted)
    return counts


METRIC = "suites/environment/exact"


@pytest.mark.parametrize("keeps_best", [True, False])
def test_a_suite_chooses_the_checkpoint_and_final_weights_are_not_measured_again(
    keeps_best: bool, asked: list[int], tokenizer: Any, build: Callable[..., Any]
) -> None:
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
    trainer.heldout.suites = [suite]
    trainer.train()
    logs = {log["step"]: log for log in trainer.state.log_history if "eval_overall" in log}
    exact = {step: log[f"eval_{METRIC}"] for step, log in logs.items()}
    assert list(exact) == [0, 1, 2, 3] and exact.pop(0) == before.value > 0
    assert min(exact.values()) < max(exact.values()), exact
    calls = list(asked)
    step = trainer.heldout.run_final()
    assert asked == calls, "nothing was decoded"
    if keeps_best:
        assert trainer.state.best_metric == exact[step] == max(exact.values())
    assert step == (trainer.state.best_global_step if keeps_best else 3)
    first, last = trainer.heldout.suites_before, trainer.heldout.suite_results
    assert first["environment"].metrics()["exact"] == before
    assert last["environment"].metrics()["exact"].value == exact[step]

    def outcome() -> list[Any]:
        suites = {name: suite.metrics() for name, suite in trainer.heldout.suite_results.items()}
        return [trainer.heldout.results, trainer.heldout.completions, suites]

    restored = outcome()
    again = trainer.heldout.run(trainer.eval_dataset, "eval")
    assert again["eval_overall"] == logs[step]["eval_overall"]
    assert restored == outcome()
    overall = [log["eval_overall"] for log in logs.values()]
    assert min(overall) < max(overall)


def test_the_best_checkpoint_is_measured_once_and_not_again_by_a_resumed_run(
    tmp_path: Path, asked: list[int]
) -> None:
    done = script("grpo.py", *SMALL, cwd=tmp_path)
    assert len(asked) == 3, "before training, in the middle and at the end"
    assert done.stdout.count("held-out  overall") == 3, "the final measurement not again"
    whole, run = tmp_path / "whole", tmp_path / "run"
    measured = {log["step"]: log["eval_overall"] for log in evaluations(run)}
    best = max((1, 2), key=lambda step: (measured[step], -step))  # the earlier one of equals
    assert f"model: run (step {best} of 2)" in done.stdout
    assert json.loads((run / "results.json").read_text())["best_step"] == best

    shutil.copytree(run, whole)
    shutil.rmtree(run / "checkpoint-2")
    for name in ("results.json", "trainer_state.json", "heldout_answers_after.jsonl", "README.md"):
        (run / name).unlink()
    asked.clear()
    done = script("grpo.py", *SMALL, "--resume_from_checkpoint", "true", cwd=tmp_path)
    assert "step     1  held-out" not in done.stdout
    assert len(asked) == (2 if best == 1 else 1), "step 2; step 1 was measured by another process"
    assert evaluations(run) == evaluations(whole)
    for name in ("heldout_answers_before.jsonl", "heldout_answers_after.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    one, other = (
        json.loads((folder / "results.json").read_text())["heldout"] for folder in (run, whole)
    )
    assert one == other


def evaluations(folder: Path) -> list[dict[str, float]]:
    """The held-out results in a run's log, without their seconds."""
    logs = history(folder)
    return [
        {name: log[name] for name in log if name != "eval_runtime" and not name.startswith("time/")}
        for log in logs
        if "eval_overall" in log
    ]
