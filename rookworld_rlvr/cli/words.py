"""The words of a command line: options, other code's names for our keys, and the recipe in use."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError, close_matches
from ..common.shipped import find_recipe
from ..models.loading import PACKAGED_MODEL

NEUTRAL = ("rewards", "dataset_name", "dtype", "bf16")
"""The keys of the packaged model's recipe that serve any other model too."""


WORDS = Path(__file__).parents[1] / "assets" / "words.yaml"


def options(line: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The keys of a command line with the words after each, the first with what comes before any.

    >>> options(["--learning-rate=1e-5", "--tasks", "policy", "environment"])[1:]
    [('learning_rate', ['1e-5']), ('tasks', ['policy', 'environment'])]
    """
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in line:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            found.append((flag[2:].replace("-", "_"), [value] if equals else []))
        else:
            found[-1][1].append(word)
    return found


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


def usual(recipe: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What applies of the usual recipe, which is used without ``--config``.

    Its learning rate and lengths suit the packaged model only, so that any other one is trained with
    the defaults. A recipe that makes a new model serves nothing else. A model or data set of one's own
    has a folder of its own.

    Args:
        recipe: The keys of the usual recipe.
        given: Those of the command line.
    """
    if not {"model_name_or_path", "new_model"} & recipe.keys():
        return recipe
    model, data = given.get("model_name_or_path"), str(given.get("dataset_name", ""))
    has_other_model = model not in (None, PACKAGED_MODEL)
    has_own_data = bool({"/", "."} & set(data))  # a file, or on the Hub
    makes_new = "new_model" in recipe
    if not (has_other_model or has_own_data or (makes_new and model)):
        return recipe
    name = Path(str(model)).name if has_other_model else Path(data).stem or PACKAGED_MODEL
    folder = f"runs/{Path(recipe['output_dir']).name.partition('_')[0]}-{name}"
    if has_other_model or makes_new:
        recipe = {key: recipe[key] for key in NEUTRAL if key in recipe}
        recipe["model_name_or_path"] = PACKAGED_MODEL
    return {**recipe, "output_dir": folder}


# --------------------------------------------------------------------------------------------------
# Before torch is loaded, which takes seconds
# --------------------------------------------------------------------------------------------------
def check_keys(given: Mapping[str, Sequence[str]]) -> None:
    """Refuse keys that no dataclass declares, by the text of the files that declare any.

    Those of the recipe that is given are looked at, too.

    Raises:
        ConfigurationError: With these keys.
    """
    libraries = [Path(find_spec(name).origin).parent for name in ("trl", "transformers")]  # type: ignore
    package, recipes = Path(__file__).parents[1], find_recipe("grpo_nano").parent
    configs = libraries[0].glob("trainer/*_config.py"), [libraries[1] / "training_args.py"]
    files = chain(package.rglob("*.py"), recipes.glob("*.py"), *configs)
    text = "\n".join(file.read_text("utf-8") for file in files)
    known = {"config", "env", *re.findall(r"^    ([a-z]\w*): .*=", text, re.M)}
    file = find_recipe(given["config"][-1]) if given.get("config") else None
    where = dict.fromkeys(_content(file) if file else (), str(file))
    where |= dict.fromkeys(given, "command line")
    if unknown := [key for key in where if str(key).removeprefix("no_") not in known]:
        raise ConfigurationError(
            [f"{where[key]}: unknown key {key!r}{named_here(str(key), known)}" for key in unknown]
        )


def _content(file: Path) -> dict[str, Any]:
    """A recipe's keys; none if it cannot be read, of which the parser says more."""
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def first_line(script: Path, given: Mapping[str, Sequence[str]]) -> str:
    """The recipe that a command is about to use, and its folder; empty if it has no usual recipe."""
    default = re.search(r"^RECIPE = .*\"(.*\.yaml)\"", script.read_text("utf-8"), re.M)
    if default is None:
        return ""
    line = {key: values[-1] for key, values in given.items() if values}
    file = find_recipe(line["config"]) if "config" in line else script.with_name(default[1])
    content = _content(file)
    recipe = content if "config" in line else usual(content, line)
    what = f"recipe {file}" if "config" in line else f"recipe {file.stem}, as no --config is given"
    if recipe.get("learning_rate") != content.get("learning_rate"):
        model = line.get("model_name_or_path", recipe.get("model_name_or_path"))
        what = f"no --config is given, so {model} is trained with TRL's defaults"
    name = recipe.get("name", "sweep") if script.stem == "sweep" else file.stem
    folder = line.get("output_dir") or recipe.get("output_dir", f"runs/{name}")
    return what if script.stem == "diagnose" else f"{what}; output in {folder}"
