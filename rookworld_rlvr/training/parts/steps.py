"""What is done about each step: its seconds, and skipping it if it is not finite."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import get_last_checkpoint
from trl.extras.profiling import ProfilingContext

from ...common.errors import RookWorldError
from ...common.machine import peak_memory
from .part import Part

logger = logging.getLogger(__name__)

PHASES = ("sampling", "rewards")  # all other time of a step, up to its gradients, is its update
OF_UPDATE = ("reference", "loss")  # phases of the update that `log_phases` measures, too
LIMIT = 3  # steps in a row that may be skipped


# --------------------------------------------------------------------------------------------------
# Time
# --------------------------------------------------------------------------------------------------
class StepTimes(Part):
    """Times the phases of a step and logs them with the step's other metrics.

    They replace TRL's own nine timings per step, which go to the dashboards without passing the log.

    With `log_phases`, the update's own phases are timed, too, and the most memory in each. Then a GPU is
    waited for at the ends of phases: otherwise its work would count for a later phase.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._is_fine = bool(getattr(trainer.args, "log_phases", False))
        self._peak = 0  # bytes, before the GPU's own count was last reset
        self._started: float | None = None
        self._begin_step()

    def _begin_step(self) -> None:
        phases = (*PHASES, *OF_UPDATE) if self._is_fine else PHASES
        self._seconds = dict.fromkeys(phases, 0.0)  # of the current step
        self._memory = dict.fromkeys((*phases, "update"), 0)  # bytes

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()
        self._leave = ProfilingContext.__exit__
        ProfilingContext.__exit__ = lambda self, *error: False  # logs nothing

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ProfilingContext.__exit__ = self._leave

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note_memory("update")  # of what was before, such as an evaluation
        self._begin_step()

    def elapsed(self) -> dict[str, float]:
        """The seconds of training so far, for the log; empty before training."""
        if self._started is None:
            return {}
        return {"time/elapsed": time.perf_counter() - self._started}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; names other than `PHASES` count as part of the update.

        What is sampled for an evaluation is forgotten when the next step begins.
        """
        if name not in self._seconds:
            yield
            return
        self._note_memory("update")
        started = time.perf_counter()
        try:
            yield
        finally:
            self._note_memory(name)
            self._seconds[name] += time.perf_counter() - started

    def _note_memory(self, phase: str) -> None:
        """Count the most memory since the last call for a phase, once the GPU is done with it."""
        if not self._is_fine:
            return
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.synchronize()
        most = peak_memory()
        self._memory[phase] = max(self._memory[phase], most)
        self._peak = max(self._peak, most)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def end_step(self, whole: float) -> None:
        """Record the phases of a step that took `whole` seconds, and begin the next step."""
        self._note_memory("update")
        in_update = self._memory.keys() - PHASES
        self._memory["update"] = max(self._memory[name] for name in in_update)
        rest = whole - sum(self._seconds[phase] for phase in PHASES)
        seconds = {**self._seconds, "update": rest}
        self._trainer.record({f"time/{phase}": number for phase, number in seconds.items()})
        if self._is_fine:
            memory = {f"memory/{name}": most / 2**30 for name, most in self._memory.items() if most}
            self._trainer.record(memory)  # a phase that there was not has none
        self._trainer.record({"peak_memory": max(self._peak, peak_memory()) / 2**30})
        self._begin_step()


# --------------------------------------------------------------------------------------------------
# Steps that are not finite
# --------------------------------------------------------------------------------------------------
class Nonfinite(Part):
    """Skips steps whose gradient norm is not finite, and ends the run after some in a row.

    The norm is the same on all processes, so all of them skip the same steps. In fp16, accelerate skips
    such steps while it looks for a scale of the loss. DeepSpeed has taken the step by then, so the run
    ends at once.

    Attributes:
        skipped: Steps skipped so far.
        in_a_row: Steps skipped since the last one that was taken.
    """

    skipped = 0
    in_a_row = 0

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
