"""Skips a step whose loss or gradient is not finite, on all processes alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from ...common.errors import RookWorldError
from .part import Part

logger = logging.getLogger(__name__)

LIMIT = 3  # steps in a row that may be skipped


class Nonfinite(Part):
    """Skips steps whose gradient norm is not finite, and ends the run after some in a row.

    The norm is the same on all processes, so all of them skip the same steps. In fp16, accelerate skips
    such steps while it looks for a scale of the loss. DeepSpeed has taken the step by then, so the run
    ends at once.

    Attributes:
        norm: The gradient norm of the step to come.
        skipped: Steps skipped so far.
        in_a_row: Steps skipped since the last one that was taken.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.norm: Any = None
        self.skipped = 0
        self.in_a_row = 0

    def on_gradient_norm(self, norm: Any) -> None:
        self.norm = norm

    def state(self) -> dict[str, Any]:
        return {"nonfinite_skipped": self.skipped}

    def load(self, state: Mapping[str, Any]) -> None:
        self.skipped = state.get("nonfinite_skipped", 0)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Take the gradients away from an optimiser that should not step: it leaves such weights alone.

        Raises:
            RookWorldError: Too many steps in a row were skipped; it names the last checkpoint.
        """
        norm = getattr(self.norm, "full_tensor", lambda: self.norm)()  # with FSDP2 it has parts
        if norm is None or math.isfinite(float(norm)):
            self.in_a_row = 0
            return
        optimizer.zero_grad(set_to_none=True)
        self.skipped += 1
        self.in_a_row += 1
        step = state.global_step + 1
        if self.in_a_row >= (1 if self._trainer.is_deepspeed_enabled else LIMIT):
            raise RookWorldError(self._message(args.output_dir, step))
        if state.is_world_process_zero:
            logger.warning("step %d is skipped: its loss or gradient is not finite", step)

    def _message(self, output_dir: str, step: int) -> str:
        checkpoint = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
        terms = ", ".join(f"loss/{name}" for name in self._trainer.broken_terms)
        return (
            f"the loss or gradient was not finite in {self.in_a_row} steps in a row up to step {step}"
            f"{f' ({terms})' if terms else ''}; the last good checkpoint is {checkpoint or 'none'}; "
            "lower learning_rate or max_grad_norm, or raise beta"
        )

    def numbers(self) -> dict[str, float]:
        """The metric to log."""
        return {"health/skipped_steps": self.skipped}
