"""Sampling task by task in one mixed batch, and log-probs at the temperature that was sampled with.

The loss knows the temperature, row by row, but neither top-p nor top-k: it takes the log-prob of a
token before the tail was cut off. What was cut is never sampled, so the update sees too little of it
(the tail is not pushed down) and the policy drifts towards what its own cut keeps. top-p 1 and top-k 0
are without that bias.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import unwrap_model_for_generation

from ...common.errors import ConfigurationError, close_matches, json_value
from ...models.decoding import left_pad
from ...tasks.registry import task_of
from ...tasks.types import TASKS, Task


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    Args:
        temperature: Logits are divided by it.
        top_p: Only the likeliest tokens that have this probability together are drawn; 1 for all.
        top_k: Only so many of the likeliest tokens are drawn; 0 for all.
        max_completion_length: Most tokens of a completion; None for the trainer's bound.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_completion_length: int | None = None

    def faults(self, name: str, longest: int | None) -> list[str]:
        """What is wrong with the values, one sentence each."""
        faults = [
            f"{name}: {key} is {value!r}, {wanted}"
            for key, value, wanted, right in (
                ("temperature", self.temperature, "not above 0", _number(self.temperature, 0)),
                ("top_p", self.top_p, "not in (0, 1]", _number(self.top_p, 0) and self.top_p <= 1),
                ("top_k", self.top_k, "no whole number from 0", _whole(self.top_k, 0)),
            )
            if not right
        ]
        length = self.max_completion_length
        if length is not None and not _whole(length, 1):
            faults.append(f"{name}: max_completion_length is {length!r}, no whole number from 1")
        elif length is not None and longest is not None and length > longest:
            faults.append(
                f"{name}: max_completion_length is {length}, over the trainer's {longest}; raise that"
            )
        return faults


def _number(value: Any, above: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > above


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


TASK_SAMPLING: Mapping[Task, Sampling] = {
    "policy": Sampling(temperature=0.5, top_p=0.9),
    "environment": Sampling(temperature=0.95, top_p=0.95),
    "fill_in": Sampling(temperature=0.95, top_p=0.95),  # as the environment, whose records it hides
}
"""What RookWorld-LM's authors settled on for the first two; the values of a task that is named without
any."""


@dataclass
class SamplingArguments:
    """Keys for sampling each task in its own way.

    Args:
        task_sampling: ``{task: {temperature, top_p, top_k, max_completion_length}}``; a task that is
            named takes what it leaves out from `TASK_SAMPLING`, one that is not is sampled as the
            trainer's own keys say. None samples all tasks alike.
    """

    task_sampling: dict[str, Any] | str | None = None

    def sampling_faults(self, args: GRPOConfig) -> list[str]:
        """What is wrong, one sentence each; without any, `task_sampling` is a mapping or None."""
        try:
            given = self.task_sampling = json_value("task_sampling", self.task_sampling)
        except ConfigurationError as error:
            return error.faults
        if given is None:
            return []
        if not isinstance(given, Mapping):
            return [f"task_sampling: {given!r} is no mapping of tasks to their options"]
        faults = [
            f"task_sampling: {key} draws completions elsewhere, alike for all tasks; leave one out"
            for key in ("use_vllm", "use_transformers_continuous_batching")
            if getattr(args, key, False)
        ]
        for task, options in given.items():
            faults += _check_sampling(str(task), options, args.max_completion_length)
        return faults

    def sampling_by_task(self, default: Sampling) -> dict[Task, Sampling]:
        """How each task is sampled; `default` for those that `task_sampling` does not name."""
        given: Any = self.task_sampling or {}
        return {
            task: dataclasses.replace(TASK_SAMPLING[task], **given[task])
            if task in given
            else default
            for task in TASKS
        }


def _check_sampling(task: str, options: Any, longest: int | None) -> list[str]:
    name = f"task_sampling: {task}"
    if task not in TASKS:
        return [f"task_sampling: no task {task!r}{close_matches(task, TASKS)}"]
    if not isinstance(options, Mapping):
        return [f"{name}: {options!r} is no mapping; write {{}} for the defaults"]
    known = [field.name for field in dataclasses.fields(Sampling)]
    unknown = [key for key in options if key not in known]
    if unknown:
        return [f"{name}: no option {key!r}{close_matches(str(key), known)}" for key in unknown]
    return dataclasses.replace(TASK_SAMPLING[task], **options).faults(name, longest)  # type: ignore[index]


# --------------------------------------------------------------------------------------------------
# Drawing
# --------------------------------------------------------------------------------------------------
class RowSampler(LogitsProcessor):
    """Temperature, top-k and top-p of each row, as transformers' warpers apply them to a batch.

    Args:
        rows: How each of the `B` rows is drawn.
        device: Of the logits.
        keep_logps: Whether to keep the log-probs of what is drawn, before top-k and top-p.
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
        """Logits ``(B, V)`` after what was drawn so far, ``(B, T)``, at each row's temperature."""
        scores = scores.float() / self.temperature
        if self.keep_logps:
            self._take(input_ids[:, -1])
            self._last = scores.log_softmax(-1)
        return self._cut(scores) if self.cuts else scores

    def logps(self, last: torch.Tensor) -> torch.Tensor:
        """Log-probs ``(B, C)`` of all tokens drawn, the last of them ``(B,)``."""
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
        longest: Most new tokens, by row.
        width: Tokens of the padded prompts.
    """

    def __init__(self, longest: Sequence[int], width: int) -> None:
        self.longest = torch.tensor(longest)
        self.width = width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Which rows ``(B,)`` are done after ``(B, T)`` tokens."""
        return (self.longest <= input_ids.size(1) - self.width).to(input_ids.device)


@torch.no_grad()
def draw(
    network: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Sampling],
    config: GenerationConfig,
    keep_logps: bool = False,
) -> tuple[list[list[int]], list[list[float]] | None]:
    """Draw one completion a prompt, each in its own way, in one call of `generate`.

    Args:
        network: What `generate` is called on.
        prompts: Token ids of `B` prompts.
        rows: How each is drawn; None as a length takes `config.max_new_tokens`.
        config: For everything else; its end-of-text ids end a completion and stay in it.
        keep_logps: Whether log-probs are wanted.

    Returns:
        Token ids by row, and their log-probs at the row's temperature, before top-k and top-p.
    """
    batch = left_pad(prompts, config.pad_token_id)
    batch = {key: tensor.to(network.device) for key, tensor in batch.items()}
    width = batch["input_ids"].size(1)
    config = copy.deepcopy(config)
    config.temperature, config.top_p, config.top_k = 1.0, 1.0, 0  # they are the rows'
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
    """Tokens of each completion up to its end of text, or to its bound: what follows is padding."""
    known = torch.as_tensor(ends, device=completions.device)
    is_end = torch.isin(completions, known)  # (B, C)
    first = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, completions.size(1))
    return [min(length, bound) for length, bound in zip(first.tolist(), longest, strict=True)]


# --------------------------------------------------------------------------------------------------
# The trainer
# --------------------------------------------------------------------------------------------------
class TaskSamplingGRPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` that samples and scores each row at its task's temperature.

    Attributes:
        keep_sampler_logps: Whether batches carry the sampler's log-probs, as
            ``sampling_per_token_logps`` ``(B, C)``; False unless someone wants to look at them.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        super().__init__(model, reward_funcs, args, **kwargs)
        self.keep_sampler_logps = False
        given = args if isinstance(args, SamplingArguments) else SamplingArguments()
        self.sampling = Sampling(self.temperature, self.top_p, self.top_k or 0)
        self.samplings = given.sampling_by_task(self.sampling)
        self.samples_by_task = given.task_sampling is not None
        prompts = self.train_dataset["prompt"][:] if self.samples_by_task else []
        self._tasks = sorted({task_of(prompt) for prompt in prompts})
        self._temperatures: torch.Tensor | None = None  # (B,) of the rows that are scored next
        self._scale: torch.Tensor | None = None  # (b, 1, 1) of the rows in the forward now
        if self.samples_by_task:
            for network in filter(None, (self.model, self.ref_model)):
                backbone(self.accelerator.unwrap_model(network)).register_forward_hook(
                    self._scale_hidden_states
                )

    def rows_sampling(self, prompts: Sequence[str]) -> list[Sampling]:
        """How each of `B` prompts is sampled."""
        return [self.samplings[task_of(prompt)] for prompt in prompts]

    def temperatures(self, prompts: Sequence[str]) -> torch.Tensor:
        """The temperatures ``(B,)`` of prompts."""
        values = [row.temperature for row in self.rows_sampling(prompts)]
        return torch.tensor(values, device=self.accelerator.device)

    @contextmanager
    def at_temperatures(self, temperatures: torch.Tensor | None) -> Iterator[None]:
        """Score the rows of every forward in here at temperatures ``(B,)``."""
        before = self._temperatures
        self._temperatures = temperatures if self.samples_by_task else None
        try:
            yield
        finally:
            self._temperatures = before

    # --------------------------------------------------------------------------------------------
    # Sampling
    # --------------------------------------------------------------------------------------------
    def _generate(self, prompts: list) -> Any:
        self._row_samplings = self.rows_sampling(prompts)
        return super()._generate(prompts)

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> Any:
        if self.use_vllm or not (self.samples_by_task or self.keep_sampler_logps):
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as network,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            return draw(
                network,
                prompt_ids,
                self._row_samplings,
                self.generation_config,
                self.keep_sampler_logps,
            )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.samples_by_task:
            return super()._generate_and_score_completions(inputs)
        temperatures = self.temperatures([row["prompt"] for row in inputs])
        with self.at_temperatures(temperatures):
            output = super()._generate_and_score_completions(inputs)
        output["temperature"] = temperatures
        mode = "train" if self.model.training else "eval"
        # Those of the data, not of this process's rows: only the first process's metrics are logged.
        for task in self._tasks:
            temperature = self.samplings[task].temperature
            self._metrics[mode][f"sampling/temperature_{task}"].append(temperature)
        return output

    # --------------------------------------------------------------------------------------------
    # Scoring
    # --------------------------------------------------------------------------------------------
    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        with self.at_temperatures(inputs.get("temperature")):
            return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        score = super()._get_per_token_logps_and_entropies
        if self._temperatures is None:
            return score(model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs)
        # TRL's head divides all logits by one temperature. The hidden states, which the logits are
        # linear in, are scaled so that the division by each row's own comes out.
        parts = []
        scales = self.temperature / self._temperatures
        step = batch_size or input_ids.size(0)
        for start in range(0, input_ids.size(0), step):
            chunk = slice(start, start + step)
            self._scale = scales[chunk].view(-1, 1, 1)
            try:
                parts.append(
                    score(model, input_ids[chunk], attention_mask[chunk], logits_to_keep, **kwargs)
                )
            finally:
                self._scale = None
        logps, entropies, aux_losses = zip(*parts, strict=True)
        return (
            torch.cat(logps),
            torch.cat(entropies) if entropies[0] is not None else None,
            torch.stack(aux_losses).mean() if aux_losses[0] is not None else None,
        )

    def _scale_hidden_states(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        if self._scale is not None:
            states = output.last_hidden_state  # (b, T, D)
            output.last_hidden_state = states * self._scale.to(states.dtype)
        return output


def language_model(network: Any) -> Any:
    """The model with the head, inside of adapters too."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def backbone(network: Any) -> Any:
    """What makes the hidden states that the head reads, inside of adapters too."""
    return language_model(network).base_model
