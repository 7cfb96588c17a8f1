"""How TRL sums a term of the loss over tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# TRL's losses that are a mean over completions, masked ones included.
MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


def aggregate(trainer: Any, per_token: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Sum a term of the loss over tokens ``(B, T)``, as TRL does for the trainer's `loss_type`.

    A mean over rows is one over those that are not left out.
    """
    return inputs.get("row_scale", 1) * _summed(trainer, per_token, inputs)


def _summed(trainer: Any, per_token: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    mask = inputs["completion_mask"]
    steps = trainer.current_gradient_accumulation_steps if trainer.model.training else 1
    total = (per_token * mask).sum()
    if trainer.loss_type in ("grpo", "sapo"):
        by_row = (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
        return by_row.mean() / steps
    if trainer.loss_type == "bnpo":
        return total / mask.sum().clamp(min=1.0) / steps
    if trainer.loss_type == "dr_grpo":
        return total / (per_token.size(0) * trainer.max_completion_length) / steps
    if trainer.loss_type == "luspo":
        return (per_token * mask).sum(-1).mean() / steps
    return per_item(trainer, total, inputs["num_items_in_batch"])


def per_item(trainer: Any, total: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """A micro-batch's share of a mean over the items of a step on all processes.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        total: The sum over the items of this process's micro-batch.
        items: The number of items of the whole generation on all processes, see `on_all`.
    """
    mean = total * trainer.accelerator.num_processes / items.clamp(min=1.0)
    if trainer.model.training:  # in several steps a generation, and several micro-batches a step
        mean *= trainer.args.steps_per_generation / trainer.current_gradient_accumulation_steps
    return mean


def on_all(trainer: Any, mask: torch.Tensor) -> torch.Tensor:
    """The number of a mask's items on all processes."""
    return trainer.accelerator.gather(mask.sum()).sum()


def log_importance(trainer: Any, logps: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Log-prob now minus log-prob when sampled, for tokens ``(B, T)`` or completions ``(B, 1)``."""
    old = inputs.get("old_per_token_logps")
    log_ratio = logps - (logps.detach() if old is None else old)
    if trainer.importance_sampling_level == "token":
        return log_ratio
    mask = inputs["completion_mask"]
    return ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
