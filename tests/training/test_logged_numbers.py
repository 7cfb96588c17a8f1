"""What a step logs is what its micro-batches give when they are put together and computed again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.part import whole

from ..conftest import NOT_KEPT


def every_other_group(prompts: list[str], **_: Any) -> list[float]:
    """Of each second group of four, all completions have the same reward."""
    return [float(i % 2) if i // 4 % 2 else 0.3 for i in range(len(prompts))]


def watch(trainer: Any) -> dict[int, list[tuple[Any, Any, Any]]]:
    """By step, its micro-batches as they are trained on, with their log-probs and entropies."""
    seen: dict[int, list[tuple[Any, Any, Any]]] = {}
    loss = trainer.loss

    def noted(model: Any, inputs: Any) -> Any:
        with torch.no_grad():
            scores = trainer.log_probs(trainer.model, *whole(inputs), compute_entropy=True)
        step = seen.setdefault(trainer.state.global_step + 1, [])
        step.append((inputs, scores.logps, scores.entropies))
        return loss(model, inputs)

    trainer.loss = noted
    return seen


FOUR = {"beta": 0.1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    "options",
    [
        FOUR,
        {**FOUR, "zero_variance": "skip"},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2},
    ],
    ids=["groups without signal", "empty micro-batches", "rows left out"],
)
def test_a_step_s_means_are_over_all_of_its_tokens(
    build: Callable[..., Any], start: str, options: dict[str, Any]
) -> None:
    trainer = build(
        loading.load_model(start),
        reward_funcs=[every_other_group],
        **{**NOT_KEPT, "max_steps": 3, "learning_rate": 1e-2, "preflight": False, **options},
    )
    steps = watch(trainer)
    trainer.train()
    logs = {log["step"]: log for log in trainer.state.log_history if "loss" in log}
    assert logs.keys() == steps.keys() == {1, 2, 3}
    for step, batches in steps.items():
        sums = dict.fromkeys(("tokens", "kl", "logp", "entropy", "ours", "theirs"), 0.0)
        trained = []
        for inputs, logps, entropies in batches:
            mask, pulls = inputs["completion_mask"], inputs["advantages"].unsqueeze(1)
            trained += inputs["advantages"][mask.any(1)].tolist()
            scored = mask if "beta" in options else mask * (pulls != 0)
            sums["tokens"] += scored.sum().item()
            sums["logp"] += (logps * scored).sum().item()
            sums["entropy"] += (entropies * scored).sum().item()
            sums["theirs"] += (pulls.abs() * mask).sum().item()
            if "beta" in options:
                gap = inputs["ref_per_token_logps"] - logps
                kl = ((gap.exp() - gap - 1) * mask).sum().item()
                sums["kl"] += kl
                sums["ours"] += 0.1 * kl
        log = logs[step]
        assert log["mean_logp"] == pytest.approx(sums["logp"] / sums["tokens"], rel=1e-4)
        assert log["entropy"] == pytest.approx(sums["entropy"] / sums["tokens"], rel=1e-4)
        assert log["mean_advantage"] == pytest.approx(sum(trained) / len(trained), abs=1e-6)
        if "beta" in options:
            share = sums["ours"] / (sums["ours"] + sums["theirs"])
            assert log["kl"] == pytest.approx(sums["kl"] / sums["tokens"], rel=1e-3, abs=1e-7)
            assert log["kl/share_of_loss"] == pytest.approx(share, rel=1e-3, abs=1e-7)
        assert log.get("frac_reward_zero_std", 0.5) == 0.5, "of a step that samples"
        assert log["loss"] == pytest.approx(
            sum(value for name, value in log.items() if name.startswith("loss/")), abs=1e-6
        )
    if options.get("zero_variance") == "skip":
        assert logs[1]["health/advantage_std"] == pytest.approx(torch.tensor(trained).std().item())


def test_groups_without_signal_are_counted_whatever_the_advantages_are_divided_by(
    build: Callable[..., Any],
) -> None:
    trainer = build(
        reward_funcs=[every_other_group],
        **{**NOT_KEPT, "scale_rewards": "batch", "preflight": False},
    )
    trainer.train()
    (log,) = [log for log in trainer.state.log_history if "loss" in log]
    assert log["frac_reward_zero_std"] == 0.5


def test_the_loss_of_a_resumed_run_is_that_of_its_own_steps(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    options = {"max_steps": 4, "save_steps": 3, "save_strategy": "steps", "preflight": False}
    options = {**NOT_KEPT, **options, "learning_rate": 1e-2, "entropy_coef": 0.1}
    each = build(**options)
    each.train()
    losses = [log["loss"] for log in each.state.log_history if "loss" in log]
    options |= {"logging_steps": 2, "output_dir": str(tmp_path / "other")}
    build(**options).train()
    resumed = build(**options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-3"))
    assert resumed.state.log_history[-1]["train_loss"] == pytest.approx(losses[3], abs=1e-6)
    assert abs(losses[2]) > 1e-4


def never(prompts: list[str], **_: Any) -> list[float]:
    """0; its largest value, of an answer that did not come, may be any number."""
    return [0.0] * len(prompts)


def test_a_reward_of_one_s_own_that_was_always_0_has_no_interval(build: Callable[..., Any]) -> None:
    trainer = build(reward_funcs=[never], **NOT_KEPT)
    trainer.evaluate()
    found = trainer.heldout.results["rewards/never"]
    assert found.value == 0 and found.n == 16
    assert all(map(math.isnan, found.interval))
