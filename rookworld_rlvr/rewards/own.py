"""A user's own rewards: functions in TRL's signature, in a file or module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.own import load_own
from ..common.settings import record_faults, setting
from ..tasks.registry import TASKS, task_of
from ..tasks.text import message_text
from .arguments import GIVEN
from .composites import Options

_COLUMNS = {"task", "fen", "action", "history", "action_values"}
_LEFT_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OURS = ("name", "weight", "tasks")  # keys of a specification that are not options of the function


@dataclass(frozen=True, slots=True)
class _OwnSpec(Options):
    """The keys of a user's reward that are not options of the function."""

    tasks: list[str] | None = setting(
        None, "Tasks whose rows it judges; None means all.", among=TASKS, of="task", filled=True
    )


def own_faults(spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with a user's reward, one sentence each; this runs its file."""
    name = spec["name"]
    try:
        func = load_own(name, "rewards")
    except ConfigurationError as error:
        return error.faults
    if not callable(func):
        return [f"rewards: {name} must be a function, but is {func!r}"]
    ours = {key: value for key, value in spec.items() if key in _OURS}
    faults = record_faults(_OwnSpec, ours, f"rewards: {name}")
    parameters = inspect.signature(func).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        faults.append(
            f"rewards: {name} takes {inspect.signature(func)}; TRL passes all columns of the data, "
            "so write def reward(prompts, completions, **columns)"
        )
    named = {key for key, parameter in parameters.items() if parameter.kind not in _LEFT_OPEN}
    options = {*_OURS, *named} - GIVEN - _COLUMNS
    faults += [
        f"rewards: {name} has no option {key!r}{close_matches(str(key), options)}"
        for key in spec
        if key not in options
    ]
    return faults


def user_reward(spec: Mapping[str, Any], tasks: Collection[str]) -> Callable[..., Any]:
    """A user's reward with its options, called for the rows of its tasks only.

    Args:
        spec: ``{"name": ..., "weight": ..., "tasks": [...], **options}``.
        tasks: Whose rows it judges.
    """
    from .guard import listed, only_rows  # with torch

    func = load_own(spec["name"], "rewards")
    options = {key: value for key, value in spec.items() if key not in _OURS}
    asked = partial(func, **options)
    signature = inspect.signature(asked)
    name = spec["name"].rpartition(":")[2]

    def inputs_of(prompts: Sequence[Any], columns: Any) -> tuple[list[int], dict[str, Any]]:
        """The rows of its tasks, and what the function is called with for them."""
        rows = [row for row, text in enumerate(prompts) if task_of(message_text(text)) in tasks]
        inputs = only_rows(rows, len(prompts), {"prompts": prompts, **columns})
        try:
            signature.bind(**inputs)
        except TypeError as error:
            raise RookWorldError(
                f"the reward {name} cannot be called: {error}; it gets {', '.join(inputs)}"
            ) from error
        return rows, inputs

    def of_all(rows: Sequence[int], values: Any, size: int) -> list[Any]:
        by_row = dict(zip(rows, listed(name, values, len(rows)), strict=True))
        return [by_row.get(row) for row in range(size)]

    def reward(prompts: Sequence[Any], completions: Any, **columns: Any) -> list[Any]:
        rows, inputs = inputs_of(prompts, {"completions": completions, **columns})
        return of_all(rows, asked(**inputs) if rows else [], len(prompts))

    async def reward_in_time(prompts: Sequence[Any], completions: Any, **columns: Any) -> list[Any]:
        rows, inputs = inputs_of(prompts, {"completions": completions, **columns})
        return of_all(rows, await asked(**inputs) if rows else [], len(prompts))

    calls = (func, getattr(func, "__call__", None))  # noqa: B004  (an object's own)
    made = reward_in_time if any(map(inspect.iscoroutinefunction, calls)) else reward
    made.__name__ = name
    made.__doc__ = f"The user's own reward `{spec['name']}`."
    vars(made)["tasks"] = tasks
    return made
