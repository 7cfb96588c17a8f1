"""Sampling each task in its own way in one mixed batch, and log-probs at the temperature of sampling.

The loss takes each row's temperature into account, but neither top-p nor top-k: it uses the log-prob of
a token before the tail is cut off. Tokens of the tail are never sampled, so updates never push them
down, and the policy drifts towards what the cut keeps. With top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from trl import GRPOConfig
from trl.models.utils import unwrap_model_for_generation

from ...common.settings import record_faults, setting
from ...models.decoding import pad_rows
from ...tasks.registry import TASKS, task_of
from ...tasks.task import Sampling
from .part import Part, Scores, arguments_of


def _sampling_faults(given: Mapping[Any, Any], name: str) -> list[str]:
    faults = []
    for task, options in given.items():
        if task in TASKS and not isinstance(options, Mapping):
            faults.append(
                f"{name}: {task}: {options!r} is not a mapping; write {{}} for the defaults"
            )
        elif task in TASKS:
            faults += record_faults(Sampling, options, f"{name}: {task}")
    return faults


@dataclass
class SamplingArguments:
    """How each task is sampled."""

    task_sampling: dict[str, Any] | str | None = setting(
        None,
        "How to sample each task, {task: {temperature, top_p, top_k, max_completion_length}}. What "
        "a named task leaves out comes from its Task.sampling; a task that is not named, and all "
        "tasks with None, are sampled by the trainer's own keys.",
        among=TASKS,
        of="task",
        check=_sampling_faults,
    )

    def sampling_faults(self, args: GRPOConfig) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        given = self.task_sampling
        if not isinstance(given, Mapping):
            return []
        faults = [
            f"task_sampling: {name} samples all tasks alike; leave one of the two out"
            for name in ("use_vllm", "use_transformers_continuous_batching")
            if getattr(args, name, False)
        ]
        longest = args.max_completion_length
        return faults + [
            f"task_sampling: {task}: max_completion_length is {length}, over the trainer's {longest}; "
            "raise the trainer's max_completion_length"
            for task, options in given.items()
            if isinstance(options, Mapping)
            and longest is not None
            and isinstance(length := options.get("max_completion_length"), int)
            and length > longest
        ]

    def sampling_by_task(self, default: Sampling) -> dict[str, Sampling]:
        """How each task is sampled; tasks that `task_sampling` does not name get `default`."""
        given: Any = self.task_sampling or {}
        return {
            task: dataclasses.replace(TASKS[task].sampling, **given[task])
            if task in given
            else default
            for task in TASKS
        }


# --------------------------------------------------------------------------------------------------
# Drawing
# --------------------------------------------------------------------------------------------------
class RowSampler(LogitsProcessor):
    """Applies each row's own temperature, top-k and top-p, as transformers' warpers do for a batch.

    Args:
        rows: How each of the `B` rows is sampled.
        device: The device of the logits.
        keep_logps: Whether to keep the log-probs of the sampled tokens, before top-k and top-p.
    """

    def __init__(
        self, rows: Sequence[Sampling], device: torch.device, keep_logps: bool = False
    ) -> None:
        def column(key: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            values = [getattr(row, key) for row in rows]
            return torch.tensor(values, device=device, dtype=dtype).unsqueeze(1)  # (B, 1)

        self.temperature = column("temperature")
        self.top_p = column("top_p")
        self.top_k = column("top_k", torch.long)
        self.cuts = any(row.top_k > 0 or row.top_p < 1 for row in rows)
        self.keep_logps = keep_logps
        self._last: torch.Tensor | None = None  # (B, V)
        self._drawn: list[torch.Tensor] = []  # (B,) each

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits ``(B, V)`` for the next token after ``(B, T)``, at each row's temperature and cut."""
        scores = scores.float() / self.temperature
        if self.keep_logps:
            self._take(input_ids[:, -1])
            self._last = scores.log_softmax(-1)
        return self._cut(scores) if self.cuts else scores

    def logps(self, last: torch.Tensor) -> torch.Tensor:
        """Log-probs ``(B, C)`` of all sampled tokens; `last` ``(B,)`` is the last of them."""
        self._take(last)
        return torch.stack(self._drawn, dim=1)

    def _take(self, drawn: torch.Tensor) -> None:
        if self._last is not None:
            self._drawn.append(self._last.gather(1, drawn.unsqueeze(1)).squeeze(1))
            self._last = None

    def _cut(self, scores: torch.Tensor) -> torch.Tensor:
        ordered, order = scores.sort(dim=-1, descending=True)  # (B, V)
        rank = torch.arange(scores.size(1), device=scores.device)
        ordered = ordered.masked_fill((self.top_k > 0) & (rank >= self.top_k), -torch.inf)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        outside = (before >= self.top_p) & (rank > 0)  # the likeliest token always stays
        outside |= ordered.isneginf()
        return scores.masked_fill(outside.scatter(1, order, outside), -torch.inf)


class RowLength(StoppingCriteria):
    """Ends each row at its own number of new tokens.

    Args:
        longest: The largest number of new tokens, by row.
        width: Tokens in the padded prompts.
    """

    def __init__(self, longest: Sequence[int], width: int) -> None:
        self.longest = torch.tensor(longest)
        self.width = width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Which rows ``(B,)`` have reached their length after ``(B, T)`` tokens."""
        return (self.longest <= input_ids.size(1) - self.width).to(input_ids.device)


@torch.no_grad()
def draw(
    network: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Sampling],
    config: GenerationConfig,
    keep_logps: bool = False,
) -> tuple[list[list[int]], list[list[float]] | None]:
    """Sample one completion per prompt, each in its own way, in one call of `generate`.

    Args:
        network: The model that `generate` is called on.
        prompts: Token ids of `B` prompts.
        rows: How each is sampled; a length of None means `config.max_new_tokens`.
        config: Everything else. Its end-of-text ids end a completion and are kept in it.
        keep_logps: Whether to return log-probs.

    Returns:
        Token ids by row, and their log-probs at the row's temperature, before top-k and top-p.
    """
    batch = pad_rows(prompts, config.pad_token_id)
    batch = {key: tensor.to(network.device) for key, tensor in batch.items()}
    width = batch["input_ids"].size(1)
    config = copy.deepcopy(config)
    config.temperature, config.top_p, config.top_k = 1.0, 1.0, 0  # the rows have their own
    longest = [row.max_completion_length or config.max_new_tokens for row in rows]
    sampler = RowSampler(rows, network.device, keep_logps)
    output = network.generate(
        **batch,
        generation_config=config,
        logits_processor=LogitsProcessorList([sampler]),
        stopping_criteria=StoppingCriteriaList([RowLength(longest, width)]),
    )
    completions = output[:, width:]  # (B, C)
    lengths = _lengths(completions, config.eos_token_id, longest)
    ids = [row[:length] for row, length in zip(completions.tolist(), lengths, strict=True)]
    if not keep_logps:
        return ids, None
    logps = sampler.logps(completions[:, -1]).tolist()
    return ids, [row[:length] for row, length in zip(logps, lengths, strict=True)]


def _lengths(completions: torch.Tensor, ends: int | list[int], longest: Sequence[int]) -> list[int]:
    """The length of each completion up to its end of text or its bound; what follows is padding."""
    known = torch.as_tensor(ends, device=completions.device)
    is_end = torch.isin(completions, known)  # (B, C)
    first = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, completions.size(1))
    return [min(length, bound) for length, bound in zip(first.tolist(), longest, strict=True)]


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class TaskSampling(Part):
    """Uses each task's own temperature for its rows, for sampling and for scoring.

    Args:
        samplings: How each task is sampled.
        tasks: The tasks of the training data.
        networks: The policy and, if it is a separate model, the reference.
        temperature: The trainer's temperature, by which TRL divides all logits.
    """

    def __init__(
        self,
        samplings: Mapping[str, Sampling],
        tasks: Sequence[str],
        networks: Iterable[torch.nn.Module],
        temperature: float,
    ) -> None:
        self.samplings = samplings
        self._tasks = tasks
        self._temperature = temperature
        self._scale: torch.Tensor | None = None  # (b, 1, 1), of the rows in the current forward
        for network in networks:
            backbone(network).register_forward_hook(self._scale_hidden_states)

    @classmethod
    def of(cls, trainer: Any) -> TaskSampling | None:
        """The part, if the trainer's arguments ask for it."""
        given = arguments_of(trainer.args, SamplingArguments)
        if given.task_sampling is None:
            return None
        tasks = sorted({task_of(prompt) for prompt in trainer.train_dataset["prompt"][:]})
        samplings = given.sampling_by_task(trainer.sampling)
        return cls(samplings, tasks, trainer.networks(), trainer.temperature)

    def temperatures(self, prompts: Sequence[str], device: torch.device) -> torch.Tensor:
        """The temperatures ``(B,)`` of prompts."""
        values = [self.samplings[task_of(prompt)].temperature for prompt in prompts]
        return torch.tensor(values, device=device)

    def metrics(self) -> dict[str, float]:
        """The temperature of each task of the data, whether or not this process has rows of it.

        Only the first process's metrics are logged.
        """
        return {
            f"sampling/temperature_{task}": self.samplings[task].temperature for task in self._tasks
        }

    def score(
        self,
        score: Callable[..., Any],
        network: torch.nn.Module,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        batch_size: int | None,
        temperatures: torch.Tensor,
        **kwargs: Any,
    ) -> Scores:
        """Score rows ``(B, T)`` at temperatures ``(B,)`` with TRL's method, `score`.

        TRL divides all logits by one temperature. The logits are linear in the hidden states, so these
        are scaled such that each row's logits end up divided by its own temperature.
        """
        parts = []
        scales = self._temperature / temperatures
        step = batch_size or ids.size(0)
        for start in range(0, ids.size(0), step):
            chunk = slice(start, start + step)
            self._scale = scales[chunk].view(-1, 1, 1)
            try:
                parts.append(score(network, ids[chunk], mask[chunk], length, **kwargs))
            finally:
                self._scale = None
        logps, entropies, aux_losses = zip(*parts, strict=True)
        return Scores(
            torch.cat(logps),
            torch.cat(entropies) if entropies[0] is not None else None,
            torch.stack(aux_losses).mean() if aux_losses[0] is not None else None,
        )

    def _scale_hidden_states(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        if self._scale is not None:
            states = output.last_hidden_state  # (b, T, D)
            output.last_hidden_state = states * self._scale.to(states.dtype)
        return output


def rollout(
    prompts: Sequence[str], trainer: Any, keep_logps: bool = False
) -> dict[str, list[list[Any]] | None]:
    """Sample each prompt in its own way, as TRL's `rollout_func`.

    Args:
        prompts: `B` texts.
        trainer: The `RookWorldGRPOTrainer`.
        keep_logps: Whether to put the sampler's log-probs into the batch, as
            ``sampling_per_token_logps`` ``(B, C)``.
    """
    prompt_ids = trainer.processing_class(text=prompts)["input_ids"]
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as network,
        trainer.whole_weights(),
    ):
        ways = trainer.samplings(prompts)
        config = trainer.generation_config
        completion_ids, logps = draw(network, prompt_ids, ways, config, keep_logps)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logps}


def language_model(network: Any) -> Any:
    """The language model with its head, also inside of adapters."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def backbone(network: Any) -> Any:
    """The module that computes the hidden states which the head reads, also inside of adapters."""
    return language_model(network).base_model
