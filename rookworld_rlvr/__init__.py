"""GRPO with verifiable chess rewards for RookWorld-LM, on TRL.

Public names: `RookWorld`, `rewards.get_reward_funcs` and each reward (`rewards.environment_exact`),
`data.load_rows`, `training.RookWorldGRPOTrainer`, `training.RookWorldGRPOConfig` and
`models.resolve_model_path`. Each can be imported without the others: a subpackage is loaded on first
use.
"""

import importlib
import os
import sys
from typing import Any

from .common import terminal

__version__ = "0.2.0"

if os.environ.pop(terminal.STARTS, "") or os.path.basename(*sys.argv[:1] or [""]) == "rookworld":
    terminal.watch_ctrl_c()

_PACKAGES = ("data", "models", "rewards", "training")


def __dir__() -> list[str]:
    return [*globals(), "RookWorld", *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name == "RookWorld":
        return importlib.import_module(".inference.model", __name__).RookWorld
    if name in _PACKAGES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
