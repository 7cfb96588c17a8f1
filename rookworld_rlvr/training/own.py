"""The trainer of a run: ours, or a subclass in a file of the user's own."""

from __future__ import annotations

from typing import cast

from ..common.own import load_own_class
from .trainer import RookWorldGRPOTrainer


def trainer_class(name: str | None, where: str = "trainer_from") -> type[RookWorldGRPOTrainer]:
    """The class of a run's trainer.

    Args:
        name: ``path/to/file.py:Class``; None is `RookWorldGRPOTrainer`.
        where: The key that names it.

    Raises:
        ConfigurationError: The file has no such subclass of `RookWorldGRPOTrainer`.
    """
    if name is None:
        return RookWorldGRPOTrainer
    return cast(type[RookWorldGRPOTrainer], load_own_class(name, where, RookWorldGRPOTrainer))
