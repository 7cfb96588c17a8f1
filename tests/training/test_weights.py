import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig, check_recipe
from rookworld_rlvr.training.health import HealthCallback

from ..support import ON_CPU

Build = Callable[..., Any]


def nonsense(completions: list[str], **_: Any) -> list[float]:
    """A reward that drives the model away from every right answer."""
    return [-float(len(set(text))) for text in completions]


STEPS: dict[str, Any] = {"reward_funcs": [nonsense], "max_steps": 2, "max_completion_length": 8}
STEPS |= {"learning_rate": 1e-3, "eval_steps": 1, "save_steps": 1}


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def exact(trainer: Any) -> dict[int, float]:
    key = "eval_environment/exact"
    return {log["step"]: log[key] for log in trainer.state.log_history if key in log}


def test_a_run_whose_checkpoints_all_break_the_guard_ends_with_the_start(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**STEPS, "learning_rate": 1e-2, "max_completion_length": 64}
    options["guard"] = {"environment/exact": 0.01}
    trainer = build(loading.load_model(loading.PACKAGED_MODEL), **options)
    trainer.add_callback(HealthCallback())
    trainer.train()
    found = exact(trainer)
    assert max(found[1], found[2]) < found[0] - 0.01
    assert same(weights(trainer), loading.load_model(loading.PACKAGED_MODEL).state_dict())
    assert trainer.heldout.run_final() == 0
    assert trainer.heldout.results["environment/exact"].value == found[0]
    (line,) = (text for text in capsys.readouterr().out.splitlines() if "guard: " in text)
    fallen = f"guard: environment/exact has fallen from {found[0]:.4g}"
    assert line.startswith(f"step     1  warning  {fallen}")


def test_a_run_goes_on_exactly_from_the_start_that_was_saved(
    build: Build, tmp_path: Path, random_gpt2: GPT2LMHeadModel
) -> None:
    """As after a kill before the first other checkpoint; a guard that holds changes nothing."""
    guarded = {**STEPS, "guard": {"environment/exact": 0.0}}
    unguarded = build(**STEPS)
    unguarded.train()
    whole = build(**guarded, save_total_limit=3)
    whole.train()
    assert same(weights(whole), weights(unguarded))
    assert not same(weights(whole), random_gpt2.state_dict())
    assert whole.heldout.run_final() == 1
    for step in (1, 2):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    resumed = build(**guarded)
    resumed.heldout.before = whole.heldout.before  # as `rookworld grpo` reads it from the folder
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-0"))
    assert same(weights(resumed), weights(whole))
    assert exact(resumed) == exact(whole) and len(exact(whole)) == 3
    assert resumed.heldout.run_final() == 1


def test_what_is_not_measured_cannot_be_guarded() -> None:
    guard = {"environment/exact": 0.01, "suites/environment/exact": 0.01}
    args = RookWorldGRPOConfig(rewards=["policy_best_move"], guard=guard, **ON_CPU)
    others = DataArguments(tasks=["policy"]), None, None, args
    task, suite = (f"guard: '{name}' is not measured" for name in guard)
    for suites, said in (([], [task, suite]), (["environment"], [task])):
        faults = check_recipe(None, *others, SuiteArguments(suites=suites))
        assert sorted(f.partition(";")[0] for f in faults if f.startswith("guard")) == said


def test_a_step_that_is_evaluated_but_not_saved_is_not_the_best(build: Build) -> None:
    """Its weights are gone, so the record would name a checkpoint that is not there."""
    options = {**STEPS, "max_steps": 5, "save_steps": 2}
    trainer = build(**options, metric_for_best_model="policy/format")
    values = iter([0.5, 0.9, 0.2, 0.8, 0.1, 0.3])  # of the start, and of five steps
    measure = trainer.heldout.evaluate
    trainer.heldout.evaluate = lambda *rows: measure(*rows) | {"eval_policy/format": next(values)}
    trainer.train()
    assert trainer.state.best_global_step == 5 and trainer.state.best_metric == 0.3
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-5")
    assert trainer.heldout.run_final() == 5


def test_what_is_evaluated_and_kept_lies_between_start_and_trained(
    build: Build, random_gpt2: GPT2LMHeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The trained weights are not set back to the best checkpoint's.
    options = {**STEPS, "learning_rate": 1e-2, "load_best_model_at_end": False}
    plain = build(**options)
    plain.train()
    trained = weights(plain)
    averaged, resumed = (build(start_share=0.25, **options) for _ in range(2))
    seen = []
    evaluate = averaged.heldout.evaluate

    def recorded(*arguments: Any) -> dict[str, float]:
        seen.append(weights(averaged))
        return evaluate(*arguments)

    monkeypatch.setattr(averaged.heldout, "evaluate", recorded)
    averaged.train()
    for name, start in random_gpt2.named_parameters():
        wanted = 0.25 * start + 0.75 * trained[name]
        torch.testing.assert_close(weights(averaged)[name], wanted)
        torch.testing.assert_close(seen[-1][name], wanted)
        assert torch.equal(seen[0][name], start)
    assert any(not torch.equal(trained[name], start) for name, start in seen[0].items())
    assert same(load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors"), trained)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert same(weights(resumed), weights(averaged))
