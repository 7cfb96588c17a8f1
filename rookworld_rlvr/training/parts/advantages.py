"""Baselines, which rewards are compared with, and the advantages that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from trl import GRPOConfig

from ...common.settings import setting
from .part import Part, arguments_of

BaselineKind = Literal["group_mean", "leave_one_out", "ema", "adaptive"]

STD_EPSILON = 1e-4  # TRL's


@dataclass
class BaselineArguments:
    """The baseline that rewards are compared with."""

    baseline: BaselineKind = setting(
        "group_mean",
        "The baseline that rewards are compared with: group_mean (as in TRL), leave_one_out (the "
        "mean of the group's other completions), ema (a running mean of the task's rewards), or "
        "adaptive (the group's median if its rewards spread more than baseline_spread, else its "
        "mean).",
    )
    baseline_decay: float = setting(
        0.9,
        "For baseline: ema, the share of the running mean that each batch keeps, from 0 to below 1.",
        least=0,
        below=1,
    )
    baseline_spread: float = setting(
        0.3,
        "For baseline: adaptive, the standard deviation of a group's rewards above which its "
        "median is used.",
        above=0,
    )

    def baseline_faults(self, args: GRPOConfig) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        if self.baseline == "group_mean":
            return []
        return summed_faults(f"baseline: {self.baseline}", "baseline: group_mean", args)


def summed_faults(key: str, instead: str, args: GRPOConfig) -> list[str]:
    """The fault of a key that computes advantages from summed rewards, if they are not to be summed.

    Args:
        key: The key with its value.
        instead: What leaves the advantages to TRL.
        args: The trainer's arguments.
    """
    how = args.multi_objective_aggregation
    if how == "sum_then_normalize":
        return []
    return [
        f"{key} computes advantages from the sum of the rewards, so multi_objective_aggregation: {how} "
        f"would do nothing; leave it out, or set {instead}"
    ]


class Baseline(Part):
    """Computes advantages with a baseline other than the group's mean.

    Args:
        args: The part's keys.

    Attributes:
        running: The running mean of rewards by task, for ``ema``.
        last: The mean of the last baselines over the prompts.
    """

    def __init__(self, args: BaselineArguments) -> None:
        self.args = args
        self.running: dict[str, float] = {}
        self.last = math.nan

    @classmethod
    def of(cls, trainer: Any) -> Baseline | None:
        """The part, unless the baseline is the group's mean, which TRL itself computes."""
        args = arguments_of(trainer.args, BaselineArguments)
        return None if args.baseline == "group_mean" else cls(args)

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
        advantages = rewards - baseline
        if scale == "group":
            advantages = advantages / (nanstd(rewards) + STD_EPSILON)
        elif scale == "batch":
            advantages = advantages / (nanstd(rewards.view(1, -1)) + STD_EPSILON)
        return advantages.nan_to_num(nan=0.0)

    def _baseline(self, rewards: torch.Tensor, tasks: Sequence[str]) -> torch.Tensor:
        mean = rewards.nanmean(dim=1, keepdim=True)  # (P, 1)
        if self.args.baseline == "leave_one_out":
            count = (~rewards.isnan()).sum(dim=1, keepdim=True)
            return (rewards.nansum(dim=1, keepdim=True) - rewards) / (count - 1).clamp(min=1)
        if self.args.baseline == "adaptive":
            median = rewards.nanquantile(0.5, dim=1, keepdim=True)
            return torch.where(nanstd(rewards) > self.args.baseline_spread, median, mean)
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
