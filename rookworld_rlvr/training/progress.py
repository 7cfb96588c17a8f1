"""What a run prints while it trains: a line per log, and a small table per held-out evaluation."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableSequence
from typing import Any

from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ..common.terminal import cells, printable
from ..tasks.metrics import headlines

_SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "grad_norm", "loss")
_SUPERVISED = ("loss", "mean_token_accuracy", "learning_rate", "grad_norm")


TABLE_STEPS = 10  # optimiser steps
_OWN_UNITS = ("rewards", "suites")  # rows whose numbers are not shares


class ShortProgressCallback(ProgressCallback):
    """Transformers' progress bar, on a terminal only; short lines instead of forty numbers per log."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if sys.stderr.isatty() and not args.disable_tqdm:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)

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
        lines = heldout_lines(state.global_step, heldout) if heldout else _line(state, logs)
        for line in lines:
            print(line) if self.training_bar is None else self.training_bar.write(line)


def print_short_lines(trainer: Trainer) -> None:
    """Let a trainer print by `ShortProgressCallback`."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ShortProgressCallback)


def _line(state: Any, logs: Mapping[str, Any]) -> list[str]:
    """The most telling numbers of a step, if possible in one line; none if the log has none of them."""
    names = _SHOWN if "reward" in logs else _SUPERVISED
    shown = [f"{name} {logs[name]:.4g}" for name in names if logs.get(name) is not None]
    return cells(f"step {state.global_step:>5}/{state.max_steps}  ", shown) if shown else []


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
    overall = f"  overall {results['overall']:.1%}" if "overall" in results else ""
    lines = [f"step {step:>5}  held-out{overall}"]
    first = set(headlines().values())
    rows: dict[str, list[str]] = {}
    for name in sorted(
        results, key=lambda name: name not in first
    ):  # headlines first, the others in their order
        row, slash, metric = name.partition("/")
        value = f"{results[name]:.4g}" if row in _OWN_UNITS else f"{results[name]:.1%}"
        if slash:
            rows.setdefault(row, []).append(f"{metric} {value}")
    for row in sorted(rows, key=lambda row: row == "suites"):
        lines += cells(f"    {row:<12} ", rows[row])
    return lines


class TableInterval:
    """Which logs come with tables: those every `TABLE_STEPS` steps, and the last one; once a step."""

    def __init__(self) -> None:
        self._made: int | None = None  # the step of the latest tables

    def due(self, trainer: Any, logs: Mapping[str, Any]) -> bool:
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


def escape_for_terminal(texts: MutableSequence[str]) -> None:
    """Escape control characters in texts that TRL is about to print, see `printable`."""
    for place, text in enumerate(texts):
        texts[place] = printable(text)
