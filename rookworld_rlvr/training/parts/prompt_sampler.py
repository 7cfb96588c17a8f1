"""Which prompts a generation batch holds: phases of tasks.

Batches are numbered from 0 over the whole run. Each is drawn from its number and the seed. So every
process draws the same rows, and a resumed run draws what it would have drawn without the interruption.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ...common.errors import RookWorldError
from ...tasks.registry import TASKS
from .arguments import PromptArguments
from .groups import check_rows
from .part import Part, arguments_of

_ALL = ""  # the pool of all rows, used if there are no phases


_STREAM, _EXTRA = 0, 2  # parts of seeds, so that no two draws share one


Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Phase:
    """The shares of tasks in each batch, and the steps that they last."""

    shares: Mapping[str, Fraction]  # by task, above 0; their sum is 1
    steps: int | None = None  # optimiser steps; None: to the end of the run


def phases_of(args: PromptArguments) -> tuple[Phase, ...]:
    """The phases of `task_phases`, which must be free of faults; empty if there are none."""
    entries: Any = args.task_phases or ()
    return tuple(map(_phase, entries))


def _phase(entry: Mapping[str, Any]) -> Phase:
    # Shares are read as decimals: 0.1 is exactly a tenth, so a batch of ten has exactly one.
    shares = {
        task: Fraction(float(entry[task])).limit_denominator(10**6)
        for task in TASKS
        if entry.get(task)
    }
    total = sum(shares.values())
    return Phase({task: share / total for task, share in shares.items()}, entry.get("steps"))


class PromptSampler(Sampler[int]):
    """Draws rows for generation batches, in the layout of `trl.trainer.utils.RepeatSampler`.

    In a batch, each row is repeated `mini_repeat_count` times in succession, and the whole batch is
    yielded `repeat_count` times. An epoch has as many batches as the data fill.

    No row of a task is repeated before all of them were drawn once, across batches and epochs, and a
    batch holds no row twice. Only if a task has too few rows are they repeated, all equally often, give
    or take one.

    Args:
        rows: `N` rows with the column `prompt`, and `task` if there are phases.
        mini_repeat_count: Completions per prompt.
        batch_size: Prompts per generation batch, over all processes.
        repeat_count: How often a batch is fetched: iterations times slices.
        seed: The seed, which is the same on every process.
        steps_per_batch: Optimiser steps per batch; below 1 if a step takes several batches.
        phases: Empty draws from all rows.
        shuffle: False takes rows in their order.

    Raises:
        RookWorldError: A task with a share has no rows, or all rows together do not fill a batch.
    """

    def __init__(
        self,
        rows: Dataset,
        mini_repeat_count: int,
        batch_size: int = 1,
        repeat_count: int = 1,
        *,
        seed: int = 0,
        steps_per_batch: float | Fraction = 1,
        phases: Sequence[Phase] = (),
        shuffle: bool = True,
    ) -> None:
        self.mini_repeat_count = mini_repeat_count
        self.batch_size = batch_size
        self.repeat_count = repeat_count
        self.seed = seed
        self.steps_per_batch = Fraction(steps_per_batch).limit_denominator(10**6)
        self.phases = tuple(phases) or (Phase({_ALL: Fraction(1)}),)
        self.shuffle = shuffle
        self.epoch = 0
        self.batches_per_epoch = len(rows) // batch_size
        check_rows(len(rows), batch_size)
        self.steps_per_epoch = math.ceil(self.batches_per_epoch * self.steps_per_batch)
        self._rows = rows
        self._pools: dict[str, Rows] = {_ALL: np.arange(len(rows), dtype=np.int32)}
        if phases:
            self._pools |= _rows_by_task(rows)
            self._check_tasks()
        self._restart()

    # --------------------------------------------------------------------------------------------
    # The interface for loaders
    # --------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        """The number of indices in an epoch."""
        return self.batches_per_epoch * self.batch_size * self.mini_repeat_count * self.repeat_count

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.batches_per_epoch
        for number in range(first, first + self.batches_per_epoch):
            rows = np.repeat(self.batch(number), self.mini_repeat_count).tolist()
            for _ in range(self.repeat_count):
                yield from rows
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at this epoch's first batch."""
        self.epoch = epoch

    def seek(self, step: int) -> None:
        """Set the epoch to that of an optimiser step.

        A run of several processes that is resumed within an epoch does not set it otherwise:
        accelerate's `skip_first_batches` wraps the sampler once more than its loaders unwrap.
        """
        self.set_epoch(step // self.steps_per_epoch)

    # --------------------------------------------------------------------------------------------
    # Batches
    # --------------------------------------------------------------------------------------------
    def batch(self, number: int) -> list[int]:
        """The rows of a batch, with tasks evenly spread, so that each process gets its share of each.

        Going forward is cheap; going back starts from the first batch again.
        """
        if number < self._next:
            self._restart()
        by_task: dict[str, list[int]] = {}
        while self._next <= number:
            counts = self._next_counts()
            by_task = {task: self._streams[task].take(count) for task, count in counts.items()}
        return _spread(by_task)

    def extra(self, count: int, step: int, round_: int, exclude: Collection[str] = ()) -> list[int]:
        """Extra rows, which leave the batches as they are.

        Args:
            count: The number of rows, shared out among tasks like a batch.
            step: The optimiser step, which decides on the shares of tasks.
            round_: The number of the draw within the step.
            exclude: Texts of prompts that must not be drawn.

        Returns:
            Different rows with different prompts; fewer if the data have no more.
        """
        rng = np.random.default_rng((self.seed, _EXTRA, step, round_))
        shares = self.phases[self._phase_at(step)].shares
        # A random offset instead of a half makes the shares right in the long run, without any memory.
        counts = _counts(shares, count, Fraction(rng.random()))
        seen = set(exclude)
        return _spread({task: self._distinct(rng, task, n, seen) for task, n in counts.items()})

    def first_step(self, number: int) -> int:
        """The first optimiser step that a batch is drawn for."""
        epoch, within = divmod(number, self.batches_per_epoch)
        return epoch * self.steps_per_epoch + math.floor(within * self.steps_per_batch)

    # --------------------------------------------------------------------------------------------
    # Shares
    # --------------------------------------------------------------------------------------------
    def _restart(self) -> None:
        self._next = 0  # batch
        self._batches = [0] * len(self.phases)  # so far, by phase
        self._streams = {
            task: _Stream(self._pools[task], self.seed, code, self.shuffle)
            for code, task in enumerate((_ALL, *TASKS))
            if any(task in phase.shares for phase in self.phases)
        }

    def _next_counts(self) -> dict[str, int]:
        """The number of prompts of each task in the next batch.

        If rounding gives a task too many or too few, the phase's next batches make up for it. Each phase
        counts by itself, so that a task without a share is never drawn.
        """
        index = self._phase_at(self.first_step(self._next))
        shares, batches = self.phases[index].shares, self._batches[index]
        before = _counts(shares, batches * self.batch_size)
        after = _counts(shares, (batches + 1) * self.batch_size)
        self._batches[index] += 1
        self._next += 1
        return {task: after[task] - before[task] for task in shares}

    def _phase_at(self, step: int) -> int:
        ends = list(accumulate(phase.steps or math.inf for phase in self.phases))
        return bisect_right(ends, step % ends[-1])

    # --------------------------------------------------------------------------------------------
    # Rows
    # --------------------------------------------------------------------------------------------
    def _check_tasks(self) -> None:
        shares = {task: share for phase in self.phases for task, share in phase.shares.items()}
        for task, share in shares.items():
            if not len(self._pools[task]):
                raise RookWorldError(
                    f"there are no {task} rows to train on, but task_phases gives them a share of "
                    f"{float(share):g}; add such rows, or leave {task} out of "
                    "task_phases"
                )

    def _prompts(self, rows: Sequence[int]) -> list[str]:
        texts: list[str] = self._rows["prompt"][list(rows)]
        return texts

    def _distinct(
        self, rng: np.random.Generator, task: str, count: int, seen: set[str]
    ) -> list[int]:
        """Up to `count` random rows of different prompts that are not yet in `seen`; adds them to it."""
        chosen: list[int] = []
        for row in rng.permutation(self._pools[task]).tolist():
            if len(chosen) == count:
                break
            (text,) = self._prompts([row])
            if text not in seen:
                chosen.append(row)
                seen.add(text)
        return chosen


class _Stream:
    """The rows of a task in random order, pass after pass."""

    def __init__(self, pool: Rows, seed: int, code: int, shuffle: bool) -> None:
        self._pool = pool
        self._seed = (seed, _STREAM, code)
        self._shuffle = shuffle
        self._passes = 0
        self._order = pool[:0]
        self._at = 0

    def take(self, count: int) -> list[int]:
        """The next `count` rows."""
        taken: list[int] = []
        while len(taken) < count:
            if self._at == len(self._order):
                self._next_pass(taken, count - len(taken))
            part = self._order[self._at : self._at + count - len(taken)]
            self._at += len(part)
            taken += part.tolist()
        return taken

    def _next_pass(self, taken: Sequence[int], wanted: int) -> None:
        """Shuffle the rows for the next pass; those already in the current batch come later."""
        self._order, self._at = self._pool, 0
        if self._shuffle:
            self._order = np.random.default_rng((*self._seed, self._passes)).permutation(self._pool)
        self._passes += 1
        held = taken[: len(taken) % len(self._pool)]  # the rest was whole passes
        if held:
            head = self._order[~np.isin(self._order, held)][:wanted]
            self._order = np.concatenate([head, self._order[~np.isin(self._order, head)]])


def _rows_by_task(rows: Dataset) -> dict[str, Rows]:
    if "task" not in rows.column_names:
        raise RookWorldError(
            "task_phases needs rows with the column `task`, which is missing; add it"
        )
    column = rows.select_columns("task").with_format("arrow")[:]["task"]
    return {
        task: np.flatnonzero(pc.equal(column, task).to_numpy()).astype(np.int32) for task in TASKS
    }


def _counts(
    shares: Mapping[str, Fraction], amount: int, offset: Fraction = Fraction(1, 2)
) -> dict[str, int]:
    """Split an amount by shares into whole numbers that add up to the amount.

    >>> _counts({"environment": Fraction(1, 4), "policy": Fraction(3, 4)}, 10)
    {'environment': 3, 'policy': 7}
    """
    ends = [math.floor(through * amount + offset) for through in accumulate(shares.values())]
    counts = (end - start for start, end in pairwise([0, *ends]))
    return dict(zip(shares, counts, strict=True))


def _spread(by_task: Mapping[str, Sequence[int]]) -> list[int]:
    """The rows of all tasks in one list, each task's rows evenly spaced.

    >>> _spread({"environment": [1, 2], "policy": [11, 12, 13, 14]})
    [11, 1, 12, 13, 2, 14]
    """
    placed = [
        ((index + 0.5) / len(rows), row)
        for rows in by_task.values()
        for index, row in enumerate(rows)
    ]
    return [row for _, row in sorted(placed, key=lambda item: item[0])]


class PromptSampling(Part):
    """Draws prompts by phase, and extra ones for other parts.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @classmethod
    def of(cls, trainer: Any) -> PromptSampling:
        return cls(trainer)

    def sampler(self, dataset: Dataset) -> PromptSampler:
        trainer = self._trainer
        fetched = trainer.num_iterations * trainer.args.steps_per_generation
        return PromptSampler(
            dataset,
            mini_repeat_count=trainer.num_generations,
            batch_size=trainer.args.generation_batch_size // trainer.num_generations,
            repeat_count=fetched,
            seed=trainer.args.seed,
            steps_per_batch=Fraction(fetched, trainer.args.gradient_accumulation_steps),
            phases=phases_of(arguments_of(trainer.args, PromptArguments)),
            shuffle=trainer.shuffle_dataset,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the sampler's epoch, which nothing else sets if a run is resumed within an epoch."""
        self._trainer.prompt_sampler.seek(state.global_step)
