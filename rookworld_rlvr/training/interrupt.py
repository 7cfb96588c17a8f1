"""SIGINT (Ctrl-C) and SIGTERM: the step is finished, a checkpoint is saved, and training ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..common.terminal import unwatch_ctrl_c

# The terminal signals all processes, and accelerate's launcher passes the signal on again.
_TOGETHER_S = 2.0


class StopOnInterrupt(TrainerCallback):
    """Ends training with a checkpoint at SIGINT or SIGTERM, on all processes after the same step.

    It is enough that one process gets the signal. What is due at that step, such as an evaluation, is
    done first. Before the first step there is nothing to save, so that training ends at once, as it
    does at a second SIGINT. Further SIGTERMs are ignored: a scheduler may send several.

    Attributes:
        stopped_at: The optimiser step at which training ended; None if there was no signal.
        signal: The signal that ended it.
    """

    def __init__(self) -> None:
        self.stopped_at: int | None = None
        self.signal: signal.Signals | None = None
        self._asked = 0  # the signal that this process got first
        self._asked_at = 0.0  # seconds
        self._has_begun = False  # the first step
        self._before: dict[signal.Signals, Any] = {}

    # --------------------------------------------------------------------------------------------
    # Events
    # --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        unwatch_ctrl_c()  # what comes after training has something to clean up
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._has_begun = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop_if_asked(args, state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._has_begun and self._before:  # an evaluation may be long: no other step after it
            self._stop_if_asked(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    # --------------------------------------------------------------------------------------------
    # The end
    # --------------------------------------------------------------------------------------------
    def leave_if_stopped(self, output_dir: Path) -> None:
        """End the command if a signal ended training, with one line on how to go on.

        Raises:
            SystemExit: With 130 after SIGINT and 143 after SIGTERM.
        """
        if self.signal is None:
            return
        folder = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.stopped_at}"
        there = "; it has no checkpoint, see save_strategy"
        if folder.is_dir():
            again = "run the same command with --resume_from_checkpoint auto to go on from it"
            there = f": {folder} is saved; {again}"
        PartialState().print(f"interrupted at step {self.stopped_at}{there}")
        raise SystemExit(128 + self.signal)

    def _stop_if_asked(self, args: Any, state: Any, control: Any) -> None:
        if asked := self._asked_anywhere():
            self.stopped_at, self.signal = state.global_step, signal.Signals(asked)
            control.should_save = args.save_strategy != "no"
            control.should_training_stop = True

    def _asked_anywhere(self) -> int:
        """The signal that any process got, so that all end at the same step; 0 if none did."""
        state = PartialState()
        if state.num_processes == 1:
            return self._asked
        asked = torch.tensor(self._asked, device=state.device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        return int(asked)

    # --------------------------------------------------------------------------------------------
    # Signals
    # --------------------------------------------------------------------------------------------
    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._has_begun:
            _say(f"{_name(number)} before the first step: nothing to save")
            _end(number)
        if not self._asked:
            self._asked, self._asked_at = number, now
            _say(f"{_name(number)}: stopping after this step; Ctrl-C stops at once")
        elif number == signal.SIGINT and now - self._asked_at > _TOGETHER_S:
            _end(number)


def _end(number: int) -> None:
    """Leave the training loop from within a signal's handler."""
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _name(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else signal.Signals(number).name


def _say(text: str) -> None:
    """Print on one process; `print` may not be called in a handler that interrupts another `print`."""
    if PartialState().is_main_process:
        os.write(2, f"\n{text}\n".encode())
