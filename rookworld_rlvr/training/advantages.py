"""From rewards to advantages: functions of tensors, and the baselines of rewards.

Shapes: `N` completions on all processes, `P` groups of `G` of them, `F` rewards. A reward is nan where
it could not be given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from trl.trainer.utils import nanstd

from ..models.decoding import on_device
from .arguments import StepArguments

STD_EPSILON = 1e-4  # TRL's
STD_THRESHOLD = 1e-6  # a group has no signal if what it is compared by deviates no more than this


def deviations(values: torch.Tensor) -> torch.Tensor:
    """Sample standard deviation ``(P, 1)`` of each row of ``(P, G)``, ignoring nan; 0 of one value."""
    return nanstd(values, dim=1, keepdim=True).nan_to_num(0.0)


def weighted(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Total rewards ``(N,)`` from those of each function ``(N, F)``; nan if no function gave one."""
    summed = (rewards * on_device(weights, rewards.device)).nansum(dim=1)
    return summed.masked_fill(rewards.isnan().all(dim=1), torch.nan)


def compared(
    rewards: torch.Tensor, weights: torch.Tensor, size: int, aggregation: str
) -> torch.Tensor:
    """What completions are compared by ``(N,)``, and whose spread in a group is its signal.

    Args:
        rewards: ``(N, F)``.
        weights: ``(F,)``.
        size: Completions of a group.
        aggregation: TRL's `multi_objective_aggregation`: ``sum_then_normalize`` takes the total rewards,
            ``normalize_then_sum`` the sum of rewards that were each normalised in their group (GDPO,
            arXiv 2601.05242).
    """
    if aggregation == "sum_then_normalize":
        return weighted(rewards, weights)
    groups = rewards.view(-1, size, rewards.size(1))
    deviation = nanstd(groups, dim=1, keepdim=True).nan_to_num(0.0)
    alike = (groups - groups.nanmean(dim=1, keepdim=True)) / (deviation + STD_EPSILON)
    return weighted(alike.view_as(rewards), weights)


def have_signal(values: torch.Tensor, size: int) -> list[bool]:
    """Which groups of `size` completions differ in what they are compared by, ``(N,)``."""
    return (deviations(values.view(-1, size)).flatten() > STD_THRESHOLD).tolist()


def scaled(advantages: torch.Tensor, values: torch.Tensor, scale: str) -> torch.Tensor:
    """Advantages ``(P, G)`` divided as TRL's `scale_rewards` says; 0 where a reward is nan."""
    if scale == "group":
        advantages = advantages / (deviations(values) + STD_EPSILON)
    elif scale == "batch":
        advantages = advantages / (deviations(values.view(1, -1)) + STD_EPSILON)
    return advantages.nan_to_num(nan=0.0)


def whitened(advantages: torch.Tensor, mask: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Advantages ``(B, C)`` of mean 0 and variance 1 over all processes' tokens in the mask.

    Args:
        advantages: ``(B, C)``.
        mask: ``(B, C)``.
        sums: Over all processes' tokens: of the advantages, of their squares, and of the mask.
    """
    total, squares, count = sums.tolist()
    mean = total / max(count, 1)
    variance = max(squares / max(count, 1) - mean**2, 0.0)
    return (advantages - mean) / (variance**0.5 + STD_EPSILON) * mask


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns by token, ``(B, C)`` each; 0 outside of the mask.

    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation".

    Args:
        rewards: ``(B,)``, of whole completions; they are given at the last token.
        values: ``(B, C)``, the expected return before each token.
        mask: ``(B, C)``, 1 for a completion's tokens, 0 for the padding after them.
        gamma: Discount per token.
        lam: Weight of the later tokens' errors.
    """
    advantages = torch.zeros_like(values)
    lengths = mask.sum(1)
    expected = torch.nn.functional.pad(values.where(mask.bool(), 0), (0, 1))  # 0 after the last
    later = torch.zeros_like(rewards)
    for step in reversed(range(values.size(1))):
        reward = rewards.where(lengths == step + 1, 0)
        error = reward + gamma * expected[:, step + 1] - values[:, step]
        later = (error + gamma * lam * later).where(step < lengths, 0)
        advantages[:, step] = later
    return advantages, (advantages + values) * mask


class Baseline:
    """What a completion is compared with, by the key `baseline`.

    Args:
        args: The keys that begin with ``baseline``.
        scale: TRL's `scale_rewards`: divide by the standard deviation of the ``group`` or of the
            ``batch``, or not at all (``none``).
        over_batch: Whether all groups are compared together, and scaled by the batch: TRL's
            ``normalize_then_sum``.

    Attributes:
        running: The running mean by task, for ``ema``.
        last: The mean of the last baselines over the groups.
    """

    def __init__(self, args: StepArguments, scale: str, over_batch: bool = False) -> None:
        self.args = args
        self.scale = scale
        self.over_batch = over_batch
        self.running: dict[str, float] = {}
        self.last = math.nan

    def advantages(self, values: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        """Advantages ``(P, G)``; 0 if a reward is nan.

        Args:
            values: ``(P, G)``, see `compared`.
            tasks: The tasks of the groups.
        """
        if self.over_batch:
            return scaled(values - values.nanmean(), values, "batch")
        baseline = self._baseline(values, tasks)  # (P, 1) or (P, G)
        self.last = baseline.nanmean().item()
        return scaled(values - baseline, values, self.scale)

    def note(self, values: torch.Tensor, tasks: Sequence[str]) -> None:
        """Add what was drawn to the running means, `values` ``(P, G)``."""
        if self.args.baseline != "ema":
            return
        decay = self.args.baseline_decay
        for task, mean in self._means(values, tasks).items():
            self.running[task] = decay * self.running.get(task, mean) + (1 - decay) * mean

    def _baseline(self, values: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        mean = values.nanmean(dim=1, keepdim=True)  # (P, 1)
        if self.args.baseline == "leave_one_out":
            count = (~values.isnan()).sum(dim=1, keepdim=True)
            others = (values.nansum(dim=1, keepdim=True) - values) / (count - 1)
            return torch.where(count > 1, others, mean)  # one alone has nothing to compare with
        if self.args.baseline == "adaptive":
            median = values.nanquantile(0.5, dim=1, keepdim=True)
            return torch.where(deviations(values) > self.args.baseline_spread, median, mean)
        if self.args.baseline == "ema":
            before = self._means(values, tasks) | self.running
            return values.new_tensor([before.get(task, 0.0) for task in tasks]).unsqueeze(1)
        return mean

    @staticmethod
    def _means(values: torch.Tensor, tasks: Sequence[str]) -> dict[str, float]:
        """The mean by task of what could be scored."""
        means: Mapping[str, float] = {
            task: values[[name == task for name in tasks]].nanmean().item()
            for task in sorted({*tasks})
        }
        return {task: mean for task, mean in means.items() if mean == mean}  # not nan
