"""The seconds and the memory of a step, by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from ..common.machine import peak_memory

if TYPE_CHECKING:
    from .step import Step

PHASES = ("sampling", "rewards")  # all other time of a step, up to its gradients, is its update
OF_UPDATE = ("reference", "loss")  # phases of the update that `log_phases` measures, too


MOST_USED = 0.8  # the largest share of a GPU's memory that a suggestion may reckon with


def larger_batches(batch_size: int, accumulation: int, peak: int, memory: int) -> str | None:
    """A line that suggests larger micro-batches of the same step; None where there is no room.

    It reckons as if all of the peak grew with the micro-batch, so it is on the safe side.

    Args:
        batch_size: Completions in a micro-batch.
        accumulation: Micro-batches in a step.
        peak: The most memory of the first step, in bytes.
        memory: The GPU's, in bytes.
    """
    fitting = [
        size
        for size in range(2, accumulation + 1)
        if accumulation % size == 0 and size * peak <= MOST_USED * memory
    ]
    if not fitting:
        return None
    size = max(fitting)
    return (
        f"memory: the first step took {peak / 2**30:.1f} of {memory / 2**30:.0f} GiB; "
        f"per_device_train_batch_size: {batch_size * size} with gradient_accumulation_steps: "
        f"{accumulation // size} would be faster (the same completions in a step; means over "
        "micro-batches, and keep_rows, differ)"
    )


class Clock(TrainerCallback):
    """Times the phases of a step.

    With `log_phases`, the update's own phases are timed, too, and the most memory in each. Then a GPU is
    waited for at the ends of phases: otherwise its work would count for a later phase.

    Args:
        trainer: Whose steps are timed.

    Attributes:
        watchers: Each is given the name of a phase as it begins, and returns a context to run it in.
    """

    def __init__(self, trainer: Step) -> None:
        self.watchers: list[Callable[[str], AbstractContextManager[None]]] = []
        self._is_fine = bool(getattr(trainer.args, "log_phases", False))
        self._peak = 0  # bytes, before the GPU's own count was last reset
        self._started: float | None = None
        self._trainer = trainer
        self._has_suggested = False
        self._begin_step()

    def _begin_step(self) -> None:
        phases = (*PHASES, *OF_UPDATE) if self._is_fine else PHASES
        self._seconds = dict.fromkeys(phases, 0.0)  # of the current step
        self._memory = dict.fromkeys((*phases, "update"), 0)  # bytes
        self._whole = 0.0  # seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note_memory("update")  # of what was before, such as an evaluation
        self._begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the first step on a GPU, suggest larger micro-batches if there is room for them."""
        sizes = args.per_device_train_batch_size, args.gradient_accumulation_steps
        is_usual = args.steps_per_generation == args.gradient_accumulation_steps
        if self._has_suggested or not (torch.cuda.is_available() and is_usual):
            return
        self._has_suggested = True
        memory = torch.cuda.get_device_properties(args.device).total_memory
        if line := larger_batches(*sizes, max(self._peak, peak_memory()), memory):
            self._trainer.accelerator.print(line)

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
        with self._timed(name), ExitStack() as watched:
            for watcher in self.watchers:
                watched.enter_context(watcher(name))
            yield

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
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

    def add(self, seconds: float) -> None:
        """Count the seconds of a micro-batch, sampling included where it has one."""
        self._whole += seconds

    def end_step(self) -> dict[str, float]:
        """The seconds of a step's phases and its memory in GiB, for the log; begins the next step."""
        self._note_memory("update")
        in_update = self._memory.keys() - PHASES
        self._memory["update"] = max(self._memory[name] for name in in_update)
        rest = self._whole - sum(self._seconds[phase] for phase in PHASES)
        seconds = {**self._seconds, "update": rest}
        numbers = {f"time/{phase}": number for phase, number in seconds.items()}
        if self._is_fine:  # a phase that there was not has no memory
            most = self._memory.items()
            numbers |= {f"memory/{name}": size / 2**30 for name, size in most if size}
        numbers["peak_memory"] = max(self._peak, peak_memory()) / 2**30
        self._begin_step()
        return numbers
