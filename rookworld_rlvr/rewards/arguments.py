"""What a reward function is called with: what TRL gives, the data's columns, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..common.errors import ConfigurationError, close_matches
from ..common.settings import record_faults
from .composites import Options

GIVEN = {"prompts", "completions", "completion_ids", "environments", "trainer_state"}
GIVEN |= {"log_extra", "log_metric"}
"""What TRL passes beside the data's columns."""

_OF_SPECS = {item.name for item in fields(Options)}  # keys of a recipe, and not of the function


def call_options(
    name: str, kind: type[Options], keywords: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """The options among the keywords of a reward's call; the other keywords are columns.

    Args:
        name: The reward's.
        kind: What an entry for it may have.
        keywords: What it was called with, except for its own parameters.
        size: The number of completions; a column has a value for each of them.

    Raises:
        ConfigurationError: An option that the reward does not have, or a bad value of one; a list that
            is too short or too long for a column.
    """
    where = f"rewards: {name}"
    known = {item.name for item in fields(kind)} - _OF_SPECS
    options = {key: value for key, value in keywords.items() if key in known}
    faults = record_faults(kind, {"name": name, **options}, where)
    for key, value in keywords.items():
        if key not in known | GIVEN and _length(value) != size:
            faults.append(f"{where}: {_fault(key, value, known, size)}")
    if faults:
        raise ConfigurationError(faults)
    return options


def _length(value: Any) -> int | None:
    """The length of what may be a column; None for anything else."""
    if isinstance(value, str | bytes | Mapping):
        return None
    try:
        return len(value)
    except TypeError:  # a number, or an array without dimensions
        return None


def _fault(key: str, value: Any, known: set[str], size: int) -> str:
    if key == "weight":
        return f"weight: {value!r} is for the trainer; give it to GRPOConfig as reward_weights"
    if (length := _length(value)) is not None:
        return f"{key}: {length} values for {size} completions; give one for each"
    has = close_matches(key, known) if known else "; it has no options"
    return f"no option {key!r} (given: {value!r}){has}"
