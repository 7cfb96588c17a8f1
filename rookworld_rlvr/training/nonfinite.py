"""Steps whose gradient is not finite: they are skipped, and some in a row end the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from ..common.errors import RookWorldError

if TYPE_CHECKING:
    from .step import Step

logger = logging.getLogger(__name__)

LIMIT = 3  # steps in a row that may be skipped


class Nonfinite(TrainerCallback):
    """Skips steps whose gradient norm is not finite, and ends the run after some in a row.

    The norm is the same on all processes, so all of them skip the same steps. In fp16, accelerate skips
    such steps while it looks for a scale of the loss. DeepSpeed has taken the step by then, so the run
    ends at once.

    Args:
        trainer: Whose steps are watched.

    Attributes:
        skipped: Steps skipped so far.
        in_a_row: Steps skipped since the last one that was taken.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        self.skipped = 0
        self.in_a_row = 0

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"nonfinite_skipped": self.skipped}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""
        self.skipped = state.get("nonfinite_skipped", 0)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Take the gradients away from an optimiser that should not step: it leaves such weights alone.

        Raises:
            RookWorldError: Too many steps in a row were skipped; it names the last checkpoint.
        """
        norm = self._trainer.gradient_norm
        norm = getattr(norm, "full_tensor", lambda: norm)()  # with FSDP2 it has parts
        if norm is None or math.isfinite(float(norm)):
            self.in_a_row = 0
            return
        optimizer.zero_grad(set_to_none=True)
        self.skipped += 1
        self.in_a_row += 1
        step = state.global_step + 1
        if self.in_a_row >= (1 if self._trainer.is_deepspeed_enabled else LIMIT):
            checkpoint = (
                get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
            )
            sums = ((name, total) for name, (total, _) in self._trainer.settled.items())
            terms = ", ".join(n for n, x in sums if n[:5] == "loss/" and not math.isfinite(x))
            raise RookWorldError(
                f"the loss or gradient was not finite in {self.in_a_row} steps in a row up to step "
                f"{step}{f' ({terms})' if terms else ''}; the last good checkpoint is "
                f"{checkpoint or 'none'}; lower learning_rate or max_grad_norm, or raise beta"
            )
        if state.is_world_process_zero:
            logger.warning("step %d is skipped: its loss or gradient is not finite", step)

    def numbers(self) -> dict[str, float]:
        """The metric to log."""
        return {"health/skipped_steps": self.skipped}
