"""The one way from the core to a piece of `extras`, and from a piece to another."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "extras"


def is_here(piece: str) -> bool:
    """Whether a piece's folder was not deleted."""
    return (_FOLDER / piece / "__init__.py").is_file()


def extra(module: str) -> Any:
    """A module of a piece, such as ``report.page``; None where the piece is not here."""
    if not is_here(module.partition(".")[0]):
        return None
    return importlib.import_module(f"rookworld_rlvr.extras.{module}")
