"""The trainer, its configuration, the health monitor, and what a run writes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RookWorldGRPOConfig
    from .trainer import RookWorldGRPOTrainer

__all__ = ["RookWorldGRPOConfig", "RookWorldGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Import the trainer and its configuration, and with them TRL, when they are first used."""
    if name in __all__:
        module = "trainer" if name.endswith("Trainer") else "config"
        return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
