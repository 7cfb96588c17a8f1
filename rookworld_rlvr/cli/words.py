"""What users call things: other code's names for our keys, and recipes by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import close_matches
from ..common.shipped import shipped_names
from ..models.loading import PACKAGED_MODEL

NEUTRAL = ("rewards", "dataset_name", "dtype", "bf16")
"""The keys of the packaged model's recipe that serve any other model too."""


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


def our_key(name: str, known: Collection[str]) -> str | None:
    """The key that a word means, whatever its case: one of ours, or another code's name for one.

    >>> our_key("K-SAMPLES", ["num_generations"]), our_key("rows.txt", ["max_rows"])
    ('num_generations', None)
    """
    word = name.lower().replace("-", "_")
    ours = {other: key for key, others in words()["names"].items() for other in others}
    found = ours.get(word, word)
    return found if found in known else None


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
    model = str(given.get("model_name_or_path", PACKAGED_MODEL))
    data = str(given.get("dataset_name", ""))
    is_packaged = model == PACKAGED_MODEL and not {"/", "."} & set(
        data
    )  # else a file, or on the Hub
    makes_new = "new_model" in recipe  # what the packaged model was made by
    if is_packaged and not (makes_new and "model_name_or_path" in given):
        return recipe
    path = Path(data) if model == PACKAGED_MODEL else Path(model).absolute()
    name = path.stem if model == PACKAGED_MODEL else path.name
    if name in shipped_names("recipes") or path == Path("runs", name).absolute():
        name += f"-{Path(recipe['output_dir']).name.partition('_')[0]}"
    if model != PACKAGED_MODEL or makes_new:
        recipe = {key: recipe[key] for key in NEUTRAL if key in recipe}
    if makes_new:
        recipe["model_name_or_path"] = PACKAGED_MODEL
    return {**recipe, "output_dir": f"runs/{name}"}
