"""Ctrl-C: the current step is finished, a checkpoint is saved, and training ends."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

_TOGETHER_S = (
    2.0  # the terminal signals all processes, and accelerate's launcher passes the signal on again
)


class StopOnInterrupt(TrainerCallback):
    """Ends training with a checkpoint at the first Ctrl-C, and immediately at the second.

    If an evaluation is due at that step, it is done first.

    Attributes:
        stopped_at: The optimiser step at which training was interrupted; None if it was not.
    """

    EXIT_CODE = 128 + signal.SIGINT

    def __init__(self) -> None:
        self.stopped_at: int | None = None
        self._asked_at: float | None = None  # seconds
        self._before: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before = signal.signal(signal.SIGINT, self._ask)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGINT, self._before)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._is_asked_anywhere():
            self.stopped_at = state.global_step
            control.should_save = args.save_strategy != "no"
            control.should_training_stop = True

    def describe(self, output_dir: Path) -> str:
        """Where training ended, and how to resume it."""
        folder = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.stopped_at}"
        if not folder.is_dir():
            return f"interrupted at step {self.stopped_at}; no checkpoint was saved (save_strategy: no)"
        return (
            f"interrupted at step {self.stopped_at}: {folder} is saved; run the same command with "
            "--resume_from_checkpoint true to go on from it"
        )

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            if PartialState().is_main_process:
                text = "\ninterrupted: stopping after this step; press Ctrl-C again to stop at once"
                print(text, file=sys.stderr, flush=True)
        elif now - self._asked_at > _TOGETHER_S:
            raise KeyboardInterrupt

    def _is_asked_anywhere(self) -> bool:
        """Whether any process was interrupted, so that all end at the same step."""
        state = PartialState()
        asked = torch.tensor(self._asked_at is not None, dtype=torch.float32, device=state.device)
        if state.num_processes > 1:
            torch.distributed.all_reduce(asked)
        return bool(asked)
