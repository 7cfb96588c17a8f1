"""Each task's own temperature in the scores of its rows."""

from __future__ import annotations

from typing import Any

import torch

from .part import Batch, Call, Part
from .sampling import backbone


class TaskSampling(Part):
    """Uses each task's own temperature for its rows when they are scored; `rollout` samples so.

    TRL divides all logits by one temperature. The logits are linear in the hidden states, so these are
    scaled such that each row's logits end up divided by its own temperature.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        for network in trainer.networks():
            backbone(network).register_forward_hook(self._scale_hidden_states)

    def extend(self, call: Call, batch: Batch) -> None:
        """Add the rows' temperatures."""
        batch["temperature"] = call.temperatures

    def _scale_hidden_states(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        rows = self._trainer.being_scored
        if rows is not None and rows.temperatures is not None:
            states = output.last_hidden_state  # (b, T, D)
            scale = (self._trainer.temperature / rows.temperatures).view(-1, 1, 1)
            output.last_hidden_state = states * scale.to(states.dtype)
        return output
