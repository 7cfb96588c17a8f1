"""What rewards are compared with, and the advantages that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BASELINES = ("group_mean", "leave_one_out", "ema", "adaptive")


STD_EPSILON = 1e-4  # TRL's


class Baselines:
    """What rewards are compared with, and the advantages that follow.

    Args:
        kind: One of `BASELINES`.
        decay: Of the running mean.
        spread: Deviation over which ``adaptive`` takes the median.

    Attributes:
        running: The running mean by task, of ``ema``.
        last: Mean over the prompts of what rewards were last compared with.
    """

    def __init__(self, kind: str, decay: float, spread: float) -> None:
        self.kind = kind
        self.decay = decay
        self.spread = spread
        self.running: dict[str, float] = {}
        self.last = math.nan

    def advantages(
        self, rewards: torch.Tensor, tasks: Sequence[str], scale: str = "group"
    ) -> torch.Tensor:
        """Advantages ``(P, G)``, 0 where a reward is nan.

        Args:
            rewards: ``(P, G)``, `G` completions of `P` prompts; nan where one could not be scored.
            tasks: Of the `P` prompts.
            scale: TRL's `scale_rewards`: by the deviation of the ``group``, of the ``batch``, or
                ``none``.
        """
        baseline = self._baseline(rewards, tasks)  # (P, 1) or (P, G)
        self.last = baseline.nanmean().item()
        advantages = rewards - baseline
        if scale == "group":
            advantages = advantages / (nanstd(rewards) + STD_EPSILON)
        elif scale == "batch":
            advantages = advantages / (nanstd(rewards.view(1, -1)) + STD_EPSILON)
        return advantages.nan_to_num(nan=0.0)

    def _baseline(self, rewards: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        mean = rewards.nanmean(dim=1, keepdim=True)  # (P, 1)
        if self.kind == "leave_one_out":
            count = (~rewards.isnan()).sum(dim=1, keepdim=True)
            return (rewards.nansum(dim=1, keepdim=True) - rewards) / (count - 1).clamp(min=1)
        if self.kind == "adaptive":
            median = rewards.nanquantile(0.5, dim=1, keepdim=True)
            return torch.where(nanstd(rewards) > self.spread, median, mean)
        if self.kind == "ema":
            return self._running_means(rewards, tasks)
        return mean

    def _running_means(self, rewards: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        """The running mean of each prompt's task, before these rewards; then they join it."""
        now = {}
        for task in sorted(set(tasks)):
            rows = [index for index, name in enumerate(tasks) if name == task]
            mean = rewards[rows].nanmean().item()
            if mean == mean:  # not nan: something could be scored
                now[task] = mean
        before = {task: self.running.get(task, now.get(task, 0.0)) for task in set(tasks)}
        for task, mean in now.items():
            self.running[task] = self.decay * before[task] + (1 - self.decay) * mean
        return rewards.new_tensor([before[task] for task in tasks]).unsqueeze(1)


def nanstd(values: torch.Tensor) -> torch.Tensor:
    """Sample deviation ``(P, 1)`` of each row of ``(P, G)``, nan left out; 0 for fewer than two values.

    TRL's own gives nan there.
    """
    count = (~values.isnan()).sum(dim=1, keepdim=True)
    squares = (values - values.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()
