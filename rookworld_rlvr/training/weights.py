"""Which weights a run keeps: none that lose too much, and, if asked for, a share of the start's.

Source of the share: M. Wortsman et al., "Robust fine-tuning of zero-shot models" (WiSE-FT),
arXiv:2109.01903; for reinforcement learning, Y. Lin et al., "Mitigating the alignment tax of RLHF",
arXiv:2309.06256.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from ..common.errors import RookWorldError
from .health import losses
from .sampling import is_sharded

if TYPE_CHECKING:
    from .step import Step


class Guard(TrainerCallback):
    """Judges each evaluation by what it loses against the start, and saves the start itself.

    The starting model is the first checkpoint and the best until another one keeps the guard. What is
    judged is in the trainer's log, so that a resumed run judges alike.

    Args:
        trainer: Whose evaluations are judged.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer

    def keeps(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's metrics lose no more than they may against the run's first ones."""
        first = ChainMap(*self._trainer.state.log_history)  # of each metric, its first value
        return not losses(self._trainer.args.guard, first, metrics)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self._trainer.is_in_train:
            self._trainer.save_start()


class Averaging(TrainerCallback):
    """Evaluates, and in the end keeps, weights of which a share is the start's.

    Training goes on from the trained weights, which are also those of checkpoints.

    Args:
        trainer: Whose weights are evaluated.

    Raises:
        RookWorldError: The weights are sharded, or adapters.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        if is_sharded(trainer) or hasattr(trainer.networks()[0], "peft_config"):
            raise RookWorldError(
                f"start_share: {trainer.args.start_share} needs whole weights, but they are sharded or "
                "adapters; leave it out, or use DDP without use_peft"
            )
        self._start = [weight.detach().to("cpu", copy=True) for weight in self._weights()]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Goes around each evaluation in training."""
        trained = [weight.detach().clone() for weight in self._weights()]
        self._average()
        try:
            yield
        finally:
            self._set(trained)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._average()  # the best checkpoint's, if they have been loaded, which is before this event

    def _weights(self) -> list[torch.nn.Parameter]:
        return list(self._trainer.networks()[0].parameters())

    def _average(self) -> None:
        share = self._trainer.args.start_share
        pairs = zip(self._weights(), self._start, strict=True)
        self._set([w.detach().lerp(start.to(w.device), share) for w, start in pairs])

    @torch.no_grad()
    def _set(self, values: list[torch.Tensor]) -> None:
        for weight, value in zip(self._weights(), values, strict=True):
            weight.copy_(value)
