"""Groups with equal rewards carry no signal: they can be replaced or left out.

A group of equal rewards has advantages of 0. If it is kept, it dilutes the step, and only its KL term
acts. DAPO (Yu et al. 2025) samples until a batch is full of groups that carry signal; here the number
of extra prompts is bounded. All processes decide alike, because they use rewards gathered over all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import pad

from .aggregation import MEAN_OVER_ROWS, on_all
from .groups import STD_EPSILON, deviations
from .part import Batch, Part, Sampled

# Columns and their sums over all processes.
_COUNTED = {
    "completion_mask": "num_items_in_batch",
    "answer_tokens": "answer_items",
    "moves_rows": "moves_items",
}
MOST_EXTRA = 4  # prompts that may replace others, as a multiple of those in a batch


# --------------------------------------------------------------------------------------------------
# Which group takes which place
# --------------------------------------------------------------------------------------------------
def fill(rounds: Sequence[Sampled], processes: int) -> list[tuple[int, int]]:
    """Which group takes each place of the batch, as its round and its index in that round.

    The first round's groups take their own places. If one has no signal, a later group of the same
    process with signal replaces it, preferably one of the same task. If there is none left, the first
    group stays.
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
        for place in _share(range(len(first.tasks)), processes, process):
            if spare and not first.signal[place]:
                task = first.tasks[place]
                places[place] = min(spare, key=lambda at: rounds[at[0]].tasks[at[1]] != task)
                spare.remove(places[place])
    return places


def _share(items: Any, processes: int, process: int) -> Any:
    """A process's part of a sequence that holds all processes' items, process by process."""
    size = len(items) // processes
    return items[process * size : (process + 1) * size]


def next_round(rounds: Sequence[Sampled], processes: int, most_extra: int) -> int:
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

    Prompts are padded on the left, completions and their per-token values on the right.
    """
    merged: Batch = {}
    for key, first in batches[0].items():
        if torch.is_tensor(first) and first.dim() == 0:
            merged[key] = first
            continue
        rows = [batches[number][key][row] for number, row in rows_of(chosen, generations)]
        if isinstance(first, list):
            merged[key] = rows
        elif first.dim() == 1:
            merged[key] = torch.stack(rows)
        else:
            fill_with = pad_token_id if key in ("prompt_ids", "completion_ids") else 0
            merged[key] = pad(rows, fill_with, "left" if key.startswith("prompt_") else "right")
    return merged


# --------------------------------------------------------------------------------------------------
# The parts
# --------------------------------------------------------------------------------------------------
class Skip(Part):
    """Leaves groups without signal out of the loss."""

    def complete(self, sampled: Sampled) -> Sampled:
        """Mask the rows of groups without signal, and scale the loss of the others up accordingly."""
        trainer, batch = self._trainer, sampled.batch
        rows = torch.tensor(sampled.signal).repeat_interleave(trainer.num_generations)
        mask = batch["completion_mask"]
        batch["completion_mask"] = mask * trainer.own_rows(rows).to(mask.device).unsqueeze(1)
        if trainer.loss_type in MEAN_OVER_ROWS:  # of policy and KL; the entropy's is over tokens
            scale = rows.numel() / max(int(rows.sum()), 1)
            batch["row_scale"] = torch.tensor(scale, device=mask.device)
            batch["advantages"] = batch["advantages"] * batch["row_scale"]
        batch["num_items_in_batch"] = on_all(trainer, batch["completion_mask"])
        return replace(sampled, signal=[True] * len(sampled.signal))


class Resample(Part):
    """Replaces groups without signal by groups of other prompts, sampled in further rounds."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._size = trainer.num_generations
        self._processes = trainer.accelerator.num_processes

    def complete(self, sampled: Sampled) -> Sampled:
        """The first round with replaced groups."""
        rounds = [sampled]
        while more := self._more(rounds):
            with self._trainer.unrecorded():  # logged is what is drawn from the rows themselves
                rounds.append(self._trainer.sample_round(more))
        if len(rounds) == 1:
            return sampled
        places = fill(rounds, self._processes)
        rewards = torch.stack([rounds[n].rewards[row] for n, row in rows_of(places, self._size)])
        if self._trainer.scale_rewards == "batch":
            self._rescale(rounds, rewards)
        for key, column in self._trainer.completion_log().items():
            if all(key in one.logs for one in rounds):  # instead of those of the last round
                column.extend(rounds[n].logs[key][row] for n, row in rows_of(places, self._size))
        return replace(
            sampled,
            tasks=[rounds[number].tasks[index] for number, index in places],
            signal=[rounds[number].signal[index] for number, index in places],
            rows=[row for one in rounds for row in one.rows],
            batch=self._merged(rounds, places),
            rewards=rewards,
            drawn=[signal for one in rounds for signal in one.signal],
        )

    def _more(self, rounds: Sequence[Sampled]) -> list[dict[str, Any]]:
        """This process's rows of the next round; empty if nothing is missing or the bound is reached."""
        trainer = self._trainer
        local = len(rounds[0].tasks) // self._processes
        count = next_round(rounds, self._processes, MOST_EXTRA * local)
        if not count:
            return []
        seen = {*gather_object([str(row["prompt"]) for one in rounds for row in one.rows])}
        step = trainer.state.global_step
        rows = trainer.prompt_sampler.extra(count * self._processes, step, len(rounds), seen)
        own = [trainer.train_dataset[row] for row in trainer.own_rows(rows)]
        return [row for row in own for _ in range(self._size)]

    def _rescale(self, rounds: Sequence[Sampled], rewards: torch.Tensor) -> None:
        """Divide by the deviation of the chosen rewards ``(N,)``; TRL did by that of each round."""
        whole = deviations(rewards.view(1, -1)) + STD_EPSILON
        for sampled in rounds:
            share = ((deviations(sampled.rewards.view(1, -1)) + STD_EPSILON) / whole).item()
            sampled.batch["advantages"] *= share
            logged = sampled.logs["advantages", ""]
            logged[:] = [advantage * share for advantage in logged]

    def _merged(self, rounds: Sequence[Sampled], places: Sequence[tuple[int, int]]) -> Batch:
        """This process's batch of the chosen groups."""
        trainer = self._trainer
        rank = trainer.accelerator.process_index
        before = [rank * (len(sampled.tasks) // self._processes) for sampled in rounds]
        local = [(number, index - before[number]) for number, index in trainer.own_rows(places)]
        batches = [sampled.batch for sampled in rounds]
        batch = select_groups(batches, local, self._size, trainer.processing_class.pad_token_id)
        counts = {
            items: on_all(trainer, batch[mask]) for mask, items in _COUNTED.items() if mask in batch
        }
        return {**batch, **counts}
