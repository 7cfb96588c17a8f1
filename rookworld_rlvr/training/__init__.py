"""The trainer, its configuration, and what watches over a run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RookWorldGRPOConfig
    from .trainer import RookWorldGRPOTrainer

__all__ = ["RookWorldGRPOConfig", "RookWorldGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """Load trainer and configuration, and with them TRL, when they are first asked for."""
    if name == "RookWorldGRPOTrainer":
        from .trainer import RookWorldGRPOTrainer

        return RookWorldGRPOTrainer
    if name == "RookWorldGRPOConfig":
        from .config import RookWorldGRPOConfig

        return RookWorldGRPOConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
