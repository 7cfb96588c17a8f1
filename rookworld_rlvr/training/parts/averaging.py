"""Weights between the start's and the trained ones, which keep more of what the start could do.

Source: M. Wortsman et al., "Robust fine-tuning of zero-shot models" (WiSE-FT), arXiv:2109.01903; for
reinforcement learning, Y. Lin et al., "Mitigating the alignment tax of RLHF", arXiv:2309.06256.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...common.errors import RookWorldError
from ..sharding import is_sharded
from .part import Part


class Averaging(Part):
    """Evaluates, and in the end keeps, weights of which a share is the start's.

    Training goes on from the trained weights, which are also those of checkpoints.

    Args:
        trainer: The `RookWorldGRPOTrainer`, with the starting weights.
        share: The start's, from 0 to 1.
    """

    def __init__(self, trainer: Any, share: float) -> None:
        self._trainer = trainer
        self._share = share
        self._start = [weight.detach().to("cpu", copy=True) for weight in self._weights()]

    @classmethod
    def of(cls, trainer: Any) -> Averaging:
        """The part.

        Raises:
            RookWorldError: The weights are sharded, or adapters.
        """
        share = trainer.args.start_share
        if is_sharded(trainer):
            raise RookWorldError(
                f"start_share: {share} needs whole weights, but they are sharded; leave it out, or use "
                "DDP"
            )
        if hasattr(trainer.networks()[0], "peft_config"):
            raise RookWorldError(
                f"start_share: {share} is for full weights; with adapters, a lower lora_alpha of the "
                "finished adapter does the same; leave it out, or use_peft"
            )
        return cls(trainer, share)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Part`."""
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
        pairs = zip(self._weights(), self._start, strict=True)
        self._set([w.detach().lerp(start.to(w.device), self._share) for w, start in pairs])

    @torch.no_grad()
    def _set(self, values: list[torch.Tensor]) -> None:
        for weight, value in zip(self._weights(), values, strict=True):
            weight.copy_(value)
