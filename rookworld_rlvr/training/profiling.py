"""A profile of some steps: torch's trace as a file, and the operations that take longest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import profile
from transformers import TrainerCallback


class ProfileSteps(TrainerCallback):
    """Profiles optimiser steps on the main process, and what a run does between them.

    The trace, in Chrome's format, goes to the folder ``profile`` of the run. If the run ends before the
    last of the steps, or is resumed after the first one, the trace holds those that were taken.

    Args:
        steps: The first and the last step, counted from 1.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        self._first, self._last = steps
        self._profile: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_due = self._first <= state.global_step + 1 <= self._last
        if is_due and self._profile is None and state.is_world_process_zero:
            self._profile = profile(acc_events=True)  # of CPU and, if there is one, GPU
            self._profile.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self._last:
            self.on_train_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        path = Path(args.output_dir, "profile", f"steps_to_{state.global_step}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(path))
        print("\n".join(longest(self._profile.key_averages())))
        print(f"profile: {path} (open it at https://ui.perfetto.dev)")
        self._profile = None


def longest(operations: Iterable[Any], count: int = 10) -> list[str]:
    """A table of the operations that take longest themselves, without what they call, as lines."""

    def times(operation: Any) -> tuple[float, float]:
        return operation.self_device_time_total / 1e6, operation.self_cpu_time_total / 1e6

    lines = [f"{'operation':<60} {'calls':>8} {'GPU s':>8} {'CPU s':>8}"]
    for operation in sorted(operations, key=times, reverse=True)[:count]:
        on_gpu, on_cpu = times(operation)
        lines.append(f"{operation.key[:60]:<60} {operation.count:>8} {on_gpu:>8.3f} {on_cpu:>8.3f}")
    return lines
