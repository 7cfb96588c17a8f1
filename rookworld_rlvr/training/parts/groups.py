"""Groups whose completions are all worth the same carry no signal: replace them, or leave them out.

A group of equal rewards has advantages of 0. Kept, it dilutes the step and its KL term acts alone.
DAPO (Yu et al. 2025) samples until a batch is filled with groups that carry signal; here the number of
extra prompts is bounded. Decisions follow from rewards that all processes have gathered, so that they
are the same on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback
from trl import GRPOConfig

from ...common.errors import close_matches
from ...tasks.registry import task_of
from ..health import batch_health
from .advantages import STD_EPSILON, nanstd
from .mixture import PromptArguments
from .prompt_sampler import DifficultyMemory, PromptSampler
from .value_head import ValueGRPOTrainer

ZERO_VARIANCE = ("keep", "resample", "skip")


# TRL's losses that take a mean over completions, empty ones among them.
_MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


Batch = dict[str, torch.Tensor]


@dataclass
class VarianceArguments:
    """Keys for groups without signal.

    Args:
        zero_variance: `keep` (TRL), `resample` (other prompts take their place) or `skip` (they are
            left out of the loss, KL term and all).
        zero_variance_threshold: Deviation of a group's rewards up to which it has no signal.
        zero_variance_extra: Most extra prompts of `resample`, in multiples of a batch's.
    """

    zero_variance: str = "keep"
    zero_variance_threshold: float = 1e-6
    zero_variance_extra: float = 4.0

    def variance_faults(self, args: GRPOConfig, processes: int) -> list[str]:
        """What is wrong, one sentence each."""
        faults = []
        if self.zero_variance not in ZERO_VARIANCE:
            close = close_matches(self.zero_variance, ZERO_VARIANCE)
            faults.append(f"zero_variance: {self.zero_variance!r} is none{close}")
        if not self.zero_variance_threshold >= 0:
            faults.append(f"zero_variance_threshold: {self.zero_variance_threshold!r} is below 0")
        if not self.zero_variance_extra > 0:
            faults.append(f"zero_variance_extra: {self.zero_variance_extra!r} is not above 0")
        if self.zero_variance == "keep":
            return faults
        if getattr(args, "advantage_estimator", "group") != "group":
            faults.append(
                f"zero_variance: {self.zero_variance!r} judges groups, and gae needs none; take keep"
            )
        if args.multi_objective_aggregation != "sum_then_normalize":
            faults.append(
                f"zero_variance: {self.zero_variance!r} needs multi_objective_aggregation: "
                "sum_then_normalize"
            )
        generations = args.num_generations
        if self.zero_variance == "resample" and args.generation_batch_size is not None:
            local = args.generation_batch_size // processes
            if local % generations:
                faults.append(
                    f"zero_variance: 'resample' needs whole groups on each process, and {local} "
                    f"completions are no multiple of num_generations: {generations}"
                )
        return faults


# --------------------------------------------------------------------------------------------------
# Which group stands where
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Round:
    """One round of sampling on all processes, process by process.

    Args:
        tasks: Of the `R * n` groups.
        signal: Whether each carries signal.
    """

    tasks: list[str]
    signal: list[bool]


def fill(rounds: Sequence[Round], processes: int) -> list[tuple[int, int]]:
    """Which group takes each place of the batch: round and index in it, by place.

    The first round's groups stand in their own places. A place without signal is taken by a later
    group of the same process that has signal: by one of its own task if there is one, else by any;
    where there is none, it stays as it is.

    >>> first = Round(["policy", "environment"], [False, True])
    >>> fill([first, Round(["environment", "policy"], [True, True])], processes=1)
    [(1, 1), (0, 1)]
    """
    first, later = rounds[0], rounds[1:]
    places = [(0, index) for index in range(len(first.tasks))]
    local = len(first.tasks) // processes
    for process in range(processes):
        spare = [
            (number, index)
            for number, extra in enumerate(later, start=1)
            for index in _of_process(len(extra.tasks), processes, process)
            if extra.signal[index]
        ]
        holes = [p for p in range(process * local, (process + 1) * local) if not first.signal[p]]
        own_first = sorted(holes, key=lambda place: not _of_task(first.tasks[place], spare, rounds))
        for place in own_first:
            if spare:
                own = _of_task(first.tasks[place], spare, rounds)
                places[place] = own[0] if own else spare[0]
                spare.remove(places[place])
    return places


def _of_process(groups: int, processes: int, process: int) -> range:
    share = groups // processes
    return range(process * share, (process + 1) * share)


def _of_task(
    task: str, spare: Sequence[tuple[int, int]], rounds: Sequence[Round]
) -> list[tuple[int, int]]:
    return [(number, index) for number, index in spare if rounds[number].tasks[index] == task]


def next_round(rounds: Sequence[Round], processes: int, most_extra: int) -> int:
    """How many groups each process samples next; 0 where nothing is missing or the bound is reached.

    As many as should fill the process that misses most, at the rate of signal seen so far.
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
def select_groups(
    batches: Sequence[Batch], chosen: Sequence[tuple[int, int]], generations: int, pad_token_id: int
) -> Batch:
    """One batch of the groups chosen, by batch and index in it; scalars are the first batch's.

    Prompts are padded on the left, completions and what goes with their tokens on the right; columns
    that only groups left out had need of go.
    """
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + batch["completion_mask"].size(0))
    rows = torch.tensor(
        [
            starts[number] + index * generations + turn
            for number, index in chosen
            for turn in range(generations)
        ],
        device=batches[0]["completion_mask"].device,
    )
    merged = {}
    for key, first in batches[0].items():
        if first.dim() == 0:
            merged[key] = first
            continue
        fill_with = pad_token_id if key in ("prompt_ids", "completion_ids") else 0
        parts = [batch[key] for batch in batches]
        merged[key] = _concatenate(parts, fill_with, key.startswith("prompt_"))[rows]
    _trim(merged)
    return merged


def _concatenate(parts: Sequence[torch.Tensor], value: float, left: bool) -> torch.Tensor:
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.size(1) for part in parts)
    padded = []
    for part in parts:
        missing = width - part.size(1)
        sides = (missing, 0) if left else (0, missing)
        padded.append(torch.nn.functional.pad(part, sides, value=value))
    return torch.cat(padded)


def _trim(batch: Batch) -> None:
    """Drop columns that are padding in every row."""
    prompt = int(batch["prompt_mask"].sum(1).max())
    length = max(1, int(batch["completion_mask"].sum(1).max()))
    for key, tensor in batch.items():
        if tensor.dim() < 2 or tensor.size(1) == 1:
            continue
        batch[key] = tensor[:, -prompt:] if key.startswith("prompt_") else tensor[:, :length]


# --------------------------------------------------------------------------------------------------
# The trainer
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Sampled:
    """What one round sampled: this process's batch, and what is logged of all processes' rows."""

    batch: Batch
    groups: Round
    rewards: torch.Tensor  # (N,)
    logs: Mapping[tuple[str, str], list[Any]]  # by table and column: N values each


class ResamplingGRPOTrainer(ValueGRPOTrainer):
    """`ValueGRPOTrainer` that decides which prompts and groups it trains on; the constructor is TRL's.

    Attributes:
        difficulty: What is remembered of prompts, where `prompt_sampling` asks for it.
        prompt_sampler: What draws prompts, where TRL's own sampler cannot; None until training begins.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        super().__init__(model, reward_funcs, args, **kwargs)
        known = isinstance(args, VarianceArguments)
        self.variance_args = args if known else VarianceArguments()
        self.prompt_args = args if isinstance(args, PromptArguments) else PromptArguments()
        self.difficulty: DifficultyMemory | None = None
        if self.prompt_args.prompt_sampling == "by_difficulty":
            self.difficulty = DifficultyMemory(self.prompt_args.difficulty_floor)
        self.prompt_sampler: PromptSampler | None = None
        self.add_callback(_EpochCallback(self))

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        phases = self.prompt_args.phases()
        resamples = self.variance_args.zero_variance == "resample"
        if not (phases or resamples or self.difficulty is not None):
            return super()._get_train_sampler(dataset)
        fetched = self.num_iterations * self.args.steps_per_generation
        self.prompt_sampler = PromptSampler(
            self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=fetched,
            seed=self.args.seed,
            steps_per_batch=Fraction(fetched, self.args.gradient_accumulation_steps),
            phases=phases,
            memory=self.difficulty,
            shuffle=self.shuffle_dataset,
        )
        return self.prompt_sampler

    # --------------------------------------------------------------------------------------------
    # Rounds
    # --------------------------------------------------------------------------------------------
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        rounds = [self._sample(inputs)]
        if self.variance_args.zero_variance == "resample":
            self._sample_more(rounds)
        places = fill([item.groups for item in rounds], self.accelerator.num_processes)
        batch = self._merge(rounds, places) if len(rounds) > 1 else rounds[0].batch
        kept = torch.tensor([rounds[number].groups.signal[index] for number, index in places])
        skips = self.variance_args.zero_variance == "skip"
        if skips:
            self._leave_out(batch, kept)
        self._count_groups(rounds, trained=1.0 if skips else kept.float().mean().item())
        self._count_batch(rounds, places)
        return batch

    def _sample(self, inputs: list[dict[str, Any]]) -> _Sampled:
        batch = super()._generate_and_score_completions(inputs)
        rows = len(inputs) * self.accelerator.num_processes
        rewards = self.rewards()  # (N,)
        groups = rewards.view(-1, self.num_generations)
        deviations = nanstd(groups).flatten()
        logs = self._logged(rows)
        prompts = logs["prompt", ""][:: self.num_generations]
        tasks = [str(task_of(prompt)) for prompt in prompts]
        threshold = self.variance_args.zero_variance_threshold
        if self.difficulty is not None:
            means = groups.nanmean(dim=1).tolist()
            self.difficulty.observe(prompts, means, deviations.tolist(), threshold, tasks)
        signal = (deviations > threshold).tolist()
        return _Sampled(batch, Round(tasks, signal), rewards, logs)

    def _sample_more(self, rounds: list[_Sampled]) -> None:
        """Sample extra prompts until every place has signal, or there have been enough of them."""
        assert self.prompt_sampler is not None
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        local = len(rounds[0].groups.tasks) // processes
        most = math.ceil(self.variance_args.zero_variance_extra * local)
        seen = set(rounds[0].logs["prompt", ""])
        while count := next_round([item.groups for item in rounds], processes, most):
            rows = self.prompt_sampler.extra(
                count * processes, self.state.global_step, len(rounds), exclude=seen
            )
            share = len(rows) // processes
            if not share:  # the data have no other prompts
                return
            mine = [self.train_dataset[row] for row in rows[rank * share : (rank + 1) * share]]
            rounds.append(self._sample([row for row in mine for _ in range(self.num_generations)]))
            seen.update(rounds[-1].logs["prompt", ""])

    def _merge(self, rounds: Sequence[_Sampled], places: Sequence[tuple[int, int]]) -> Batch:
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        shares = [len(item.groups.tasks) // processes for item in rounds]
        local = [
            (number, index - rank * shares[number])
            for number, index in places[rank * shares[0] : (rank + 1) * shares[0]]
        ]
        self._rewrite_logs(rounds, places)
        if self.scale_rewards == "batch":
            self._scale_by_whole(rounds, places)
        batches = [item.batch for item in rounds]
        pad_token_id = self._tokenizer.pad_token_id
        batch = select_groups(batches, local, self.num_generations, pad_token_id)
        return self._with_token_count(batch)

    def _rows(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        size = self.num_generations
        return [(number, index * size + turn) for number, index in places for turn in range(size)]

    def _scale_by_whole(
        self, rounds: Sequence[_Sampled], places: Sequence[tuple[int, int]]
    ) -> None:
        """TRL has divided each round by its own deviation; the batch's is that of what it holds."""
        chosen = [rounds[number].rewards[row] for number, row in self._rows(places)]
        whole = nanstd(torch.stack(chosen).view(1, -1)) + STD_EPSILON
        for item in rounds:
            own = nanstd(item.rewards.view(1, -1)) + STD_EPSILON
            item.batch["advantages"] = item.batch["advantages"] * (own / whole).squeeze()

    def _leave_out(self, batch: Batch, kept: torch.Tensor) -> None:
        """Mask the rows of groups that are not kept; the others share the whole of the loss."""
        rank = self.accelerator.process_index
        rows = kept.repeat_interleave(self.num_generations)
        local = batch["completion_mask"].size(0)
        mine = rows[rank * local : (rank + 1) * local].to(batch["completion_mask"].device)
        batch["completion_mask"] = batch["completion_mask"] * mine.unsqueeze(1)
        scale = rows.numel() / max(int(rows.sum()), 1)
        batch["row_scale"] = torch.tensor(scale, device=mine.device)
        self._with_token_count(batch)

    def _with_token_count(self, batch: Batch) -> Batch:
        tokens = batch["completion_mask"].sum()
        batch["num_items_in_batch"] = self.accelerator.gather(tokens).sum()
        return batch

    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        return loss * self._row_scale(inputs)

    def _row_scale(self, inputs: Mapping[str, Any]) -> Any:
        """What a loss that is a mean over rows is multiplied by, where some rows are left out."""
        return inputs.get("row_scale", 1) if self.loss_type in _MEAN_OVER_ROWS else 1

    # --------------------------------------------------------------------------------------------
    # Logs
    # --------------------------------------------------------------------------------------------
    def _tables(self) -> dict[tuple[str, str], Any]:
        """The columns of TRL's table of completions, by table and name."""
        columns = {(name, ""): self._logs[name] for name in ("prompt", "completion", "advantages")}
        for table in ("rewards", "extra"):
            columns |= {(table, name): values for name, values in self._logs[table].items()}
        return columns

    def _logged(self, rows: int) -> dict[tuple[str, str], list[Any]]:
        """What was logged of the last `rows` rows."""
        return {
            key: list(values)[-rows:]
            for key, values in self._tables().items()
            if len(values) >= rows
        }

    def _rewrite_logs(self, rounds: Sequence[_Sampled], places: Sequence[tuple[int, int]]) -> None:
        """Log the completions that are trained on, not those that came last."""
        rows = self._rows(places)
        for key, column in self._tables().items():
            if all(key in item.logs for item in rounds):
                column.extend(rounds[number].logs[key][row] for number, row in rows)

    def _count_groups(self, rounds: Sequence[_Sampled], trained: float) -> None:
        signal = [one for item in rounds for one in item.groups.signal]
        extra = sum(len(item.groups.signal) for item in rounds[1:])
        numbers: dict[str, float] = {
            "zero_variance/sampled": 1 - sum(signal) / len(signal),
            "zero_variance/trained": 1 - trained,
            "zero_variance/extra_prompts": extra,
        }
        if self.difficulty is not None:
            numbers |= {f"difficulty/{kind}": n for kind, n in self.difficulty.counts().items()}
        for name, number in numbers.items():
            self._metrics["train"][name].append(number)

    def _count_batch(self, rounds: Sequence[_Sampled], places: Sequence[tuple[int, int]]) -> None:
        """Numbers of the batch that is trained on: of its tasks, and for the health rules."""
        rows = self._rows(places)
        size = self.num_generations
        tasks = [rounds[number].groups.tasks[row // size] for number, row in rows]
        numbers = batch_health(
            torch.stack([rounds[number].rewards[row] for number, row in rows]).cpu(),
            torch.tensor(list(self._logs["advantages"])),
            list(self._logs["completion"]),
            tasks,
            size,
            prompts=list(self._logs["prompt"]),
        )
        numbers |= {f"task/{task}": tasks.count(task) / len(tasks) for task in sorted(set(tasks))}
        for name, number in numbers.items():
            self._metrics["train"][name].append(number)

    # --------------------------------------------------------------------------------------------
    # Checkpoints
    # --------------------------------------------------------------------------------------------
    def control_state(self) -> dict[str, Any]:
        """See `ControlledGRPOTrainer.control_state`; the memory of prompts, and those drawn ahead."""
        state = super().control_state()
        if self.difficulty is not None and self.prompt_sampler is not None:
            state["difficulty"] = self.difficulty.state()
            state["prompts"] = self.prompt_sampler.state(self.state.global_step)
        return state

    def load_control_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `control_state`."""
        super().load_control_state(state)
        if self.difficulty is not None and "difficulty" in state:
            self.difficulty.load(state["difficulty"])
        if self.prompt_sampler is not None and "prompts" in state:
            self.prompt_sampler.load(state["prompts"])


class _EpochCallback(TrainerCallback):
    """Tells the sampler its epoch, which processes that go on within one are not told otherwise."""

    def __init__(self, trainer: ResamplingGRPOTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.prompt_sampler is not None:
            self.trainer.prompt_sampler.seek(state.global_step)
