"""A trainer's policy answers prompts beside training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from trl.models.utils import unwrap_model_for_generation

from ..common.errors import ConfigurationError
from ..models.decoding import GREEDY, Decoding, complete


def decode(
    trainer: Any,
    prompts: Sequence[str],
    progress: Callable[[int], object] | None = None,
    decoding: Decoding = GREEDY,
) -> list[str]:
    """Answer prompts with a trainer's policy, greedily by default, on this process; see `complete`."""
    with answering(trainer) as network:
        return complete(
            network,
            trainer.processing_class,
            prompts,
            max_new_tokens=trainer.max_completion_length,
            decoding=decoding,
            batch_size=trainer.args.per_device_eval_batch_size,
            progress=progress,
        )


@contextmanager
def answering(trainer: Any) -> Iterator[Any]:
    """The policy's network as `whole_network` gives it, in evaluation mode."""
    training = trainer.model.training
    trainer.model.eval()
    try:
        with whole_network(trainer) as network:
            yield network
    finally:
        trainer.model.train(training)


@contextmanager
def whole_network(trainer: Any, **settings: Any) -> Iterator[Any]:
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


def logits_alone(trainer: Any, ids: torch.Tensor) -> torch.Tensor:
    """A trainer's logits ``(T, V)`` of one row ``(T,)`` without padding, under the run's autocast."""
    with trainer.accelerator.autocast():
        logits: torch.Tensor = trainer.model_wrapped(input_ids=ids.unsqueeze(0)).logits
    return logits[0].float()


# --------------------------------------------------------------------------------------------------
# Weights that are spread over processes
# --------------------------------------------------------------------------------------------------
def is_sharded(trainer: Any) -> bool:
    """Whether no process keeps all of a trainer's weights: under FSDP and DeepSpeed ZeRO-3."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


@contextmanager
def gathered(trainer: Any) -> Iterator[None]:
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
