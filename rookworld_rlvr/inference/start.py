"""Load a model for a command: fast, and without output on stderr."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ..common.errors import RookWorldError
from ..models.loading import check_model_name

if TYPE_CHECKING:
    from .model import RookWorld


def start(name: str) -> RookWorld:
    """Load a model, and torch with it; this takes seconds, so check the input first.

    Args:
        name: See `RookWorld.from_pretrained`.

    Raises:
        RookWorldError: There is no such model, or it could not be loaded.
    """
    if faults := check_model_name(name, "--model"):  # before the Hub is asked, with retries
        raise RookWorldError("; ".join(faults))
    gc.disable()  # it would take a sixth of the time and free nothing: modules stay
    try:
        from transformers.utils import logging

        from .model import RookWorld
    finally:
        gc.enable()
    logging.disable_progress_bar()  # for weights; downloads keep theirs
    logging.set_verbosity_error()
    return RookWorld.from_pretrained(name)
