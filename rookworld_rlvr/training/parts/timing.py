"""How many seconds the phases of a step take, and how much memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl.extras.profiling import ProfilingContext

from ...common.machine import peak_memory
from .part import Part

PHASES = ("sampling", "rewards")  # all other time of a step, up to its gradients, is its update


class StepTimes(Part):
    """Times the phases of a step and logs them with the step's other metrics.

    They replace TRL's own nine timings per step, which go to the dashboards without passing the log.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._seconds = dict.fromkeys(PHASES, 0.0)  # of the current step
        self._started: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()
        self._leave = ProfilingContext.__exit__
        ProfilingContext.__exit__ = lambda self, *error: False  # logs nothing

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ProfilingContext.__exit__ = self._leave

    def elapsed(self) -> dict[str, float]:
        """The seconds of training so far, for the log; empty before training."""
        if self._started is None:
            return {}
        return {"time/elapsed": time.perf_counter() - self._started}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; names other than `PHASES` count as part of the update."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if name in self._seconds:
                self._seconds[name] += time.perf_counter() - started

    def end_step(self, whole: float) -> None:
        """Record the phases of a step that took `whole` seconds, and begin the next step."""
        seconds = {**self._seconds, "update": whole - sum(self._seconds.values())}
        self._trainer.record({f"time/{phase}": number for phase, number in seconds.items()})
        self._trainer.record({"peak_memory": peak_memory() / 2**30})
        self._seconds = dict.fromkeys(PHASES, 0.0)
