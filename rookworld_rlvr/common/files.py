"""Files that a script writes: checked before the work starts, written when it is done."""

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


def check_writable(path: Path, key: str = "output_file") -> None:
    """Check that a file can be written, before an hour of work. The folder is made, the file is not.

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
        raise _unwritable(path, error, key) from error


def folder_faults(folder: str, name: str) -> list[str]:
    """Why a folder cannot be written to, found by trying; empty if it can. Nothing is left behind.

    Args:
        folder: If it does not exist, it is made for the check and removed again.
        name: The configuration's key that names the folder.
    """
    path, made = Path(folder), []
    if os.environ.get("RANK", "0") != "0":  # the main process checks for all
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
    """The message for a folder that cannot be written to; `name` is the key that gave it."""
    reason = error.strerror or error
    return f"{name}: cannot write to {str(folder)!r} ({reason}); give another folder"


def replace_text(path: Path, text: str) -> None:
    """Write a file in one piece, so that a kill never leaves it half written."""
    incomplete = path.with_name(f"{path.name}.incomplete")
    incomplete.write_text(text, encoding="utf-8")
    incomplete.replace(path)


def open_to_others(path: Path) -> None:
    """Give a file the permissions that the user's umask asks for, as if `open` had made it.

    Temporary files are their owner's alone, and safetensors 0.8 writes through one (its issue 782).
    """
    umask = os.umask(0o077)  # it can only be read by being set
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, readable by people and programs.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError, key: str = "output_file") -> RookWorldError:
    return RookWorldError(
        f"{key}: cannot write {str(path)!r} ({error.strerror}); give another path"
    )


def cache_folder() -> Path:
    """The cache: ``$XDG_CACHE_HOME/rookworld-rlvr``, by default ``~/.cache/rookworld-rlvr``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rookworld-rlvr"


def asset_path(name: str) -> str:
    """Path of a packaged file or folder."""
    return str(Path(str(files("rookworld_rlvr"))) / "assets" / name)


def read_asset(name: str) -> Any:
    """Read a packaged YAML file."""
    return yaml.safe_load(Path(asset_path(name)).read_text(encoding="utf-8"))


def is_hub_id(name: str) -> bool:
    """Whether a name has the form ``owner/name`` and does not look like a path on this machine.

    >>> is_hub_id("jrahn/RookWorld-LM-124M"), is_hub_id("runs/grpo_nano"), is_hub_id("./nano")
    (True, False, False)
    """
    owner, *rest = name.split("/")
    is_path = owner in ("runs", "recipes", "~", ".", "..") or Path(owner).is_dir()
    return len(rest) == 1 and bool(owner and rest[0]) and not is_path
