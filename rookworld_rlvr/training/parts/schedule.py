"""A learning rate in three phases; transformers' schedules lack the last, linear one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ...common.settings import setting
from .part import arguments_of

_LOWEST = 0.05  # share of the learning rate at which the cosine ends


@dataclass
class ScheduleArguments:
    """The learning rate in three phases."""

    lr_three_phases: bool = setting(
        False,
        "Use a learning rate of three phases instead of lr_scheduler_type: it rises over "
        "warmup_steps, falls along a cosine to 5%, and falls linearly to 0 over the last "
        "lr_linear_share of the steps.",
    )
    lr_linear_share: float = setting(
        0.1,
        "Share of the steps, from 0 to below 1, that the last phase of lr_three_phases takes.",
        least=0,
        below=1,
    )


def three_phase_scheduler(
    args: Any, optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """The scheduler of the three phases; None if the trainer's arguments do not ask for it."""
    given = arguments_of(args, ScheduleArguments)
    if not given.lr_three_phases:
        return None
    warmup = args.get_warmup_steps(steps)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: three_phases(step, steps, warmup, given.lr_linear_share)
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
