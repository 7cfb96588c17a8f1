"""Groups with equal rewards carry no signal: they can be replaced or left out.

A group of equal rewards has advantages of 0. If it is kept, it dilutes the step, and only its KL term
acts. DAPO (Yu et al. 2025) samples until a batch is full of groups that carry signal; here the number
of extra prompts is bounded. All processes decide alike, because they use rewards gathered over all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from trl import GRPOConfig
from trl.trainer.utils import pad

from ...common.settings import setting
from ..health.monitor import batch_health
from .advantages import STD_EPSILON, nanstd
from .part import Part, arguments_of

# Masks and the number of their tokens on all processes.
_COUNTED = {"completion_mask": "num_items_in_batch", "answer_mask": "answer_items"}


STD_THRESHOLD = 1e-6  # a group has no signal if its rewards deviate no more than this


MOST_EXTRA = 4  # prompts that may replace others, as a multiple of those in a batch


Batch = dict[str, torch.Tensor]


@dataclass
class VarianceArguments:
    """What happens to groups without signal, whose rewards are all equal."""

    zero_variance: Literal["keep", "resample", "skip", "teach"] = setting(
        "keep",
        "What to do with groups whose rewards are all equal: keep them (as TRL does), resample "
        "(replace them by other prompts), skip (leave them out of the loss, KL term included), or "
        "teach (keep them; and in every group without a right completion, whatever its rewards, "
        "replace one completion by a right answer).",
    )

    def variance_faults(self, args: GRPOConfig, processes: int) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        faults: list[str] = []
        if self.zero_variance == "keep":
            return faults
        if args.advantage_estimator != "group":
            faults.append(
                f"zero_variance: {self.zero_variance!r} works on groups, which advantage_estimator: gae "
                "does not use; set zero_variance: keep"
            )
        if args.multi_objective_aggregation != "sum_then_normalize":
            faults.append(
                f"zero_variance: {self.zero_variance!r} needs multi_objective_aggregation: "
                "sum_then_normalize"
            )
        if self.zero_variance in ("resample", "teach"):
            faults += torn_groups(f"zero_variance: {self.zero_variance!r}", args, processes)
        return faults


def torn_groups(key: str, args: GRPOConfig, processes: int) -> list[str]:
    """The fault of a key that needs whole groups on each process, if they are torn."""
    local = (args.generation_batch_size or 0) // processes
    if not local % args.num_generations:
        return []
    return [
        f"{key} needs whole groups on each process, but {local} completions are not a multiple of "
        f"num_generations: {args.num_generations}; change either"
    ]


# --------------------------------------------------------------------------------------------------
# Which group takes which place
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Round:
    """One round of sampling on all processes, process by process.

    Args:
        tasks: The task of each group.
        signal: Whether each group carries signal.
    """

    tasks: Sequence[str]
    signal: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Sampled(Round):
    """A round with what it sampled: this process's batch, and the log of all processes' rows."""

    rows: Sequence[Mapping[str, Any]]  # of this process
    batch: Batch
    rewards: torch.Tensor  # (N,)
    logs: Mapping[tuple[str, str], list[Any]]  # by table and column: N values each


def fill(rounds: Sequence[Round], processes: int) -> list[tuple[int, int]]:
    """Which group takes each place of the batch, as its round and its index in that round.

    The first round's groups take their own places. If one has no signal, a later group of the same
    process with signal replaces it, preferably one of the same task. If there is none left, the first
    group stays.

    >>> first = Round(["policy", "environment"], [False, True])
    >>> fill([first, Round(["environment", "policy"], [True, True])], processes=1)
    [(1, 1), (0, 1)]
    """
    first, later = rounds[0], rounds[1:]
    places = [(0, index) for index in range(len(first.tasks))]
    for process in range(processes):
        spare = [
            (number, index)
            for number, extra in enumerate(later, start=1)
            for index in _share(range(len(extra.tasks)), processes, process)
            if extra.signal[index]
        ]
        local = _share(range(len(first.tasks)), processes, process)
        holes = [place for place in local if not first.signal[place]]
        own_first = sorted(holes, key=lambda place: not _of_task(first.tasks[place], spare, rounds))
        for place in own_first:
            if spare:
                own = _of_task(first.tasks[place], spare, rounds)
                places[place] = own[0] if own else spare[0]
                spare.remove(places[place])
    return places


def _share(items: Any, processes: int, process: int) -> Any:
    """This process's part of a sequence that holds all processes' items, process by process."""
    size = len(items) // processes
    return items[process * size : (process + 1) * size]


def _of_task(
    task: str, spare: Sequence[tuple[int, int]], rounds: Sequence[Round]
) -> list[tuple[int, int]]:
    return [(number, index) for number, index in spare if rounds[number].tasks[index] == task]


def next_round(rounds: Sequence[Round], processes: int, most_extra: int) -> int:
    """How many groups each process samples next; 0 if nothing is missing or the bound is reached.

    It is the number expected to fill the process that lacks most, at the rate of signal seen so far.
    """
    local = len(rounds[0].tasks) // processes
    places = fill(rounds, processes)
    missing = [not rounds[number].signal[index] for number, index in places]
    need = max(sum(missing[start : start + local]) for start in range(0, len(missing), local))
    extra = sum(len(r.tasks) for r in rounds[1:]) // processes
    drawn = [signal for r in rounds for signal in r.signal]
    rate = max(sum(drawn), 1) / len(drawn)
    return min(math.ceil(need / rate), local, most_extra - extra) if need else 0


# --------------------------------------------------------------------------------------------------
# Batches
# --------------------------------------------------------------------------------------------------
def rows_of(groups: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Round and row of each completion of the given groups, which have `size` completions each."""
    return [(number, index * size + turn) for number, index in groups for turn in range(size)]


def select_groups(
    batches: Sequence[Batch], chosen: Sequence[tuple[int, int]], generations: int, pad_token_id: int
) -> Batch:
    """One batch of the chosen groups, each given by batch and index; scalars come from the first batch.

    Prompts are padded on the left, completions and their per-token values on the right. Columns that are
    padding in all chosen rows are dropped.
    """
    merged = {}
    for key, first in batches[0].items():
        if first.dim() == 0:
            merged[key] = first
            continue
        rows = [batches[number][key][row] for number, row in rows_of(chosen, generations)]
        if first.dim() == 1:
            merged[key] = torch.stack(rows)
            continue
        fill_with = pad_token_id if key in ("prompt_ids", "completion_ids") else 0
        merged[key] = pad(rows, fill_with, "left" if key.startswith("prompt_") else "right")
    _trim(merged)
    return merged


def _trim(batch: Batch) -> None:
    """Drop columns that are padding in every row."""
    prompt = int(batch["prompt_mask"].sum(1).max())
    length = max(1, int(batch["completion_mask"].sum(1).max()))
    for key, tensor in batch.items():
        if tensor.dim() < 2 or tensor.size(1) == 1 or key.startswith("answer_"):
            continue
        batch[key] = tensor[:, -prompt:] if key.startswith("prompt_") else tensor[:, :length]


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class Groups(Part):
    """Decides which groups are trained on.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        args: The part's keys.
    """

    def __init__(self, trainer: Any, args: VarianceArguments) -> None:
        self.args = args
        self._trainer = trainer
        self._size = trainer.num_generations
        self._processes = trainer.accelerator.num_processes
        self._rank = trainer.accelerator.process_index

    @classmethod
    def of(cls, trainer: Any) -> Groups:
        """The part; it is always there, because it also computes the metrics of groups."""
        return cls(trainer, arguments_of(trainer.args, VarianceArguments))

    @property
    def resamples(self) -> bool:
        """Whether other prompts replace those without signal."""
        return self.args.zero_variance == "resample"

    # --------------------------------------------------------------------------------------------
    # Rounds
    # --------------------------------------------------------------------------------------------
    def assess(self, rewards: torch.Tensor) -> list[bool]:
        """Which groups of a round carry signal.

        Args:
            rewards: ``(N,)``; nan if a completion could not be scored.
        """
        deviations = nanstd(rewards.view(-1, self._size)).flatten()
        signal: list[bool] = (deviations > STD_THRESHOLD).tolist()
        return signal

    def more(self, rounds: Sequence[Sampled]) -> list[dict[str, Any]]:
        """This process's rows of the next round; empty if nothing is missing or the bound is reached."""
        if not self.resamples:
            return []
        trainer = self._trainer
        local = len(rounds[0].tasks) // self._processes
        most = math.ceil(MOST_EXTRA * local)
        count = next_round(rounds, self._processes, most)
        if not count:
            return []
        seen = {prompt for sampled in rounds for prompt in sampled.logs["prompt", ""]}
        step, sampler = trainer.state.global_step, trainer.parts.prompts.sampler
        rows = sampler.extra(count * self._processes, step, len(rounds), exclude=seen)
        mine = [trainer.train_dataset[row] for row in self._mine(rows)]
        return [row for row in mine for _ in range(self._size)]

    def _mine(self, items: Any) -> Any:
        return _share(items, self._processes, self._rank)

    def choose(self, rounds: Sequence[Sampled]) -> list[tuple[int, int]]:
        """The group that takes each place of the batch, as round and index."""
        return fill(rounds, self._processes)

    def batch(self, rounds: Sequence[Sampled], places: Sequence[tuple[int, int]]) -> Batch:
        """This process's batch of the chosen groups, with skipped groups masked."""
        batch = self._merge(rounds, places) if len(rounds) > 1 else rounds[0].batch
        if self.args.zero_variance == "skip":
            kept = [rounds[number].signal[index] for number, index in places]
            self._leave_out(batch, torch.tensor(kept))
        return batch

    def _merge(self, rounds: Sequence[Sampled], places: Sequence[tuple[int, int]]) -> Batch:
        trainer = self._trainer
        before = [self._rank * (len(sampled.tasks) // self._processes) for sampled in rounds]
        local = [(number, index - before[number]) for number, index in self._mine(places)]
        if trainer.scale_rewards == "batch":
            self._scale_by_whole(rounds, places)
        batches = [sampled.batch for sampled in rounds]
        pad_token_id = trainer.processing_class.pad_token_id
        batch = select_groups(batches, local, self._size, pad_token_id)
        counts = {
            items: self._on_all(batch[mask]) for mask, items in _COUNTED.items() if mask in batch
        }
        return {**batch, **counts}

    def rewards(self, rounds: Sequence[Sampled], places: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Rewards ``(N,)`` of the completions of the chosen groups."""
        return torch.stack(
            [rounds[number].rewards[row] for number, row in rows_of(places, self._size)]
        )

    def _scale_by_whole(self, rounds: Sequence[Sampled], places: Sequence[tuple[int, int]]) -> None:
        """Rescale advantages from the deviation of each round, as TRL does, to that of the batch."""
        whole = nanstd(self.rewards(rounds, places).view(1, -1)) + STD_EPSILON
        for sampled in rounds:
            own = nanstd(sampled.rewards.view(1, -1)) + STD_EPSILON
            sampled.batch["advantages"] = sampled.batch["advantages"] * (own / whole).squeeze()

    def _leave_out(self, batch: Batch, kept: torch.Tensor) -> None:
        """Mask the rows of groups that are not kept, and scale the loss of the others up accordingly."""
        rows = kept.repeat_interleave(self._size)
        mine = self._mine(rows).to(batch["completion_mask"].device)
        batch["completion_mask"] = batch["completion_mask"] * mine.unsqueeze(1)
        scale = rows.numel() / max(int(rows.sum()), 1)
        batch["row_scale"] = torch.tensor(scale, device=mine.device)
        batch["num_items_in_batch"] = self._on_all(batch["completion_mask"])

    def _on_all(self, mask: torch.Tensor) -> torch.Tensor:
        """The number of a mask's tokens on all processes."""
        count: torch.Tensor = self._trainer.accelerator.gather(mask.sum()).sum()
        return count

    # --------------------------------------------------------------------------------------------
    # Metrics
    # --------------------------------------------------------------------------------------------
    def log_chosen(
        self,
        rounds: Sequence[Sampled],
        places: Sequence[tuple[int, int]],
        log: Mapping[tuple[str, str], Any],
    ) -> None:
        """Log the completions that are trained on, instead of those of the last round."""
        for key, column in log.items():
            if all(key in sampled.logs for sampled in rounds):
                column.extend(
                    rounds[number].logs[key][row] for number, row in rows_of(places, self._size)
                )

    def metrics(
        self,
        rounds: Sequence[Sampled],
        places: Sequence[tuple[int, int]],
        log: Mapping[tuple[str, str], Any],
    ) -> dict[str, float]:
        """Shares of groups without signal, and numbers for the health rules."""
        signal = [one for sampled in rounds for one in sampled.signal]
        kept = torch.tensor([rounds[number].signal[index] for number, index in places])
        skips = self.args.zero_variance == "skip"
        numbers: dict[str, float] = {
            "zero_variance/sampled": 1 - sum(signal) / len(signal),
            "zero_variance/trained": 0.0 if skips else 1 - kept.float().mean().item(),
            "zero_variance/extra_prompts": sum(len(sampled.signal) for sampled in rounds[1:]),
        }
        groups = [rounds[number].tasks[index] for number, index in places]
        tasks = [task for task in groups for _ in range(self._size)]
        numbers |= batch_health(
            self.rewards(rounds, places).cpu(),
            torch.tensor(list(log["advantages", ""])),
            list(log["completion", ""]),
            tasks,
            self._size,
            prompts=list(log["prompt", ""]),
        )
        numbers |= {f"task/{task}": tasks.count(task) / len(tasks) for task in sorted(set(tasks))}
        return numbers
