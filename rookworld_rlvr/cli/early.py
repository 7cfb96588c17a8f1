"""What a command says before torch is loaded: faults that show by then, and the recipe in use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError
from ..common.shipped import find_recipe, shipped
from ..evaluation.registry import ORACLE, RANDOM_MOVER
from ..models.loading import check_model_name
from .words import NEUTRAL, named_here, usual

_DECLARED = re.compile(
    r"^(?:class (\w+)(?:\(([^)]*)\))?:|(?:def|GROUPS) |    ([a-z]\w*): .*=)", re.M
)


Given = Mapping[str, Sequence[str]]


def options(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each key of a command line.

    >>> options(["--learning-rate=1e-5", "--tasks", "policy", "environment"])
    {'learning_rate': ['1e-5'], 'tasks': ['policy', 'environment']}
    """
    found: dict[str, list[str]] = {}
    key = ""
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            key = flag[2:].replace("-", "_")
            found.setdefault(key, []).extend([value] if equals else [])
        elif key:
            found[key].append(word)
    return found


def check_early(script: Path, given: Given) -> None:
    """Refuse a recipe or a model's folder that is not there, and keys that do not exist.

    Raises:
        ConfigurationError: With these faults. Others show only when the dataclasses are made.
    """
    file = find_recipe(given["config"][0]) if given.get("config") else None
    known = {*known_keys(script), "env", "config"}
    faults = [
        f"{file}: unknown key {key!r}{named_here(str(key), known)}"
        for key in _content(file)
        if str(key) not in known
    ]
    command = file.stem.partition("_")[0] if file and file.parent == shipped("recipes") else ""
    if faults and command not in ("", script.stem):
        faults = [f"--config: {file} is a recipe of another command: rookworld {command}"]
    faults += [
        f"command line: unknown option --{key}{named_here(key, known)}"
        for key in given
        if key not in known and key.removeprefix("no_") not in known
    ]
    faults += [
        f"command line: {word!r} does not belong to any key; write --{last} {value}"
        f"{named_here(last, known) if last not in known else ''}"
        for word in given.get("config", ())[1:]
        for name, _, value in [word.partition("=")]
        for last in [name.split(".")[-1]]
    ]
    own = (ORACLE, RANDOM_MOVER) if script.stem == "evaluate" else ()
    for name in given.get("model_name_or_path", ()):
        faults += [] if name in own else check_model_name(name)
    if faults:
        raise ConfigurationError(faults)


def known_keys(script: Path) -> set[str]:
    """The keys of a script, from the text of the dataclasses in its `GROUPS`: importing these takes ten
    seconds. There may be a few too many.
    """
    libraries = [Path(find_spec(name).origin).parent for name in ("trl", "transformers")]  # type: ignore
    files = chain(
        (script, libraries[1] / "training_args.py"),
        libraries[0].glob("trainer/*_config.py"),
        Path(__file__).parents[1].rglob("*.py"),
    )
    declared: dict[str, set[str]] = {}  # by class: its keys, and its bases, which begin upper-case
    for file in files:
        name = ""
        for kind, bases, key in _DECLARED.findall(file.read_text("utf-8")):
            name = name if key else kind
            declared.setdefault(name, set()).update([key] if key else re.findall(r"\w+", bases))
    groups = re.search(r"^GROUPS = \[(.*?)\]", script.read_text("utf-8"), re.M | re.S)
    found = set(re.findall(r"\w+", groups[1] if groups else ""))
    while more := set().union(*(declared.get(name, ()) for name in found)) - found:
        found |= more
    return {name for name in found if name[0].islower()}  # the others are classes


def first_line(script: Path, given: Given) -> str:
    """The recipe that a command is about to use, and its folder; empty if it has no usual recipe."""
    default = re.search(r"^RECIPE = .*\"(.*)\.yaml\"", script.read_text("utf-8"), re.M)
    if default is None:
        return ""
    line = {key: values[-1] for key, values in given.items() if values}
    if "config" in line:
        file = find_recipe(line["config"])
        content = _content(file)
        name = content.get("name", "sweep") if script.stem == "sweep" else file.stem
        recipe, what = {"output_dir": f"runs/{name}", **content}, f"recipe {file}"
    else:
        packaged = _content(script.with_name(f"{default[1]}.yaml"))
        recipe, what = usual(packaged, line), f"recipe {default[1]}, as no --config is given"
        if "learning_rate" in packaged.keys() - recipe.keys():
            kept = ", ".join(key for key in NEUTRAL if key in recipe.keys() - line.keys())
            model = line.get("model_name_or_path", recipe.get("model_name_or_path"))
            what = f"no --config is given, so {model} is trained with TRL's defaults"
            what += f"; of the recipe {default[1]} only {kept}" if kept else ""
    folder = {**recipe, **line}.get("output_dir")
    has_run = folder and script.stem != "diagnose"  # which writes to a folder of its own
    return f"{what}; output in {folder}" if has_run else what


def _content(file: Path | None) -> dict[str, Any]:
    """A recipe's keys; none if it cannot be read, of which the parser says more."""
    try:
        content = yaml.safe_load(file.read_text("utf-8")) if file else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
