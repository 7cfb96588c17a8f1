"""How a term of the loss is summed over tokens, in the same way as TRL sums its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def aggregate(trainer: Any, per_token: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Sum a term of the loss over tokens ``(B, T)``, as TRL does for the trainer's `loss_type`."""
    mask = inputs["completion_mask"]
    training = trainer.model.training
    steps = trainer.current_gradient_accumulation_steps if training else 1
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
    items = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    if training:  # `num_items_in_batch` spans the generation
        items = items * steps / trainer.args.steps_per_generation
    return total / items


def log_importance(trainer: Any, logps: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Log-prob now minus log-prob when sampled, for tokens ``(B, T)`` or completions ``(B, 1)``."""
    old = inputs.get("old_per_token_logps")
    log_ratio = logps - (logps.detach() if old is None else old)
    if trainer.importance_sampling_level == "token":
        return log_ratio
    mask = inputs["completion_mask"]
    return ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
