"""Sampling each task in its own way in one mixed batch, and log-probs at the temperature of sampling.

The loss takes each row's temperature into account, but neither top-p nor top-k: it uses the log-prob of
a token before the tail is cut off. Tokens of the tail are never sampled, so updates never push them
down, and the policy drifts towards what the cut keeps. With top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from trl import GRPOConfig
from trl.models.utils import unwrap_model_for_generation

from ...common.settings import record_faults, setting
from ...models.decoding import Drawn, decode, only_generate
from ...tasks.registry import TASKS, task_of
from ...tasks.task import Sampling
from ..sharding import gathered, gathers_at_each_forward
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
        faults = []
        if args.use_transformers_continuous_batching:
            faults.append(
                "task_sampling: use_transformers_continuous_batching samples all tasks alike; leave one "
                "of the two out"
            )
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
# A model's own generation settings that our loop follows, or that do not change which tokens come.
_READ = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "max_length",
    "max_new_tokens",
    "use_cache",
    "transformers_version",
}


def draws_itself(trainer: Any) -> bool:
    """Whether a trainer's completions are drawn by `rollout` and not by TRL."""
    given = arguments_of(trainer.args, SamplingArguments)
    if trainer.args.use_vllm:
        return False
    return given.task_sampling is not None or not needs_generate(trainer)


def needs_generate(trainer: Any) -> bool:
    """Whether what a trainer draws itself needs transformers' `generate`, or continuous batching.

    That is so if each forward gathers the weights, or if a setting or the model needs something that the
    loop in `models.decoding` does not have.
    """
    args = trainer.args
    network = trainer.accelerator.unwrap_model(trainer.model)
    return bool(
        gathers_at_each_forward(trainer)
        or args.use_transformers_continuous_batching
        or trainer.tools
        or args.generation_kwargs
        or args.cache_implementation
        or args.repetition_penalty != 1
        or args.min_p
        or only_generate(network)
        or own_settings(trainer)
    )


def own_settings(trainer: Any) -> dict[str, Any]:
    """A model's own generation settings that `generate` follows and the loop does not."""
    given = generation_options(trainer)
    network = trainer.accelerator.unwrap_model(trainer.model)
    return {
        name: value
        for name, value in network.generation_config.to_diff_dict().items()
        if value is not None
        and name not in _READ
        and not name.startswith(("_", "output_"))
        and getattr(given, name, None) is None
    }


def generation_options(trainer: Any) -> GenerationConfig:
    """The trainer's settings of generation; TRL makes none if vLLM samples."""
    if not trainer.args.use_vllm:
        return trainer.generation_config
    tokenizer = trainer.processing_class
    return GenerationConfig(
        max_new_tokens=trainer.max_completion_length,
        do_sample=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=trainer.eos_token_ids,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        min_p=trainer.min_p,
        repetition_penalty=trainer.repetition_penalty,
        disable_compile=True,
    )


def draw(
    trainer: Any,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Sampling],
    keep_logps: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Drawn:
    """Draw one completion per prompt with a trainer's policy, each with its own settings; see `decode`.

    Args:
        trainer: Any `GRPOTrainer`.
        prompts: Token ids of `B` prompts.
        rows: How each is drawn; a length of None is the trainer's.
        keep_logps: Whether to return log-probs.
        batch_size: Rows drawn at once; None for all.
        progress: Called with the number of rows of each batch that is done.
    """
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=getattr(trainer, "generation_kwargs", None),  # none with vLLM
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as network,
        gathered(trainer),
        trainer.accelerator.autocast(),
    ):
        return decode(
            network,
            prompts,
            rows,
            generation_options(trainer),
            by_generate=needs_generate(trainer),
            keep_logps=keep_logps,
            batch_size=batch_size,
            progress=progress,
        )


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
    distinct = list(dict.fromkeys(prompts))  # a group's rows have one prompt
    encoded = trainer.processing_class(text=distinct)["input_ids"]
    ids = dict(zip(distinct, encoded, strict=True))
    prompt_ids = [ids[prompt] for prompt in prompts]
    drawn = draw(trainer, prompt_ids, trainer.samplings(prompts), keep_logps)
    return {"prompt_ids": prompt_ids, "completion_ids": drawn.ids, "logprobs": drawn.logps}


def language_model(network: Any) -> Any:
    """The language model with its head, also inside of adapters."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def backbone(network: Any) -> Any:
    """The module that computes the hidden states which the head reads, also inside of adapters."""
    return language_model(network).base_model
