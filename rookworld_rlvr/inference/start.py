"""A model for a command: loaded fast, without a word on stderr."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ..common.errors import RookWorldError

if TYPE_CHECKING:
    from .model import RookWorld


def start(name: str) -> RookWorld:
    """Load a model; torch comes with it, and the seconds that bad input need not wait for.

    Args:
        name: See `RookWorld.from_pretrained`.

    Raises:
        RookWorldError: There is no such model, or it cannot be had.
    """
    gc.disable()  # it would take a sixth of the time, and find nothing: modules stay
    try:
        from transformers.utils import logging

        from ..models.loading import check_model_name
        from .model import RookWorld
    finally:
        gc.enable()
    if faults := check_model_name(name, "--model"):  # before the Hub is asked, again and again
        raise RookWorldError("; ".join(faults))
    logging.disable_progress_bar()  # of weights; downloads keep theirs
    logging.set_verbosity_error()
    return RookWorld.from_pretrained(name)
