"""What users call things: other code's names for our keys, and recipes by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError, close_matches

WORDS = Path(__file__).parents[1] / "assets" / "words.yaml"


@cache
def words() -> dict[str, Any]:
    """The file `WORDS`: `names`, our keys with their other names, and `notes` by key."""
    content: dict[str, Any] = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    return content


def named_here(name: str, known: Collection[str]) -> str:
    """A clause for a message on an unknown key: our name for it, else the known ones that are close.

    >>> named_here("lr", ["learning_rate", "lr_linear_share"])
    '; here it is learning_rate'
    >>> named_here("learning_rat", ["learning_rate", "max_steps"])
    '; did you mean learning_rate?'
    """
    for key, others in words()["names"].items():
        if name in others and key in known:
            note = words()["notes"].get(key)
            return f"; here it is {key}" + (f" ({note})" if note else "")
    return close_matches(name, known)


def shipped(folder: str) -> Path:
    """A folder that is shipped with the package: inside of it in a wheel, beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    return package / folder if (package / folder).is_dir() else package.parent / folder


def shipped_names(folder: str) -> list[str]:
    """The names of the YAML files in a shipped folder."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The recipe that ``--config`` names: a path that exists, else a packaged recipe's name.

    Raises:
        ConfigurationError: It is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = shipped_names("recipes")
    if path.name == str(path) and path.name.removesuffix(".yaml") in packaged:
        return shipped("recipes") / f"{path.name.removesuffix('.yaml')}.yaml"
    close = difflib.get_close_matches(name, [str(file) for file in path.parent.glob("*.yaml")])
    close = close or difflib.get_close_matches(path.stem, packaged)
    remedy = f"did you mean {' or '.join(close)}?" if close else "rookworld recipes lists these"
    raise ConfigurationError(
        [f"--config: {name!r} is neither a file nor a packaged recipe; {remedy}"]
    )
