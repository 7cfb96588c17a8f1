"""How a trainer samples, each task in its own way in one mixed batch, and answers beside training.

The loss takes each row's temperature into account, but neither top-p nor top-k: it uses the log-prob of
a token before the tail is cut off. Tokens of the tail are never sampled, so updates never push them
down, and the policy drifts towards what the cut keeps. With top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from transformers import Trainer
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from ..common.errors import ConfigurationError, RookWorldError
from ..models.decoding import GREEDY, Decoding, Drawn, complete, language_model, requires_generate
from ..models.decoding import decode as decode_ids
from ..tasks.registry import TASKS, row_task
from ..tasks.task import Sampling
from .arguments import arguments_of

if TYPE_CHECKING:
    from ..models.graphs import Graphs
    from .step import Step

# A model's own generation settings that our loop follows, or that do not change which tokens come.
_READ = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_k", "top_p"),
    *("max_length", "max_new_tokens", "use_cache", "transformers_version"),
}


class Samplings(Trainer):
    """Mixin for TRL's trainer: its networks, and how it samples each task.

    Attributes:
        sampling: How completions are sampled, unless `task_samplings` has their task.
        task_samplings: How each task is sampled; None if all are sampled alike.
        graphs: What samples in the loop's place; None before, and where they are off or cannot be used.
        no_graphs: Why they cannot be used, as was said last.
    """

    sampling: Sampling
    task_samplings: dict[str, Sampling] | None
    graphs: Graphs | None = None
    no_graphs: str | None = None

    def networks(self) -> list[torch.nn.Module]:
        """The policy and, if it is a separate model, the reference."""
        return [*map(self.accelerator.unwrap_model, filter(None, (self.model, self.ref_model)))]

    @property
    def has_reference(self) -> bool:
        """Whether the starting model's log-probs are available, from a copy or with the adapters off."""
        return self.ref_model is not None or hasattr(self.networks()[0], "peft_config")

    def samplings(self, prompts: Sequence[Any]) -> list[Sampling]:
        """How each prompt, a text or a chat, is sampled."""
        return [self.sampling_of(row_task({"prompt": prompt})) for prompt in prompts]

    def sampling_of(self, task: str | None) -> Sampling:
        """How a task is sampled; None stands for rows of none."""
        return (self.task_samplings or {}).get(task or "", self.sampling)

    def temperatures(self, rows: Sequence[Mapping[str, Any]]) -> torch.Tensor | None:
        """The temperatures ``(B,)`` of rows, on the host; None if all have the trainer's."""
        if self.task_samplings is None:
            return None
        return torch.tensor([self.sampling_of(row_task(row)).temperature for row in rows])


def check_rows(rows: int, prompts: int) -> None:
    """Refuse a training set that is smaller than one generation batch: nothing would be trained.

    Raises:
        RookWorldError: So many rows do not fill a batch of so many prompts.
    """
    if rows < prompts:
        raise RookWorldError(
            f"{rows} rows to train on do not fill one generation batch of {prompts} prompts; give more "
            "rows, or a smaller per_device_train_batch_size"
        )


def samplings_of(args: Any, default: Sampling) -> dict[str, Sampling] | None:
    """How each task is sampled: by `default` if `task_sampling` does not name it; None without that."""
    given: Any = arguments_of(args).task_sampling
    if given is None:
        return None
    own = {task: dataclasses.replace(TASKS[task].sampling, **keys) for task, keys in given.items()}
    return {task: own.get(task, default) for task in TASKS}


def draws_itself(trainer: Step) -> bool:
    """Whether a trainer's completions are drawn by `draw` and not by TRL."""
    if trainer.args.use_vllm:
        return False
    return trainer.task_samplings is not None or not needs_generate(trainer)


def needs_generate(trainer: Step) -> bool:
    """Whether what a trainer draws itself needs transformers' `generate`, or continuous batching.

    That is so if a setting or the model needs something that the loop of `models.decoding` lacks.
    """
    args = trainer.args
    network = trainer.accelerator.unwrap_model(trainer.model)
    return bool(
        args.use_transformers_continuous_batching
        or trainer.tools
        or args.generation_kwargs
        or args.cache_implementation
        or args.repetition_penalty != 1
        or args.min_p
        or requires_generate(network)
        or any(  # a setting of the model's own, which `generate` follows
            value is not None
            and name not in _READ
            and not name.startswith(("_", "output_"))
            and getattr(trainer.generation_config, name, None) is None
            for name, value in network.generation_config.to_diff_dict().items()
        )
    )


def encode(trainer: Step, prompts: Sequence[Any]) -> list[list[int]]:
    """Token ids of `B` prompts, as TRL gives them to its sampler.

    Args:
        trainer: Chats are written in its chat template.
        prompts: All of them texts, or all of them lists of messages.
    """
    tokenizer = trainer.processing_class
    ids: list[list[int]]
    if not prompts or isinstance(prompts[0], str):
        ids = tokenizer(text=list(prompts))["input_ids"] if prompts else []
        return ids
    ids = tokenizer.apply_chat_template(
        list(prompts),
        tools=trainer.tools or None,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )["input_ids"]
    return ids


def answer_tokens(trainer: Step, prompt: Any, answer: str) -> list[int]:
    """The tokens that a policy has to write after a prompt, text or chat, to give an answer.

    The end token is among them.
    """
    tokenizer = trainer.processing_class
    (before,) = encode(trainer, [prompt])
    both: list[int] = tokenizer(prompt + answer)["input_ids"] if isinstance(prompt, str) else []
    if both[: len(before)] != before:  # a chat, or the prompt's last characters joined the answer's
        both = before + tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*both[len(before) :], tokenizer.eos_token_id]


def draw(
    trainer: Step,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Sampling],
    keep_logps: bool,
) -> Drawn:
    """Draw one completion per prompt with a trainer's policy, each with its own settings.

    Args:
        trainer: Its policy draws.
        prompts: Token ids of `B` prompts.
        rows: How each is drawn; a length of None is the trainer's.
        keep_logps: Whether to return log-probs.
    """
    settings = {
        "generation_kwargs": trainer.generation_kwargs,
        "gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs,
    }
    with whole_network(trainer, **settings) as network:
        return decode_ids(
            network,
            prompts,
            rows,
            trainer.generation_config,
            by_generate=needs_generate(trainer),
            keep_logps=keep_logps,
            graphs=graphs_of(trainer, network),
        )


def graphs_of(trainer: Step, network: Any) -> Graphs | None:
    """The CUDA graphs that sample with a trainer's network; None where they are off or cannot be used.

    A line says why they cannot be, once for each reason.
    """
    if not arguments_of(trainer.args).cuda_graphs:
        return None
    from ..models.graphs import Graphs, obstacle

    by_generate = needs_generate(trainer)
    reason = "transformers' generate samples here" if by_generate else obstacle(network)
    if reason is not None:
        if reason != trainer.no_graphs:
            trainer.accelerator.print(f"cuda_graphs: they are not used: {reason}")
        trainer.no_graphs, trainer.graphs = reason, None
    elif trainer.graphs is None:
        trainer.graphs = Graphs(trainer.accelerator.print)
    return trainer.graphs


def sample(trainer: Step, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Token ids of one completion of each row, each sampled in its own way."""
    samplings = [trainer.sampling_of(row_task(row)) for row in rows]
    return draw(trainer, encode(trainer, [row["prompt"] for row in rows]), samplings, False).ids


def backbone(network: Any) -> Any:
    """The module that computes the hidden states which the head reads, also inside of adapters."""
    return language_model(network).base_model


# --------------------------------------------------------------------------------------------------
# Answers beside training
# --------------------------------------------------------------------------------------------------
def decode(
    trainer: Step,
    prompts: Sequence[Any],
    progress: Callable[[int], object] | None = None,
    decoding: Decoding = GREEDY,
) -> list[str]:
    """Answer texts or chats with a trainer's policy, greedily by default, on this process.

    See `complete`.
    """
    with answering(trainer) as network:
        return complete(
            network,
            trainer.processing_class,
            prompts,
            encoded=encode(trainer, prompts),
            max_new_tokens=trainer.max_completion_length,
            decoding=decoding,
            batch_size=trainer.args.per_device_eval_batch_size,
            graphs=graphs_of(trainer, network),
            progress=progress,
        )


@contextmanager
def answering(trainer: Step) -> Iterator[Any]:
    """The policy's network as `whole_network` gives it, in evaluation mode."""
    training = trainer.model.training
    trainer.model.eval()
    try:
        with whole_network(trainer) as network:
            yield network
    finally:
        trainer.model.train(training)


@contextmanager
def whole_network(trainer: Step, **settings: Any) -> Iterator[Any]:
    """The policy's network, whole on each process, under the run's autocast; TRL gets `settings`."""
    gather = trainer.args.ds3_gather_for_generation
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, gather, **settings
        ) as network,
        gathered(trainer),
        trainer.accelerator.autocast(),
    ):
        yield network


@contextmanager
def starting_model(trainer: Step) -> Iterator[Any]:
    """The starting model: TRL's reference, which is a copy, or the policy with its adapters off."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    network = trainer.accelerator.unwrap_model(trainer.model)
    adapter = "ref" if "ref" in network.peft_config else None
    kwargs = trainer.args.gradient_checkpointing_kwargs
    with disable_gradient_checkpointing(trainer.model, kwargs), use_adapter(network, adapter):
        yield trainer.model


def logits_alone(trainer: Step, ids: torch.Tensor) -> torch.Tensor:
    """A trainer's logits ``(T, V)`` of one row ``(T,)`` without padding, under the run's autocast."""
    with trainer.accelerator.autocast():
        logits: torch.Tensor = trainer.model_wrapped(input_ids=ids.unsqueeze(0)).logits
    return logits[0].float()


# --------------------------------------------------------------------------------------------------
# Weights that are spread over processes
# --------------------------------------------------------------------------------------------------
def is_sharded(trainer: Trainer) -> bool:
    """Whether no process keeps all of a trainer's weights: under FSDP and DeepSpeed ZeRO-3."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


@contextmanager
def gathered(trainer: Step) -> Iterator[None]:
    """Give each process the whole weights of the policy while it samples, if FSDP has sharded them.

    Processes call the policy differently often, because their texts have different lengths and fall
    into different numbers of batches. If each call gathered the weights, as in training, a process
    would have to go on as long as any other, or that one would wait for ever.

    Raises:
        ConfigurationError: It is wrapped by FSDP 1, which gathers them in each call.
    """
    network = trainer.model_wrapped
    if isinstance(network, FullyShardedDataParallel):
        raise ConfigurationError(["fsdp_version: 1 is not supported; set fsdp_version: 2"])
    units = [module for module in network.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
        if units:
            usual = bool(trainer.accelerator.state.fsdp_plugin.reshard_after_forward)
            network.set_reshard_after_forward(usual)
            for unit in (network, network.get_output_embeddings()):  # accelerate's choice too
                if isinstance(unit, FSDPModule):
                    unit.set_reshard_after_forward(False, recurse=False)
