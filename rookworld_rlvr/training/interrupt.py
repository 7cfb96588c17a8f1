"""Ctrl-C: the step under way is finished, a checkpoint saved, and training ends."""

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

_TOGETHER_S = 2.0  # accelerate's launcher passes on the signal that a terminal sends to all anyway


class StopOnInterrupt(TrainerCallback):
    """Ends training at the first Ctrl-C with a checkpoint, at the second at once.

    What is due at that step, an evaluation for one, is done before.

    Attributes:
        stopped_at: The optimiser step that training ended at; None where nobody asked for it.
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
        """Where training ended, and how it goes on."""
        folder = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.stopped_at}"
        if not folder.is_dir():
            return f"interrupted at step {self.stopped_at}; save_strategy: no keeps no checkpoint"
        return (
            f"interrupted at step {self.stopped_at}: {folder} is saved; the same command with "
            "--resume_from_checkpoint true goes on from it"
        )

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            if PartialState().is_main_process:
                text = "\ninterrupted: stopping after this step; Ctrl-C again stops at once"
                print(text, file=sys.stderr, flush=True)
        elif now - self._asked_at > _TOGETHER_S:
            raise KeyboardInterrupt

    def _is_asked_anywhere(self) -> bool:
        """Whether any process has been asked, so that all end at the same step."""
        state = PartialState()
        asked = torch.tensor(self._asked_at is not None, dtype=torch.float32, device=state.device)
        if state.num_processes > 1:
            torch.distributed.all_reduce(asked)
        return bool(asked)
