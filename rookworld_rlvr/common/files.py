"""Files that a script is told to write: tried before the work, written after it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
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


def folder_faults(folder: str, name: str) -> list[str]:
    """What keeps a folder from being written to, found by trying; nothing is left behind.

    Args:
        folder: Made where it is not there, and taken away again.
        name: The key that gave it.
    """
    path, made = Path(folder), []
    if os.environ.get("RANK", "0") != "0":  # several processes would be in each other's way
        return []
    try:
        for parent in (*reversed(path.parents), path):
            if not parent.exists():
                parent.mkdir()
                made.append(parent)
        TemporaryFile(dir=path).close()
    except OSError as error:
        return [unwritable(name, path, error)]
    finally:
        for parent in reversed(made):
            parent.rmdir()
    return []


def unwritable(name: str, folder: Path, error: OSError) -> str:
    """The sentence for a folder, given by a key, that cannot be written to."""
    reason = error.strerror or error
    return f"{name}: cannot write to {str(folder)!r} ({reason}); give another folder"


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


def cache_folder() -> Path:
    """Where what can be made again is kept: ``$XDG_CACHE_HOME/rookworld-rlvr``, else in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rookworld-rlvr"


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
