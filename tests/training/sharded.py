"""Shard models over processes on CPUs, as a file of `accelerate_configs/` does on GPUs."""

import os
from typing import Any

import yaml
from accelerate import Accelerator, DistributedType, PartialState

from ..support import REPOSITORY


def configure(layout: str) -> None:
    """Set what `accelerate launch` sets for a configuration; it does so for accelerators only.

    Args:
        layout: ``fsdp2`` or ``deepspeed_zero2``.
    """
    config = yaml.safe_load((REPOSITORY / "accelerate_configs" / f"{layout}.yaml").read_text())
    if layout == "fsdp2":
        keys = {name.upper(): value for name, value in config["fsdp_config"].items()}
        os.environ["ACCELERATE_USE_FSDP"] = "true"
    else:
        keys = {
            f"ACCELERATE_DEEPSPEED_{k.upper()}": v for k, v in config["deepspeed_config"].items()
        }
        keys["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = keys.pop("ACCELERATE_DEEPSPEED_ZERO3_INIT_FLAG")
        keys["DS_ACCELERATOR"] = "cpu"
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ.update({name: str(value) for name, value in keys.items()})
    start = Accelerator.__init__

    def shard(self: Accelerator, *args: Any, **kwargs: Any) -> None:
        # Accelerate shards only what is not on CPUs.
        if layout == "fsdp2":
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        else:
            os.environ["ACCELERATE_USE_CPU"] = "false"
            PartialState._shared_state["_cpu"] = False
        start(self, *args, **kwargs)
        os.environ["ACCELERATE_USE_CPU"] = "true"

    Accelerator.__init__ = shard  # type: ignore[method-assign]
