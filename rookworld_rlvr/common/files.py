"""Files that a script is told to write: tried before the work, written after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from .errors import RookWorldError


def check_writable(path: Path) -> None:
    """Find out before an hour of work; makes the folder, leaves no file.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON for people and programs.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RookWorldError:
    return RookWorldError(
        f"output_file: cannot write {str(path)!r} ({error.strerror}); give another path"
    )


def asset_path(name: str) -> str:
    """Path of a packaged file or folder."""
    return str(Path(str(files("rookworld_rlvr"))) / "assets" / name)


def read_asset(name: str) -> Any:
    """Content of a packaged YAML file."""
    return yaml.safe_load(Path(asset_path(name)).read_text(encoding="utf-8"))


def is_hub_id(name: str) -> bool:
    """Whether a name has the form ``owner/name``.

    >>> is_hub_id("jrahn/RookWorld-LM-124M")
    True
    """
    return name.count("/") == 1 and all(name.split("/"))
