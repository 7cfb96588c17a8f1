"""Weights that FSDP or DeepSpeed spreads over processes: whole for sampling, and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from ..common.errors import ConfigurationError


def is_sharded(trainer: Any) -> bool:
    """Whether a trainer's weights are sharded, so that no process keeps them all."""
    return bool(trainer.is_fsdp_enabled or gathers_at_each_forward(trainer))


def gathers_at_each_forward(trainer: Any) -> bool:
    """Whether each forward needs all processes, in sampling too: with DeepSpeed ZeRO-3."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    return plugin is not None and plugin.zero_stage == 3


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
