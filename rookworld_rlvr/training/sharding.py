"""Weights that FSDP or DeepSpeed spreads over processes: whole for sampling, and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils.constants import OPTIMIZER_NAME as FSDP_OPTIMIZER
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from transformers.trainer import OPTIMIZER_NAME

from ..common.errors import ConfigurationError

_OPTIMISERS = {
    "plainly": [OPTIMIZER_NAME],
    "with FSDP": [f"{FSDP_OPTIMIZER}.bin", f"{FSDP_OPTIMIZER}_*"],
    "with DeepSpeed": ["global_step*"],
}
"""How a run keeps its weights → where its checkpoints have the optimiser's state."""


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


def check_layout(trainer: Any, checkpoint: Any) -> None:
    """Refuse a checkpoint whose optimiser state this layout cannot read; it would begin anew, unsaid.

    Args:
        trainer: The trainer.
        checkpoint: The folder to resume from; anything else is not looked at.

    Raises:
        ConfigurationError: A run with another way of sharding has written it.
    """
    if not isinstance(checkpoint, str):
        return
    ours = "plainly"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        ours = "with FSDP" if trainer.is_fsdp_enabled else "with DeepSpeed"
    folder = Path(checkpoint)
    found = [
        layout
        for layout, files in _OPTIMISERS.items()
        if any(path for name in files for path in folder.glob(name))
    ]
    if found and ours not in found:
        raise ConfigurationError(
            [
                f"resume_from_checkpoint: {checkpoint} was written {found[0]} and cannot be read "
                f"{ours}; resume it with the --accelerate_config that it began with, or start a new run "
                "from its weights by model_name_or_path"
            ]
        )
