"""Baselines, which rewards are compared with, and the advantages that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .groups import STD_EPSILON, deviations
from .part import Batch, Call, Part


def scaled(advantages: torch.Tensor, rewards: torch.Tensor, scale: str) -> torch.Tensor:
    """Advantages ``(P, G)`` divided as TRL's `scale_rewards` says; 0 where a reward is nan."""
    if scale == "group":
        advantages = advantages / (deviations(rewards) + STD_EPSILON)
    elif scale == "batch":
        advantages = advantages / (deviations(rewards.view(1, -1)) + STD_EPSILON)
    return advantages.nan_to_num(nan=0.0)


class Baseline(Part):
    """Computes advantages with a baseline other than the group's mean.

    Attributes:
        running: The running mean of rewards by task, for ``ema``.
        last: The mean of the last baselines over the prompts.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.args = trainer.args
        self.running: dict[str, float] = {}
        self.last = math.nan

    def extend(self, call: Call, batch: Batch) -> None:
        """Replace TRL's advantages."""
        trainer = self._trainer
        rewards = call.rewards.view(-1, trainer.num_generations)
        advantages = self.advantages(rewards, call.tasks, str(trainer.scale_rewards)).flatten()
        trainer.record({"baseline/mean": self.last})
        batch["advantages"] = trainer.own_rows(advantages)
        trainer.completion_log()["advantages", ""].extend(advantages.tolist())

    def state(self) -> dict[str, Any]:
        return {"baseline_running": self.running}

    def load(self, state: Mapping[str, Any]) -> None:
        self.running = dict(state.get("baseline_running", {}))

    def advantages(
        self, rewards: torch.Tensor, tasks: Sequence[str], scale: str = "group"
    ) -> torch.Tensor:
        """Advantages ``(P, G)``; 0 if a reward is nan.

        Args:
            rewards: ``(P, G)``, `G` completions of `P` prompts; nan if one could not be scored.
            tasks: The tasks of the `P` prompts.
            scale: TRL's `scale_rewards`: divide by the standard deviation of the ``group`` or of the
                ``batch``, or not at all (``none``).
        """
        baseline = self._baseline(rewards, tasks)  # (P, 1) or (P, G)
        self.last = baseline.nanmean().item()
        return scaled(rewards - baseline, rewards, scale)

    def _baseline(self, rewards: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        mean = rewards.nanmean(dim=1, keepdim=True)  # (P, 1)
        if self.args.baseline == "leave_one_out":
            count = (~rewards.isnan()).sum(dim=1, keepdim=True)
            others = (rewards.nansum(dim=1, keepdim=True) - rewards) / (count - 1)
            return torch.where(count > 1, others, mean)  # one alone has nothing to compare with
        if self.args.baseline == "adaptive":
            median = rewards.nanquantile(0.5, dim=1, keepdim=True)
            return torch.where(deviations(rewards) > self.args.baseline_spread, median, mean)
        if self.args.baseline == "ema":
            return self._running_means(rewards, tasks)
        return mean

    def _running_means(self, rewards: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        """The running mean of each prompt's task without these rewards, which are then added to it."""
        now, decay = {}, self.args.baseline_decay
        for task in sorted(set(tasks)):
            rows = [index for index, name in enumerate(tasks) if name == task]
            mean = rewards[rows].nanmean().item()
            if mean == mean:  # not nan: something could be scored
                now[task] = mean
        before = {task: self.running.get(task, now.get(task, 0.0)) for task in set(tasks)}
        for task, mean in now.items():
            self.running[task] = decay * before[task] + (1 - decay) * mean
        return rewards.new_tensor([before[task] for task in tasks]).unsqueeze(1)
