"""Baselines by hand, and against what TRL makes of the same rewards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.training.advantages import Baseline, compared, have_signal
from rookworld_rlvr.training.arguments import StepArguments


def baseline_of(kind: Any, scale: str = "none", over_batch: bool = False) -> Baseline:
    return Baseline(StepArguments(baseline=kind), scale, over_batch)


def test_the_running_mean_is_of_the_task_and_of_before() -> None:
    baseline, tasks = baseline_of("ema"), ["policy", "environment"]
    first = torch.tensor([[0.2, 0.4], [1.0, 1.0]], dtype=torch.float64)
    found = baseline.advantages(first, tasks)
    assert found.flatten().tolist() == pytest.approx([-0.1, 0.1, 0, 0]), "nothing before: the batch"
    assert not baseline.running, "what is drawn is noted apart"
    baseline.note(first, tasks)
    second = torch.tensor([[0.5, 0.7], [0.0, 1.0]], dtype=torch.float64)
    found = baseline.advantages(second, tasks)
    assert found.flatten().tolist() == pytest.approx([0.2, 0.4, -1.0, 0.0])
    baseline.note(second, tasks)
    assert baseline.running == pytest.approx({"policy": 0.33, "environment": 0.95})


def test_a_reward_that_could_not_be_had_moves_nothing() -> None:
    rewards = torch.tensor([[0.0, 1.0, torch.nan, 0.5]], dtype=torch.float64)
    for kind in ("group_mean", "leave_one_out", "ema", "adaptive"):
        for scale in ("group", "batch", "none"):
            found = baseline_of(kind, scale).advantages(rewards, ["policy"])
            assert found[0, 2] == 0 and found.isfinite().all(), (kind, scale)
    found = baseline_of("leave_one_out").advantages(rewards, ["policy"])
    assert found[0].tolist() == pytest.approx([-0.75, 0.75, 0, 0])
    alone = torch.tensor([[0.7, torch.nan, torch.nan, torch.nan]], dtype=torch.float64)
    assert not baseline_of("leave_one_out").advantages(alone, ["policy"]).any()
    baseline = baseline_of("ema")
    baseline.note(torch.full((1, 4), torch.nan), ["policy"])
    assert not baseline.running


def test_what_completions_are_compared_by() -> None:
    nan, weights = torch.nan, torch.tensor([1.0, 2.0])
    rewards = torch.tensor([[0, 1], [1, nan], [nan, nan], [3, 3]], dtype=torch.float64)
    totals = compared(rewards, weights, 2, "sum_then_normalize").tolist()
    assert totals[:2] == [2, 1] and totals[2] != totals[2] and totals[3] == 9
    rewards[2] = torch.tensor([3.0, 5.0])
    apart = compared(rewards, weights, 2, "normalize_then_sum").tolist()
    # Half the difference of two values by their deviation, which is the difference by sqrt(2).
    one, two = 0.5 / (0.5**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)
    assert apart == pytest.approx([-one, one, 2 * two, -2 * two]), "a reward alone has no deviation"


def test_a_groups_signal_is_the_spread_of_what_it_is_compared_by() -> None:
    values = torch.tensor([0.7, 0.7, 0.0, 1.0, torch.nan, 0.3, torch.nan, torch.nan])
    assert have_signal(values, 2) == [False, True, False, False]


def uneven(prompts: list[str], **_: Any) -> list[float]:
    return [(7 * place % 5) / 4 for place, _ in enumerate(prompts)]


def partly(prompts: list[str], **_: Any) -> list[float | None]:
    """None for one of eight, whose group has 0 else; the next group's differ."""
    return [
        None if place % 8 == 3 else place // 4 % 2 * (place % 3) for place in range(len(prompts))
    ]


WEIGHED = [{"name": "environment_exact"}, {"name": "environment_state", "weight": 0.3}]


@pytest.mark.parametrize("funcs", [[uneven, partly], [partly]], ids=["two rewards", "one reward"])
@pytest.mark.parametrize(
    "options",
    [
        *({"scale_rewards": scale} for scale in ("group", "batch", "none")),
        {"multi_objective_aggregation": "normalize_then_sum"},
    ],
    ids=str,
)
def test_by_default_advantages_are_trls(
    build: Callable[..., Any], options: dict[str, Any], funcs: list[Any]
) -> None:
    """A round has TRL's own, which TRL's trainer computes from the same rewards."""
    sizes = {"per_device_train_batch_size": 16, "max_completion_length": 4}
    trainer = build(reward_funcs=funcs, rewards=WEIGHED[: len(funcs)], **sizes, **options)
    assert trainer.reward_weights.tolist() == pytest.approx([1.0, 0.3][: len(funcs)])
    trainer.model.train()
    sampled = trainer.rollouts_of(next(iter(trainer.get_train_dataloader())))
    theirs = sampled.batch["advantages"]
    ours = trainer.advantages_of(sampled)["advantages"]
    assert theirs.abs().max() > 0.1 and ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs.float(), atol=1e-5, rtol=1e-5)
