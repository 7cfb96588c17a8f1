"""A model for a command: loaded fast, without a word on stderr."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

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

        from .model import RookWorld
    finally:
        gc.enable()
    logging.disable_progress_bar()  # of weights; downloads keep theirs
    logging.set_verbosity_error()
    return RookWorld.from_pretrained(name)
