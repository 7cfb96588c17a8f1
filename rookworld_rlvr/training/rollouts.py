"""One round of sampling, as a record; what replaces or masks groups without signal; rows and groups.

A group of equal rewards has advantages of 0. If it is kept, it dilutes the step, and only its KL term
acts. DAPO (Yu et al. 2025) samples until a batch is full of groups that carry signal; here the number of
extra prompts is bounded. All processes decide alike, because they use rewards gathered over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import pad

from ..models.decoding import on_device
from ..tasks.text import shown_text
from .advantages import have_signal
from .exchanged import unrecorded
from .health import batch_health
from .losses import MEAN_OVER_ROWS

if TYPE_CHECKING:
    from .step import Step

Batch = dict[str, Any]  # columns as tensors or lists
Log = Mapping[tuple[str, str], list[Any]]  # by table and column

MOST_EXTRA = 4  # prompts that may replace others, as a multiple of those in a batch


@dataclass
class Rollouts:
    """Completions of some prompts and what is known of them, process by process.

    Args:
        rows: The rows of this process, `B` with a group's rows together.
        temperatures: ``(B,)``, at which they are sampled; None if all have the trainer's.

    Attributes:
        tasks: The task of each group of all processes.
        texts: What this process's completions say, `B`.
        taught: ``(B,)``, which completions are right answers that were put in; None if that is off.
        rewards: ``(N, F)``, of all processes' completions by reward; nan if there is none.
        values: ``(N,)``, what the completions are compared by, see `advantages.compared`.
        batch: The completions of this process, as TRL gives them.
        log: The log of all processes' rows: `N` values a column.
        drawn_tasks: The tasks of every group sampled, replaced ones included.
        drawn: ``(D * G,)``, what those groups' completions are compared by.
    """

    rows: Sequence[Mapping[str, Any]]
    temperatures: torch.Tensor | None = None
    tasks: Sequence[str] = ()
    texts: Sequence[str] = ()
    taught: torch.Tensor | None = None
    rewards: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))
    values: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    batch: Batch = field(default_factory=dict)
    log: Log = field(default_factory=dict)
    drawn_tasks: Sequence[str] = ()
    drawn: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def size(self) -> int:
        """Completions of a group."""
        return len(self.values) // len(self.tasks)

    @property
    def signal(self) -> list[bool]:
        """Whether each group of all processes carries signal."""
        return have_signal(self.values, self.size)


# --------------------------------------------------------------------------------------------------
# Groups without signal
# --------------------------------------------------------------------------------------------------
def skipped(trainer: Step, sampled: Rollouts) -> Rollouts:
    """The round without its silent groups: their rows are masked, and the others count for more."""
    rows = torch.tensor(sampled.signal).repeat_interleave(sampled.size)
    mask = sampled.batch["completion_mask"]
    mask = mask * on_device(trainer.local_rows(rows), mask.device).unsqueeze(1)
    batch = {**sampled.batch, "completion_mask": mask}
    batch["num_items_in_batch"] = trainer.on_all(loss_mask(batch))
    if trainer.loss_type in MEAN_OVER_ROWS:
        scale = rows.numel() / max(int(rows.sum()), 1)
        batch["row_scale"] = torch.tensor(scale, device=mask.device)
    return replace(sampled, batch=batch)


def resampled(trainer: Step, sampled: Rollouts) -> Rollouts:
    """The round with its silent groups replaced by groups of other prompts, drawn in more rounds."""
    rounds, processes = [sampled], trainer.accelerator.num_processes
    while more := _next_rows(trainer, rounds):
        with unrecorded(trainer):  # logged is what is drawn from the rows themselves
            rounds.append(trainer.rollouts_of(more))
    if len(rounds) == 1:
        return sampled
    places = fill([one.tasks for one in rounds], [one.signal for one in rounds], processes)
    whole = rows_of(places, sampled.size)  # of all processes
    rank = trainer.accelerator.process_index
    before = [rank * (len(one.tasks) // processes) for one in rounds]
    own = [(number, index - before[number]) for number, index in trainer.local_rows(places)]
    local = rows_of(own, sampled.size)
    pad_token_id = trainer.processing_class.pad_token_id
    batch = select_groups([one.batch for one in rounds], own, sampled.size, pad_token_id)
    batch["num_items_in_batch"] = trainer.on_all(loss_mask(batch))
    columns = [key for key in sampled.log if all(key in one.log for one in rounds)]
    return replace(
        sampled,
        rows=[rounds[number].rows[row] for number, row in local],
        texts=[rounds[number].texts[row] for number, row in local],
        tasks=[rounds[number].tasks[index] for number, index in places],
        rewards=torch.stack([rounds[number].rewards[row] for number, row in whole]),
        values=torch.stack([rounds[number].values[row] for number, row in whole]),
        batch=batch,
        log={key: [rounds[number].log[key][row] for number, row in whole] for key in columns},
        drawn_tasks=[task for one in rounds for task in one.tasks],
        drawn=torch.cat([one.values for one in rounds]),
    )


def _next_rows(trainer: Step, rounds: Sequence[Rollouts]) -> list[dict[str, Any]]:
    """This process's rows of the next round; empty if nothing is missing or the bound is reached."""
    processes = trainer.accelerator.num_processes
    tasks, signal = [one.tasks for one in rounds], [one.signal for one in rounds]
    count = next_round(tasks, signal, processes, MOST_EXTRA * (len(tasks[0]) // processes))
    if not count:
        return []
    seen = {*gather_object([str(row["prompt"]) for one in rounds for row in one.rows])}
    step = trainer.state.global_step
    rows = trainer.prompt_sampler.extra(count * processes, step, len(rounds), seen)
    own = [trainer.train_dataset[row] for row in trainer.local_rows(rows)]
    return [row for row in own for _ in range(rounds[0].size)]


def fill(
    tasks: Sequence[Sequence[str]], signal: Sequence[Sequence[bool]], processes: int
) -> list[tuple[int, int]]:
    """Which group takes each place of the batch, as its round and its index in that round.

    The first round's groups take their own places. If one has no signal, a later group of the same
    process with signal replaces it, preferably one of the same task. If there is none left, the first
    group stays.

    Args:
        tasks: Of each round, the tasks of all processes' groups.
        signal: Of each round, whether these groups carry signal.
        processes: The number of processes.
    """
    places = [(0, index) for index in range(len(tasks[0]))]
    for process in range(processes):
        spare = [
            (number, index)
            for number in range(1, len(tasks))
            for index in share_of(range(len(tasks[number])), processes, process)
            if signal[number][index]
        ]
        for place in share_of(range(len(tasks[0])), processes, process):
            if spare and not signal[0][place]:
                task = tasks[0][place]
                places[place] = min(spare, key=lambda at: tasks[at[0]][at[1]] != task)
                spare.remove(places[place])
    return places


def share_of(items: Any, processes: int, process: int) -> Any:
    """A process's part of a sequence that holds all processes' items, process by process."""
    size = len(items) // processes
    return items[process * size : (process + 1) * size]


def next_round(
    tasks: Sequence[Sequence[str]],
    signal: Sequence[Sequence[bool]],
    processes: int,
    most_extra: int,
) -> int:
    """How many groups each process samples next; 0 if nothing is missing or the bound is reached.

    It is the number expected to fill the process that lacks most, at the rate of signal seen so far.
    """
    local = len(tasks[0]) // processes
    missing = [not signal[number][index] for number, index in fill(tasks, signal, processes)]
    need = max(sum(missing[start : start + local]) for start in range(0, len(missing), local))
    extra = sum(map(len, tasks[1:])) // processes
    drawn = [has for of_round in signal for has in of_round]
    rate = max(sum(drawn), 1) / len(drawn)
    return min(math.ceil(need / rate), local, most_extra - extra) if need else 0


def rows_of(groups: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Round and row of each completion of the given groups, which have `size` completions each."""
    return [(number, index * size + turn) for number, index in groups for turn in range(size)]


def select_groups(
    batches: Sequence[Batch], chosen: Sequence[tuple[int, int]], size: int, pad_token_id: int
) -> Batch:
    """One batch of the chosen groups, each given by batch and index; scalars come from the first batch.

    Prompts are padded on the left, completions and their per-token values on the right.
    """
    fillers = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id}
    fillers["importance_sampling_ratio"] = 1  # TRL's own, which vespo takes the logarithm of
    merged: Batch = {}
    for key, first in batches[0].items():
        if torch.is_tensor(first) and first.dim() == 0:
            merged[key] = first
            continue
        rows = [batches[number][key][row] for number, row in rows_of(chosen, size)]
        if isinstance(first, list):
            merged[key] = rows
        elif first.dim() == 1:
            merged[key] = torch.stack(rows)
        else:
            fill_with = fillers.get(key, 0)
            merged[key] = pad(rows, fill_with, "left" if key.startswith("prompt_") else "right")
    return merged


# --------------------------------------------------------------------------------------------------
# Rows and units: what TRL shuffles and splits
# --------------------------------------------------------------------------------------------------
def in_units(batch: Batch, size: int) -> Batch:
    """A batch of rows ``(B, ...)`` as one of units of `size` rows ``(B / size, size, ...)``.

    TRL shuffles a generation along its first dimension before it splits it into micro-batches. Rows of
    one prompt share a unit, so that they stay together and the network sees their prompt once.
    """

    def of(column: Any) -> Any:
        if isinstance(column, list):
            return [column[start : start + size] for start in range(0, len(column), size)]
        has_rows = torch.is_tensor(column) and column.dim() > 0
        return column.unflatten(0, (-1, size)) if has_rows else column

    return {name: of(column) for name, column in batch.items()}


def in_rows(batch: Mapping[str, Any]) -> Batch:
    """The inverse of `in_units`; a batch of rows stays as it is."""
    if batch["completion_ids"].dim() == 2:
        return dict(batch)

    def of(column: Any) -> Any:
        if isinstance(column, list):
            return [row for unit in column for row in unit]
        has_rows = torch.is_tensor(column) and column.dim() > 0
        return column.flatten(0, 1) if has_rows else column

    return {name: of(column) for name, column in batch.items()}


def on_host(batch: Mapping[str, Any]) -> Batch:
    """Columns for `whole`: tokens and mask of a batch on the host, where they are packed."""
    ids, mask, _ = whole(batch)
    return {"host_ids": ids.cpu(), "host_mask": mask.cpu()}


def whole(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A batch's prompts and completions together: tokens ``(B, P+C)``, mask ``(B, P+C)``, and `C`.

    They are on the host if the batch has them there, too, see `on_host`.
    """
    if "host_ids" in batch:
        return batch["host_ids"], batch["host_mask"], batch["completion_ids"].size(1)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)


_OF_IMAGES = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes"),
    *("num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


def of_images(batch: Mapping[str, Any]) -> Batch:
    """What TRL's scoring takes of a batch with images; empty for one of texts."""
    return {name: batch[name] for name in _OF_IMAGES if batch.get(name) is not None}


def loss_mask(batch: Mapping[str, Any]) -> torch.Tensor:
    """Which tokens ``(B, C)`` of completions the policy wrote."""
    mask: torch.Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def was_sampled(batch: Mapping[str, Any]) -> torch.Tensor:
    """Which completions were sampled and not taught, ``(B, 1)``."""
    taught = batch.get("taught", torch.zeros_like(batch["completion_mask"][:, 0]))
    return ~taught.bool().unsqueeze(1)


def trained_advantages(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages of completions ``(B,)`` or of their tokens ``(B, C)``, and which are trained on."""
    advantages: torch.Tensor = batch["advantages"]
    mask = batch["completion_mask"].bool()
    return advantages, mask if advantages.dim() > 1 else mask.any(1)


# --------------------------------------------------------------------------------------------------
# Numbers of a round
# --------------------------------------------------------------------------------------------------
def task_rewards(rewards: torch.Tensor, tasks: Sequence[str]) -> dict[str, float]:
    """Mean rewards ``(N,)`` by task, from the tasks of their groups."""
    groups = rewards.cpu().view(len(tasks), -1)
    rows = {task: torch.tensor([name == task for name in tasks]) for task in sorted({*tasks})}
    return {f"reward/{task}": groups[own].nanmean().item() for task, own in rows.items()}


def rollout_metrics(
    trained: Rollouts, advantages: Sequence[float], masks_silent: bool
) -> dict[str, float]:
    """Shares of groups without signal, and numbers for the health rules.

    Args:
        trained: The round that is trained on.
        advantages: Those of all processes that are trained on, see `trained_advantages`.
        masks_silent: Whether groups without signal are masked.
    """
    drawn, signal = have_signal(trained.drawn, trained.size), trained.signal
    numbers = {
        "zero_variance/sampled": 1 - sum(drawn) / len(drawn),
        "zero_variance/trained": 0.0 if masks_silent else 1 - sum(signal) / len(signal),
        "zero_variance/extra_prompts": len(drawn) - len(signal),
    }
    tasks = [task for task in trained.tasks for _ in range(trained.size)]
    texts = [shown_text(completion) for completion in trained.log["completion", ""]]
    prompts = [shown_text(prompt) for prompt in trained.log["prompt", ""]]
    kept = torch.tensor(advantages or [0.0])
    return numbers | batch_health(trained.values.cpu(), kept, texts, tasks, trained.size, prompts)
