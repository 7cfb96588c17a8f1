"""What a run does at a signal, and what it prints while it trains.

At SIGINT (Ctrl-C) and SIGTERM the step is finished, a checkpoint is saved, and training ends. A log is a
short line, a held-out evaluation a small table.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Mapping, MutableSequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..common.terminal import cells, printable, unwatch_ctrl_c
from ..tasks.metrics import headlines

if TYPE_CHECKING:
    from .step_log import StepLog

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
        # The signal that any process got, so that all end at the same step; 0 if none did.
        if asked := max(gather_object([self._asked])):
            self.stopped_at, self.signal = state.global_step, signal.Signals(asked)
            control.should_save = args.save_strategy != "no"
            control.should_training_stop = True

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        name = "interrupted" if number == signal.SIGINT else signal.Signals(number).name
        if not self._has_begun:
            _say(f"{name} before the first step: nothing to save")
            _end(number)
        if not self._asked:
            self._asked, self._asked_at = number, now
            _say(f"{name}: stopping after this step; Ctrl-C stops at once")
        elif number == signal.SIGINT and now - self._asked_at > _TOGETHER_S:
            _end(number)


def _end(number: int) -> None:
    """Leave the training loop from within a signal's handler."""
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _say(text: str) -> None:
    """Print on one process; `print` may not be called in a handler that interrupts another `print`."""
    if PartialState().is_main_process:
        os.write(2, f"\n{text}\n".encode())


# --------------------------------------------------------------------------------------------------
# What a run prints
# --------------------------------------------------------------------------------------------------
_SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "kl", "mean_entropy", "grad_norm", "loss")
_SUPERVISED = ("loss", "mean_token_accuracy", "learning_rate", "grad_norm")


# The last two are within the update.
_PHASES = ("sampling", "rewards", "update", "  reference", "  loss")
TABLE_STEPS = 10  # optimiser steps
_OWN_UNITS = ("rewards", "suites")  # rows whose numbers are not shares


class ShortProgressCallback(ProgressCallback):
    """Transformers' progress bar, on a terminal only; short lines instead of forty numbers per log."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds: list[float] = []  # of the steps since the last line

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            hidden = args.disable_tqdm or None  # None hides it where there is no terminal
            self.training_bar = tqdm(total=state.max_steps, dynamic_ncols=True, disable=hidden)
        self.current_step = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._seconds.append(-time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if self._seconds:
            self._seconds[-1] += time.perf_counter()
        # The last steps have a log of their own if there are fewer of them than logging_steps.
        control.should_log |= state.global_step >= state.max_steps

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        heldout = {
            name.removeprefix("eval_"): float(value)
            for name, value in logs.items()
            if name.startswith("eval_") and name != "eval_runtime"
        }
        lines = heldout_lines(state.global_step, heldout) if heldout else self._lines(state, logs)
        for line in lines:
            tqdm.write(line)

    def _lines(self, state: Any, logs: Mapping[str, Any]) -> list[str]:
        """A step's numbers and seconds, then its phases if they are logged; none without numbers.

        Only TRL's GRPO logs the seconds itself.
        """
        if seconds := self._seconds:
            logs = {"step_time": statistics.fmean(seconds), **logs}
        lines = _line(state, logs)
        if lines:
            self._seconds = []
            lines += phase_lines(logs)
        return lines


def print_short_lines(trainer: Trainer) -> None:
    """Let a trainer print by `ShortProgressCallback`."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ShortProgressCallback)


def _line(state: Any, logs: Mapping[str, Any]) -> list[str]:
    """The most telling numbers of a step, if possible in one line; none if the log has none of them."""
    names = _SHOWN if {"reward", "loss/policy"} & logs.keys() else _SUPERVISED
    shown = [f"{name} {logs[name]:.4g}" for name in names if logs.get(name) is not None]
    if shown and "step_time" in logs:
        shown.append(f"{logs['step_time']:.2f} s a step")
        if left := (state.max_steps - state.global_step) * logs["step_time"]:
            shown.append(f"{tqdm.format_interval(left)} left")
    return cells(f"step {state.global_step:>5}/{state.max_steps}  ", shown) if shown else []


def phase_lines(logs: Mapping[str, Any]) -> list[str]:
    """The phases of a step, a line each; none without `log_phases`.

    >>> logs = {
    ...     "time/sampling": 1.25,
    ...     "memory/sampling": 2.5,
    ...     "time/loss": 0.5,
    ...     "memory/loss": 10.0,
    ... }
    >>> print("\\n".join(phase_lines(logs)))
        sampling         1.250 s     2.50 GiB
          loss           0.500 s    10.00 GiB
    """
    lines = []
    for shown in _PHASES:
        phase = shown.strip()
        if f"memory/{phase}" in logs:
            seconds, memory = logs[f"time/{phase}"], logs[f"memory/{phase}"]
            lines.append(f"    {shown:<12}{seconds:>10.3f} s{memory:>9.2f} GiB")
    return lines


def heldout_lines(step: int, results: Mapping[str, float]) -> list[str]:
    """A held-out evaluation as a small table: the overall number, then a row per task.

    Args:
        step: The optimiser step.
        results: Shares in [0, 1] by metric, and metrics of suites in their own units.

    >>> results = {"overall": 0.5, "policy/format": 1.0, "policy/expected_score": 0.5}
    >>> print("\\n".join(heldout_lines(50, {**results, "suites/puzzles/elo": 900})))
    step    50  held-out  overall 50.0%
        policy       expected_score 50.0%  format 100.0%
        suites       puzzles/elo 900
    """
    if "reward" in results:  # of rows of no task, measured by TRL: rewards have their own scale
        shown = [f"{name} {results[name]:.4g}" for name in results if name.startswith("reward")]
        return cells(f"step {step:>5}  held-out  ", shown)
    overall = f"  overall {results['overall']:.1%}" if "overall" in results else ""
    lines = [f"step {step:>5}  held-out{overall}"]
    first = set(headlines().values())
    rows: dict[str, list[str]] = {}
    # Headlines first, the others in their order.
    for name in sorted(results, key=lambda name: name not in first):
        row, slash, metric = name.partition("/")
        value = f"{results[name]:.4g}" if row in _OWN_UNITS else f"{results[name]:.1%}"
        if slash:
            rows.setdefault(row, []).append(f"{metric} {value}")
    for row in sorted(rows, key=lambda row: row == "suites"):
        lines += cells(f"    {row:<12} ", rows[row])
    return lines


class TableInterval:
    """Which logs come with tables: those every `TABLE_STEPS` steps, and the last one; once a step."""

    _made: int | None = None  # the step of the latest tables

    def due(self, trainer: StepLog, logs: Mapping[str, Any]) -> bool:
        """Whether tables belong to a log, which is then taken to have them.

        Args:
            trainer: The `RookWorldGRPOTrainer` that logs.
            logs: Metrics by the trainer's names.
        """
        step = trainer.state.global_step
        of_training = "loss" in logs or "train_runtime" in logs  # of a step, or at the end
        at_step = step % TABLE_STEPS == 0 or trainer.control.should_training_stop
        if not (of_training and at_step and trainer.sampled) or step == self._made:
            return False
        self._made = step
        return True


def escape_for_terminal(said: MutableSequence[Any]) -> None:
    """Escape control characters in completions that TRL is about to print, see `printable`."""
    for place, text in enumerate(said):
        if isinstance(text, str):
            said[place] = printable(text)
        else:  # a chat
            said[place] = [{**m, "content": printable(str(m.get("content", "")))} for m in text]
