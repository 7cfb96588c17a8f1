"""What the names of models and data sets stand for."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def asset_path(name: str) -> str:
    """Path of a packaged file or folder."""
    return str(Path(str(files("rookworld_rlvr"))) / "assets" / name)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form ``owner/name``.

    >>> is_hub_id("jrahn/RookWorld-LM-124M")
    True
    """
    return name.count("/") == 1 and all(name.split("/"))
