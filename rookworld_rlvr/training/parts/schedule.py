"""A learning rate in three phases; transformers' schedules lack the last, linear one."""

from __future__ import annotations

import math
from typing import Any

import torch

from .part import Part

_LOWEST = 0.05  # share of the learning rate at which the cosine ends


class ThreePhases(Part):
    """Makes the scheduler of the three phases."""

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        args = self._trainer.args
        warmup, share = args.get_warmup_steps(steps), args.lr_linear_share
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: three_phases(step, steps, warmup, share)
        )


def three_phases(step: int, steps: int, warmup: int, linear_share: float) -> float:
    """The share of the learning rate at a step: up from 0, along a cosine to 5%, linearly to 0.

    >>> [round(three_phases(step, 100, 10, 0.2), 3) for step in (0, 5, 10, 45, 80, 90, 100)]
    [0.0, 0.5, 1.0, 0.525, 0.05, 0.025, 0.0]
    """
    last = steps - round(linear_share * steps)  # where the cosine ends
    if step < warmup:
        return step / warmup
    if step < last:
        progress = (step - warmup) / max(1, last - warmup)
        return _LOWEST + (1 - _LOWEST) * (1 + math.cos(math.pi * progress)) / 2
    return _LOWEST * max(0, steps - step) / max(1, steps - last)
