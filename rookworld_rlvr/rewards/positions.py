"""A warning for those who use the rewards with plain TRL and a GPT-2."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


def warn_of_positions(log_metric: Callable[[str, float], None]) -> None:
    """Warn, once for each kind of model, if the trainer scores left-padded rows at wrong positions.

    That is plain TRL with a GPT-2 (huggingface/trl issue 6800). A reward can see it, because the
    function that TRL gives it to log a metric is a method of the trainer.

    Args:
        log_metric: What the reward was called with. Any other function tells nothing.
    """
    model = getattr(getattr(log_metric, "__self__", None), "model", None)
    if model is None:
        return
    from ..models.gpt2 import counts_padding  # with torch, which a trainer has imported

    if counts_padding(model):
        _warn(type(model).__name__)


@functools.cache
def _warn(kind: str) -> None:
    logger.warning(
        "TRL's GRPOTrainer counts the padding of a %s as positions when it scores completions, so in "
        "batches with prompts of different lengths log-probs are off by several nats, and training "
        "suffers; train with `rookworld grpo` or RookWorldGRPOTrainer, or call "
        "rookworld_rlvr.models.gpt2.number_positions_from_mask(trainer.model), and the same for "
        "trainer.ref_model if there is one",
        kind,
    )
