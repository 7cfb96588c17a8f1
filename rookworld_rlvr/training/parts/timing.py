"""Seconds of a step's phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl.extras.profiling import ProfilingContext

from .part import Part

PHASES = ("sampling", "rewards")  # of a step; the rest is its update


class StepTimes(Part):
    """Times the phases of a step, and logs them with those of the step.

    They take the place of TRL's own nine timings a step, which go past the log to the dashboards.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._seconds = dict.fromkeys(PHASES, 0.0)  # of the step under way
        self._started: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()
        self._leave = ProfilingContext.__exit__
        ProfilingContext.__exit__ = lambda self, *error: False  # says nothing

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ProfilingContext.__exit__ = self._leave

    def elapsed(self) -> dict[str, float]:
        """Training's seconds so far, for the log; empty before training."""
        if self._started is None:
            return {}
        return {"time/elapsed": time.perf_counter() - self._started}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done in here; what is no phase of its own belongs to the update."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if name in self._seconds:
                self._seconds[name] += time.perf_counter() - started

    def end_step(self, whole: float) -> None:
        """Record the phases of a step that took so many seconds, and begin another."""
        seconds = {**self._seconds, "update": whole - sum(self._seconds.values())}
        self._trainer.record({f"time/{phase}": number for phase, number in seconds.items()})
        self._seconds = dict.fromkeys(PHASES, 0.0)
