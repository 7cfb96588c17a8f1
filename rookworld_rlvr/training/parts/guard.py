"""A guard on held-out metrics: a checkpoint that loses too much of one is not kept as the best."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from ..health import losses
from .part import Part


class Guard(Part):
    """Judges each evaluation by what it loses against the start, and saves the start itself.

    The starting model is the first checkpoint and the best until another one keeps the guard. What is
    judged is in the trainer's log, so that a resumed run judges alike.
    """

    def may_be_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's metrics lose no more than they may against the run's first ones."""
        first = ChainMap(*self._trainer.state.log_history)  # of each metric, its first value
        return not losses(self._trainer.args.guard, first, metrics)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self._trainer.is_in_train:
            self._trainer.save_start()
