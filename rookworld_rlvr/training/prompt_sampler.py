"""Which prompts a generation batch holds: phases of tasks.

Batches are numbered from 0 over the whole run. Each is drawn from its number and the seed. So every
process draws the same rows, and a resumed run draws what it would have drawn without the interruption.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Sampler
from transformers import TrainerCallback

from ..common.errors import RookWorldError
from ..tasks.registry import TASKS
from .arguments import StepArguments
from .sampling import check_rows

if TYPE_CHECKING:
    from .step import Step

_ALL = ""  # the pool of all rows, used if there are no phases
_STREAM, _EXTRA = 0, 2  # parts of seeds, so that no two draws share one

RowNumbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TaskPhase:
    """The shares of tasks in each batch, and the steps that they last."""

    shares: Mapping[str, Fraction]  # by task, above 0; their sum is 1
    steps: int | None = None  # optimiser steps; None: to the end of the run


def phases_of(args: StepArguments) -> tuple[TaskPhase, ...]:
    """The phases of `task_phases`, which must be free of faults; empty if there are none."""
    entries: Any = args.task_phases or ()
    phases = []
    for entry in entries:
        # Shares are read as decimals: 0.1 is exactly a tenth, so a batch of ten has exactly one.
        given = {
            task: Fraction(float(entry.get(task, 0))).limit_denominator(10**6) for task in TASKS
        }
        total = sum(given.values())
        shares = {task: share / total for task, share in given.items() if share}
        phases.append(TaskPhase(shares, entry.get("steps")))
    return tuple(phases)


@dataclass(eq=False)
class PromptSampler(Sampler[int]):
    """Draws rows for generation batches, in the layout of `trl.trainer.utils.RepeatSampler`.

    In a batch, each row is repeated `mini_repeat_count` times in succession, and the whole batch is
    yielded `repeat_count` times. An epoch has as many batches as the data fill. No row of a task is
    repeated before all of them were drawn once, across batches and epochs.

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

    rows: Dataset
    mini_repeat_count: int
    batch_size: int = 1
    repeat_count: int = 1
    seed: int = 0
    steps_per_batch: Fraction | int = 1
    phases: Sequence[TaskPhase] = ()
    shuffle: bool = True

    def __post_init__(self) -> None:
        count = len(self.rows)
        check_rows(count, self.batch_size)
        self.epoch = 0
        self.batches_per_epoch = count // self.batch_size
        self.steps_per_epoch = math.ceil(self.batches_per_epoch * self.steps_per_batch)
        self._pools: dict[str, RowNumbers] = {_ALL: np.arange(count, dtype=np.int32)}
        if self.phases:
            column = self.rows.with_format("arrow")[:]["task"]
            for task in TASKS:
                self._pools[task] = np.flatnonzero(pc.equal(column, task)).astype(np.int32)
        self.phases = self.phases or [TaskPhase({_ALL: Fraction(1)})]
        for task in {task for phase in self.phases for task in phase.shares}:
            if not len(self._pools[task]):
                raise RookWorldError(
                    f"there are no {task} rows to train on, but task_phases gives them a share; add "
                    f"some, or leave {task} out of task_phases"
                )
        self._passes: dict[str, tuple[int, RowNumbers]] = {}  # the latest pass over each pool
        self._batches = [[0] * len(self.phases)]  # of each phase, before each batch

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

    # --------------------------------------------------------------------------------------------
    # Batches
    # --------------------------------------------------------------------------------------------
    def batch(self, number: int) -> list[int]:
        """The rows of a batch, with tasks evenly spread, so that each process gets its share of each."""
        before, after = self._drawn(number), self._drawn(number + 1)
        return _spread(
            {
                task: [self._row(task, at) for at in range(before[task], count)]
                for task, count in after.items()
            }
        )

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
        chosen: dict[str, list[int]] = {task: [] for task in counts}
        for task, rows in chosen.items():
            for row in rng.permutation(self._pools[task]).tolist():
                if len(rows) == counts[task]:
                    break
                if (text := str(self.rows[row]["prompt"])) not in seen:
                    rows.append(row)
                    seen.add(text)
        return _spread(chosen)

    def _drawn(self, number: int) -> Counter[str]:
        """How many rows of each task the batches before one take.

        If rounding gives a task too many or too few, the phase's next batches make up for it. Each phase
        counts by itself, so that a task without a share is never drawn.
        """
        while len(self._batches) <= number:
            epoch, within = divmod(len(self._batches) - 1, self.batches_per_epoch)
            step = epoch * self.steps_per_epoch + math.floor(within * self.steps_per_batch)
            self._batches.append([*self._batches[-1]])
            self._batches[-1][self._phase_at(step)] += 1
        drawn: Counter[str] = Counter()
        for phase, batches in zip(self.phases, self._batches[number], strict=True):
            drawn.update(_counts(phase.shares, batches * self.batch_size))
        return drawn

    def _phase_at(self, step: int) -> int:
        ends = list(accumulate(phase.steps or math.inf for phase in self.phases))
        return bisect_right(ends, step % ends[-1])

    def _row(self, task: str, at: int) -> int:
        """A row of a task in random order, pass after pass."""
        pool = self._pools[task]
        number, place = divmod(at, len(pool))
        if self._passes.get(task, (-1,))[0] != number:
            seed = (self.seed, _STREAM, [_ALL, *TASKS].index(task), number)
            order = np.random.default_rng(seed).permutation(pool) if self.shuffle else pool
            self._passes[task] = number, order
        return int(self._passes[task][1][place])


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


def sampler_of(trainer: Step, rows: Dataset) -> PromptSampler:
    """The sampler of a trainer's prompts."""
    fetched = trainer.num_iterations * trainer.args.steps_per_generation
    return PromptSampler(
        rows,
        mini_repeat_count=trainer.num_generations,
        batch_size=trainer.args.generation_batch_size // trainer.num_generations,
        repeat_count=fetched,
        seed=trainer.args.seed,
        steps_per_batch=Fraction(fetched, trainer.args.gradient_accumulation_steps),
        phases=phases_of(trainer.keys),
        shuffle=trainer.shuffle_dataset,
    )


class EpochCallback(TrainerCallback):
    """Sets the sampler's epoch, which nothing else sets if a run is resumed within an epoch.

    With several processes, accelerate's `skip_first_batches` wraps the sampler once more than its
    loaders unwrap.

    Args:
        trainer: Whose sampler it is.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sampler = self._trainer.prompt_sampler
        sampler.set_epoch(state.global_step // sampler.steps_per_epoch)
