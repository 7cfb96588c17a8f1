"""What every batch of groups has: total rewards, their deviations, and the metrics of the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...common.errors import RookWorldError
from ..health import batch_health
from .part import Sampled

STD_EPSILON = 1e-4  # TRL's

STD_THRESHOLD = 1e-6  # a group has no signal if its rewards deviate no more than this


def check_rows(rows: int, prompts: int) -> None:
    """Refuse a training set that is smaller than one generation batch: nothing would be trained.

    Raises:
        RookWorldError: So many rows do not fill a batch of so many prompts.
    """
    if rows < prompts:
        raise RookWorldError(
            f"{rows} rows to train on do not fill one generation batch of {prompts} prompts; give more "
            "rows, or a smaller per_device_train_batch_size"
        )


def nanstd(values: torch.Tensor) -> torch.Tensor:
    """Sample standard deviation ``(P, 1)`` of each row of ``(P, G)``, ignoring nan.

    With fewer than two values it is 0, where TRL's own function gives nan.
    """
    count = (~values.isnan()).sum(dim=1, keepdim=True)
    squares = (values - values.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()


def weighted(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Total rewards ``(N,)`` from those of each function ``(N, F)``; nan if no function gave one."""
    summed = (rewards * weights.to(rewards.device)).nansum(dim=1)
    summed[rewards.isnan().all(dim=1)] = torch.nan
    return summed


def have_signal(rewards: torch.Tensor, size: int) -> list[bool]:
    """Which groups of `size` completions have rewards ``(N,)`` that differ."""
    deviations = nanstd(rewards.view(-1, size)).flatten()
    signal: list[bool] = (deviations > STD_THRESHOLD).tolist()
    return signal


def group_metrics(
    sampled: Sampled, size: int, log: Mapping[tuple[str, str], Any]
) -> dict[str, float]:
    """Shares of groups without signal, and numbers for the health rules.

    Args:
        sampled: What is trained on.
        size: Completions of a group.
        log: The log of the completions that are trained on, see `Sampled.logs`.
    """
    numbers: dict[str, float] = {
        "zero_variance/sampled": 1 - sum(sampled.drawn) / len(sampled.drawn),
        "zero_variance/trained": 1 - torch.tensor(sampled.signal).float().mean().item(),
        "zero_variance/extra_prompts": len(sampled.drawn) - len(sampled.signal),
    }
    tasks = [task for task in sampled.tasks for _ in range(size)]
    numbers |= batch_health(
        sampled.rewards.cpu(),
        torch.tensor(list(log["advantages", ""])),
        list(log["completion", ""]),
        tasks,
        size,
        prompts=list(log["prompt", ""]),
    )
    numbers |= {f"task/{task}": tasks.count(task) / len(tasks) for task in sorted(set(tasks))}
    return numbers
