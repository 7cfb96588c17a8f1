"""What a step logs is what its micro-batches give when they are put together and computed again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.models import loading
from rookworld_rlvr.training.rollouts import whole
from rookworld_rlvr.training.scoring import Sequences

from ..support import NOT_KEPT

Build = Callable[..., Any]


def every_other_group(prompts: list[str], **_: Any) -> list[float]:
    """Of each second group of four, all completions have the same reward."""
    return [float(i % 2) if i // 4 % 2 else 0.3 for i in range(len(prompts))]


FOUR = {"beta": 0.1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    "options",
    [
        {**FOUR, "scale_rewards": "batch"},
        {**FOUR, "zero_variance": "skip"},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2},
    ],
    ids=["groups without signal", "empty micro-batches", "rows left out"],
)
def test_means_are_over_all_tokens_of_a_step(build: Build, start: str, options: Any) -> None:
    trainer = build(
        loading.load_model(start),
        reward_funcs=[every_other_group],
        **{**NOT_KEPT, "max_steps": 3, "learning_rate": 1e-2, "preflight": False, **options},
    )
    steps: dict[int, list[tuple[Any, Any, Any]]] = {}
    scores_of = trainer.scores_of

    def noted(model: Any, batch: Any) -> Any:
        with torch.no_grad():
            scores = trainer.score(trainer.model, Sequences(*whole(batch)), compute_entropy=True)
        step = steps.setdefault(trainer.state.global_step + 1, [])
        step.append((batch, scores.logps, scores.entropies))
        return scores_of(model, batch)

    trainer.scores_of = noted
    trainer.train()
    logs = {log["step"]: log for log in trainer.state.log_history if "loss" in log}
    assert logs.keys() == steps.keys() == {1, 2, 3}
    for step, batches in steps.items():
        sums = dict.fromkeys(("tokens", "kl", "logp", "entropy", "theirs"), 0.0)
        trained, by_trl = [], []  # by_trl: a mean of micro-batches
        for batch, logps, entropies in batches:
            mask, pulls = batch["completion_mask"], batch["advantages"].unsqueeze(1)
            trained += batch["advantages"][mask.any(1)].tolist()
            counted = (pulls != 0) | ("beta" in options)
            if not counted.any():  # the loss needs a graph
                counted[mask.sum(1).argmin()] = True
            scored = mask * counted
            sums["tokens"] += scored.sum().item()
            sums["logp"] += (logps * scored).sum().item()
            sums["entropy"] += (entropies * scored).sum().item()
            by_trl.append((entropies * scored).sum().item() / max(1, scored.sum().item()))
            sums["theirs"] += (pulls.abs() * mask).sum().item()
            if "beta" in options:
                gap = batch["ref_per_token_logps"] - logps
                sums["kl"] += ((gap.exp() - gap - 1) * mask).sum().item()
        log = logs[step]
        assert log["mean_logp"] == pytest.approx(sums["logp"] / sums["tokens"], rel=1e-4)
        assert log["mean_entropy"] == pytest.approx(sums["entropy"] / sums["tokens"], rel=1e-4)
        assert log["entropy"] == pytest.approx(sum(by_trl) / len(by_trl), rel=1e-4)
        assert log["mean_advantage"] == pytest.approx(sum(trained) / len(trained), abs=1e-6)
        if "beta" in options:
            share = 0.1 * sums["kl"] / (0.1 * sums["kl"] + sums["theirs"])
            assert log["kl"] == pytest.approx(sums["kl"] / sums["tokens"], rel=1e-3, abs=1e-7)
            assert log["kl/share_of_loss"] == pytest.approx(share, rel=1e-3, abs=1e-7)
        assert log.get("zero_variance/sampled", 0.5) == 0.5, "of a step that samples"
        theirs = 0 if "scale_rewards" in options else 0.5  # TRL looks at the deviation of the batch
        assert log.get("frac_reward_zero_std", theirs) == theirs
        assert log["loss"] == pytest.approx(
            sum(value for name, value in log.items() if name.startswith("loss/")), abs=1e-6
        )
    if options.get("zero_variance") == "skip":
        assert logs[1]["health/advantage_std"] == pytest.approx(torch.tensor(trained).std().item())


def test_the_loss_of_a_resumed_run_is_of_its_own_steps(build: Build, tmp_path: Path) -> None:
    options = {**NOT_KEPT, "max_steps": 4, "learning_rate": 1e-2, "entropy_coef": 0.1}
    options |= {"save_steps": 3, "save_strategy": "steps", "preflight": False}
    each = build(**options)
    each.train()
    losses = [log["loss"] for log in each.state.log_history if "loss" in log]
    options |= {"logging_steps": 2, "output_dir": str(tmp_path / "other")}
    build(**options).train()
    resumed = build(**options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-3"))
    assert resumed.state.log_history[-1]["train_loss"] == pytest.approx(losses[3], abs=1e-6)
    assert abs(losses[2]) > 1e-4


def test_a_reward_of_one_s_own_that_was_always_0_has_no_interval(build: Build) -> None:
    trainer = build(reward_funcs=[lambda prompts, **_: [0.0] * len(prompts)], **NOT_KEPT)
    trainer.evaluate()
    (found,) = (one for name, one in trainer.heldout.results.items() if name.startswith("rewards/"))
    assert found.value == 0 and found.n == 16 and all(map(math.isnan, found.interval))
