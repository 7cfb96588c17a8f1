"""Which way of sharding has written a checkpoint: one cannot read another's optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.utils.constants import OPTIMIZER_NAME as FSDP_OPTIMIZER
from transformers.trainer import OPTIMIZER_NAME

from ..common.errors import ConfigurationError

_OPTIMISERS = {
    "plainly": [OPTIMIZER_NAME],
    "with FSDP": [f"{FSDP_OPTIMIZER}.bin", f"{FSDP_OPTIMIZER}_*"],
    "with DeepSpeed": ["global_step*"],
}
"""How a run keeps its weights → where its checkpoints have the optimiser's state."""


def check_layout(trainer: Any, checkpoint: str) -> None:
    """Refuse a checkpoint whose optimiser state this layout cannot read; it would begin anew, unsaid.

    Args:
        trainer: The trainer.
        checkpoint: The folder to resume from.

    Raises:
        ConfigurationError: A run with another way of sharding has written it.
    """
    sharded = "with FSDP" if trainer.is_fsdp_enabled else "with DeepSpeed"
    ours = sharded if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled else "plainly"
    found = [
        layout
        for layout, files in _OPTIMISERS.items()
        if any(path for name in files for path in Path(checkpoint).glob(name))
    ]
    if found and ours not in found:
        raise ConfigurationError(
            [
                f"resume_from_checkpoint: {checkpoint} was written {found[0]} and cannot be read "
                f"{ours}; resume it with the --accelerate_config that it began with, or start a new run "
                "from its weights by model_name_or_path"
            ]
        )
