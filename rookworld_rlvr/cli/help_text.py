"""What a command says of its keys: help, and our name for an unknown one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from ..common.errors import ConfigurationError, close_matches
from ..common.files import read_asset, read_keys
from ..common.terminal import width, wrapped

_FEW = 60  # keys; of more, the help describes those that are set most often


MODEL = "model_name_or_path"
"""The key of the model, in recipes as in TRL's; on a command line, ``--model`` means it too."""


@cache
def help_entries() -> dict[str, Any]:
    """The file `assets/help.yaml`: our keys' other names, notes on them, and those to show first."""
    return read_asset("help.yaml")


def named_here(name: str, known: Collection[str]) -> str:
    """A clause for a message on an unknown key: our name for it, else the known ones that are close.

    >>> named_here("lr", ["learning_rate", "lr_scheduler_type"])
    '; here it is learning_rate'
    >>> named_here("learning_rat", ["learning_rate", "max_steps"])
    '; did you mean learning_rate?'
    """
    if name == "env":  # as TRL's own parser takes it
        return "; set variables of the environment in the shell"
    for key, others in help_entries()["names"].items():
        if name in others and key in known:
            note = help_entries()["notes"].get(key)
            return f"; here it is {key}" + (f" ({note})" if note else "")
    return close_matches(name, known) or "; --help lists the keys"


def key_of(flag: str) -> str:
    """The key that is meant by a word of a command line.

    >>> key_of("--learning-rate"), key_of("--model")
    ('learning_rate', 'model_name_or_path')
    """
    key = flag.lstrip("-").replace("-", "_")
    return MODEL if key == "model" else key


def spelled(key: str) -> str:
    """A key as it is shown on a command line: the shorter name of the model's.

    >>> spelled("model_name_or_path"), spelled("learning_rate")
    ('model', 'learning_rate')
    """
    return "model" if key == MODEL else key


# --------------------------------------------------------------------------------------------------
# Help
# --------------------------------------------------------------------------------------------------
def help_text(
    name: str,
    actions: Mapping[str, argparse.Action],
    dataclass_types: Sequence[type],
    keys: Sequence[str] = (),
    recipe: Path | None = None,
) -> str:
    """The text of ``--help``: the keys that people turn, then this package's by topic.

    Args:
        name: How the command is called.
        actions: The parser's, by key.
        dataclass_types: The dataclasses of the keys; each is a topic.
        keys: Describe only these.
        recipe: The one that is used without ``--config``, if its values differ from the defaults.

    Raises:
        ConfigurationError: One of them does not exist.
    """
    if unknown := [key for key in keys if key not in actions]:
        raise ConfigurationError(
            [f"--help: unknown key {key!r}{named_here(key, actions)}" for key in unknown]
        )
    about = _about(recipe) if recipe else []
    if keys:
        return "\n".join([*(_described(actions[key]) for key in keys), *about])
    is_short = len(actions) <= _FEW
    shown = [] if is_short else [key for key in help_entries()["first"] if key in actions]
    lines = [f"{name} [--config RECIPE] [--key value ...]", *about]
    if shown:
        lines += ["", "The keys that are set most often.", *(_described(actions[k]) for k in shown)]
    for owner in chain(*(reversed(kind.__mro__) for kind in dataclass_types)):
        names = [key for key in vars(owner).get("__annotations__", ()) if key in actions]
        names = [key for key in names if key not in shown]
        if not names or owner.__module__.startswith(("trl.", "transformers.")):
            continue
        shown += names
        lines += ["", " ".join((owner.__doc__ or "").split("\n\n")[0].split())]
        lines += (
            [_described(actions[key]) for key in names] if is_short else [f"  {', '.join(names)}"]
        )
    return wrapped("\n".join([*lines, "", "--help KEY describes one key, TRL's too."]))


def _about(recipe: Path) -> list[str]:
    """That a recipe is used without ``--config``, whose values are not the defaults that are shown."""
    name = recipe.stem
    text = (
        f"Without --config it takes the recipe {name}, whose values differ from the defaults shown "
    )
    text += f"here; rookworld recipes copy {name} copies it, for you to read."
    if MODEL in read_keys(recipe):
        text += " A model of your own has these defaults, but for the recipe's rewards, data and "
        text += "precision."
    return ["", wrapped(text, 0)]


def _described(action: argparse.Action) -> str:
    """A key with its default and its description, on one line if they fit."""
    choices = f" {action.metavar}" if isinstance(action.metavar, str) else ""
    has_default = action.default not in (None, argparse.SUPPRESS, [], "")
    shown = spelled(action.dest)
    head = f"  --{shown}{choices}" + (f" ({action.default})" if has_default else "")
    text = " ".join((action.help or "").replace("%%", "%").split())
    text = re.sub(r"\[([^]]+)\]\((http[^)]+)\)", r"\1 (\2)", text)  # TRL's links are Markdown
    if shown != action.dest:
        text += f" In recipes: {action.dest}."
    line = f"{head}  {text}"
    return line if len(line) <= width() else "\n".join([head, wrapped(f"      {text}", 6)])
