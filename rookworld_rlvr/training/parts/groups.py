"""What the rewards of groups come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from trl.trainer.utils import nanstd

from ...tasks.text import shown_text
from ..health import batch_health
from .part import Sampled

STD_EPSILON = 1e-4  # TRL's

STD_THRESHOLD = 1e-6  # a group has no signal if its rewards deviate no more than this


def deviations(values: torch.Tensor) -> torch.Tensor:
    """Sample standard deviation ``(P, 1)`` of each row of ``(P, G)``, ignoring nan; 0 of one value."""
    return nanstd(values, dim=1, keepdim=True).nan_to_num(0.0)


def weighted(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Total rewards ``(N,)`` from those of each function ``(N, F)``; nan if no function gave one."""
    summed = (rewards * weights.to(rewards.device)).nansum(dim=1)
    summed[rewards.isnan().all(dim=1)] = torch.nan
    return summed


def have_signal(rewards: torch.Tensor, size: int) -> list[bool]:
    """Which groups of `size` completions have rewards ``(N,)`` that differ."""
    return (deviations(rewards.view(-1, size)).flatten() > STD_THRESHOLD).tolist()


def sampled_rows(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Which completions were sampled and not taught, ``(B, 1)``."""
    taught = inputs.get("taught", torch.zeros_like(inputs["completion_mask"][:, 0]))
    return ~taught.bool().unsqueeze(1)


def trained_advantages(batch: Mapping[str, Any]) -> torch.Tensor:
    """The advantages ``(A,)`` of the completions that are trained on, or of their tokens."""
    advantages = batch["advantages"] + batch.get("taught_advantages", 0.0)
    mask = batch["completion_mask"].bool()
    kept: torch.Tensor = advantages[mask if advantages.dim() > 1 else mask.any(1)]
    return kept / batch.get("row_scale", 1)


def task_rewards(rewards: torch.Tensor, tasks: Sequence[str]) -> dict[str, float]:
    """Mean rewards ``(N,)`` by task, from the tasks of their groups."""
    groups = rewards.cpu().view(len(tasks), -1)
    rows = {task: torch.tensor([name == task for name in tasks]) for task in sorted({*tasks})}
    return {f"reward/{task}": groups[own].nanmean().item() for task, own in rows.items()}


def group_metrics(
    sampled: Sampled, size: int, log: Mapping[tuple[str, str], Any], advantages: Sequence[float]
) -> dict[str, float]:
    """Shares of groups without signal, and numbers for the health rules.

    Args:
        sampled: What is trained on.
        size: Completions of a group.
        log: The log of the completions that are trained on, see `Sampled.logs`.
        advantages: Those of all processes that are trained on, see `trained_advantages`.
    """
    numbers = {
        "zero_variance/sampled": 1 - sum(sampled.drawn) / len(sampled.drawn),
        "zero_variance/trained": 1 - torch.tensor(sampled.signal).float().mean().item(),
        "zero_variance/extra_prompts": len(sampled.drawn) - len(sampled.signal),
    }
    tasks = [task for task in sampled.tasks for _ in range(size)]
    texts = [shown_text(completion) for completion in log["completion", ""]]
    prompts = [shown_text(prompt) for prompt in log["prompt", ""]]
    trained = torch.tensor(advantages or [0.0])
    return numbers | batch_health(sampled.rewards.cpu(), trained, texts, tasks, size, prompts)
