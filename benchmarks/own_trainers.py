"""Trainers that the benchmarks need, for `trainer_from`: one with a limit of time, one that is profiled.

Supervised training takes `TimeLimit` itself, as a callback.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu import ENDS, LIMITED, PROFILE, PROFILED, RESERVED, TIMED, TRAINING_SECONDS, WARM_UP
from torch.profiler import DeviceType, ProfilerActivity, profile
from transformers import TrainerCallback

from rookworld_rlvr.training.clock import Clock
from rookworld_rlvr.training.rollouts import Rollouts
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer


class TimeLimit(TrainerCallback):  # type: ignore[misc]
    """Ends training when the time is up, and writes what was done into the run's folder.

    The time is the environment's `TRAINING_SECONDS`, counted from the first step; less if the process
    is to be killed at `PROCESS_ENDS`, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.seconds = float(os.environ[TRAINING_SECONDS])
        self._began = 0.0
        self._logged: list[tuple[float, float]] = []  # seconds, tokens so far

    def share(self) -> float:
        """The share of the time that has passed, from 0 to 1."""
        return min(1.0, (time.time() - self._began) / self.seconds) if self._began else 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._began:
            return
        self._began = time.time()
        left = float(os.environ.get(ENDS, "inf")) - self._began - RESERVED
        self.seconds = max(1.0, min(self.seconds, left))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or self.share() == 1

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any
    ) -> None:
        if "num_tokens" in logs:
            self._logged.append((time.time(), logs["num_tokens"]))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write steps, seconds and tokens; tokens a second are those after the first log."""
        found = {"steps": state.global_step, "seconds": time.time() - self._began}
        if self._logged:
            (first, before), (last, after) = self._logged[0], self._logged[-1]
            found["tokens"] = after
            found["tokens a second"] = (
                (after - before) / (last - first) if last > first else after / found["seconds"]
            )
        Path(args.output_dir, LIMITED).write_text(json.dumps(found))


class TimeLimited(RookWorldGRPOTrainer):
    """Trains until `TimeLimit` ends it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(TimeLimit())


class ProfilingClock(Clock):
    """Also counts what the GPU does in some steps, and writes it into the run's folder.

    Sampling and the rest of a step are profiled apart. Only the GPU's work and its launches are
    recorded: with each of torch's operations a step would take much longer.

    Args:
        trainer: The `Profiled`.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._found: list[dict[str, Any]] = []
        self._profile: profile | None = None
        self._positions = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_begin(args, state, control, **kwargs)
        if state.global_step >= WARM_UP + TIMED and torch.cuda.is_available():
            self._start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop("update")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        is_border = name == "sampling" and self._profile is not None
        if is_border:
            self._stop("update")
            self._start()
        with super().phase(name):
            yield
        if is_border:
            self._stop("sampling")
            self._start()

    def note_positions(self, count: int) -> None:
        """Note how many tokens were drawn one after the other."""
        if self._profile is not None:
            self._positions += count

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._found:
            found = {"parts": self._found, "steps": PROFILED, "positions": self._positions}
            Path(args.output_dir, PROFILE).write_text(json.dumps(found))

    def _start(self) -> None:
        torch.cuda.synchronize()
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()

    def _stop(self, phase: str) -> None:
        if self._profile is not None:
            torch.cuda.synchronize()
            self._profile.stop()
            self._found.append({"phase": phase, **work_of_gpu(self._profile.key_averages())})
            self._profile = None


class Profiled(RookWorldGRPOTrainer):
    """Is timed by a `ProfilingClock`."""

    clock: ProfilingClock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(self.clock)
        self.clock = ProfilingClock(self)
        self.add_callback(self.clock)

    def rollouts_of(self, inputs: Any) -> Rollouts:
        sampled = super().rollouts_of(inputs)
        self.clock.note_positions(sampled.batch["completion_ids"].size(1))
        return sampled


def work_of_gpu(rows: Iterable[Any]) -> dict[str, float]:
    """Seconds that the GPU worked, its kernels, and how often it was given some: a graph has many.

    Args:
        rows: Of torch's profiler, one for each kernel and each call.
    """
    rows = [row for row in rows if not row.is_user_annotation]
    on_gpu = [row for row in rows if row.device_type != DeviceType.CPU]
    kernels = [row for row in on_gpu if not row.key.startswith(("Memcpy", "Memset"))]
    calls = [row for row in rows if row not in on_gpu and "Launch" in row.key]
    return {
        "seconds": sum(row.self_device_time_total for row in on_gpu) / 1e6,
        "kernels": sum(row.count for row in kernels),
        "launches": sum(row.count for row in calls),
    }
