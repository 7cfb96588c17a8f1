"""A user's own rewards: functions in TRL's signature, in a file or module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.own import load_own, place_of
from ..tasks.registry import TASKS, task_of

_GIVEN = ("prompts", "completions")  # by TRL, with the columns of the data


_OURS = ("name", "weight", "tasks")  # keys of a specification that are not options of the function


Rewards = list[float | None]


def own_tasks(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The tasks that a user's reward judges: all, unless `tasks` names some."""
    return tuple(spec.get("tasks") or TASKS)


def own_faults(spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with a user's reward, one sentence each; this runs its file."""
    name, tasks = spec["name"], spec.get("tasks")
    try:
        func = load_own(name, "rewards")
    except ConfigurationError as error:
        return error.faults
    if not callable(func):
        return [f"rewards: {name} must be a function, but is {func!r}"]
    are_names = isinstance(tasks, list) and all(isinstance(task, str) for task in tasks)
    if tasks is not None and not (tasks and are_names):
        return [f"rewards: tasks of {name} must be a list of tasks, but is {tasks!r}"]
    faults = [
        f"rewards: tasks of {name}: {task!r} is not a task{close_matches(str(task), TASKS)}"
        for task in tasks or ()
        if task not in TASKS
    ]
    try:
        parameters = inspect.signature(func).parameters
    except ValueError:  # a function that is written in C
        return faults
    kinds = [parameter.kind for parameter in parameters.values()]
    misses = [given for given in _GIVEN if given not in parameters]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        faults.append(
            f"rewards: {name} takes {inspect.signature(func)}; TRL passes all columns of the data, "
            "so write def reward(prompts, completions, **columns)"
        )
    elif len(misses) == len(_GIVEN):
        faults.append(
            f"rewards: {name} takes neither prompts nor completions; add one of them as a parameter"
        )
    faults += [
        f"rewards: {name} has no option {key!r}{close_matches(str(key), parameters)}"
        for key in spec
        if key not in _OURS and key not in parameters
    ]
    return faults


def own_reward(spec: Mapping[str, Any]) -> Callable[..., Rewards | Awaitable[Rewards]]:
    """A user's reward with its options, for the rows of its tasks.

    An exception, and a result that is not a list of numbers, becomes one message.

    Args:
        spec: ``{"name": ..., "weight": ..., "tasks": [...], **options}``.
    """
    func = load_own(spec["name"], "rewards")
    options = {key: value for key, value in spec.items() if key not in _OURS}
    asked = partial(func, **options) if options else func
    tasks = own_tasks(spec)
    name = spec["name"].rpartition(":")[2]

    def checked(prompts: Sequence[str], rewards: Any) -> Rewards:
        rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards  # NumPy, PyTorch
        found = list(rewards) if isinstance(rewards, Sequence) else None
        if found is None or len(found) != len(prompts):
            said = "no list" if found is None else f"{len(found)} rewards"
            raise RookWorldError(
                f"the reward {name} returned {said} for {len(prompts)} completions; return one number "
                "or None for each"
            )
        try:
            numbers = [None if number is None else float(number) for number in found]
        except (TypeError, ValueError) as error:
            raise RookWorldError(
                f"the reward {name} returned something that is not a number: {error}"
            ) from error
        if any(number is not None and math.isinf(number) for number in numbers):
            raise RookWorldError(
                f"the reward {name} returned an infinite number; return finite numbers or None"
            )
        mine = (task_of(prompt) in tasks for prompt in prompts)
        return [number if its else None for number, its in zip(numbers, mine, strict=True)]

    def failed(error: Exception) -> RookWorldError:
        return RookWorldError(f"the reward {name} raised {place_of(error)}")

    def reward(prompts: Sequence[str], **columns: Any) -> Rewards:
        try:
            rewards = asked(prompts=prompts, **columns)
        except Exception as error:  # whatever a user's function raises
            raise failed(error) from error
        return checked(prompts, rewards)

    async def reward_in_time(prompts: Sequence[str], **columns: Any) -> Rewards:
        try:
            rewards = await asked(prompts=prompts, **columns)
        except Exception as error:
            raise failed(error) from error
        return checked(prompts, rewards)

    calls = (func, getattr(func, "__call__", None))  # noqa: B004  (an object's own)
    found = reward_in_time if any(map(inspect.iscoroutinefunction, calls)) else reward
    found.__name__ = name
    found.__doc__ = f"The user's own reward `{spec['name']}`."
    vars(found)["tasks"] = tasks
    return found
