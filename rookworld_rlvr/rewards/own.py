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
from ..tasks.text import message_text

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
    """A user's reward with its options, called for the rows of its tasks only.

    An exception, and a result that is not a list of numbers, becomes one message.

    Args:
        spec: ``{"name": ..., "weight": ..., "tasks": [...], **options}``.
    """
    func = load_own(spec["name"], "rewards")
    options = {key: value for key, value in spec.items() if key not in _OURS}
    asked = partial(func, **options) if options else func
    tasks = own_tasks(spec)
    name = spec["name"].rpartition(":")[2]

    def rows_of(prompts: Sequence[Any]) -> list[int]:
        return [row for row, prompt in enumerate(prompts) if task_of(message_text(prompt)) in tasks]

    def placed(found: Any, rows: Sequence[int], size: int) -> Rewards:
        rewards: Rewards = [None] * size
        for row, number in zip(rows, _numbers(name, found, len(rows)), strict=True):
            rewards[row] = number
        return rewards

    signature = inspect.signature(asked)

    def inputs_of(rows: Sequence[int], prompts: Sequence[Any], columns: Any) -> dict[str, Any]:
        inputs = _only(rows, len(prompts), {"prompts": prompts, **columns})
        try:
            signature.bind(**inputs)
        except TypeError as error:
            raise RookWorldError(
                f"the reward {name} cannot be called: {error}; it gets {', '.join(inputs)}"
            ) from error
        return inputs

    def failed(error: Exception) -> RookWorldError:
        return RookWorldError(f"the reward {name} raised {place_of(error)}")

    def reward(prompts: Sequence[Any], **columns: Any) -> Rewards:
        rows = rows_of(prompts)
        if not rows:
            return [None] * len(prompts)
        inputs = inputs_of(rows, prompts, columns)
        try:
            found = asked(**inputs)
        except Exception as error:  # whatever a user's function raises
            raise failed(error) from error
        return placed(found, rows, len(prompts))

    async def reward_in_time(prompts: Sequence[Any], **columns: Any) -> Rewards:
        rows = rows_of(prompts)
        if not rows:
            return [None] * len(prompts)
        inputs = inputs_of(rows, prompts, columns)
        try:
            found = await asked(**inputs)
        except Exception as error:
            raise failed(error) from error
        return placed(found, rows, len(prompts))

    calls = (func, getattr(func, "__call__", None))  # noqa: B004  (an object's own)
    made = reward_in_time if any(map(inspect.iscoroutinefunction, calls)) else reward
    made.__name__ = name
    made.__doc__ = f"The user's own reward `{spec['name']}`."
    vars(made)["tasks"] = tasks
    return made


def _only(rows: Sequence[int], size: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What TRL passes for `size` completions, for some of them."""
    if len(rows) == size:
        return dict(inputs)
    found = {
        key: [value[row] for row in rows]
        if isinstance(value, list) and len(value) == size
        else value
        for key, value in inputs.items()
    }
    if (log := inputs.get("log_extra")) is not None:

        def log_extra(column: str, values: Sequence[Any]) -> None:
            by_row = dict(zip(rows, values, strict=True))
            log(column, [by_row.get(row) for row in range(size)])

        found["log_extra"] = log_extra
    return found


def listed(name: str, found: Any, size: int) -> Sequence[Any]:
    """What a reward returned for `size` completions, as a list of that length.

    Raises:
        RookWorldError: It is not a list, array or tensor, or it has another length.
    """
    found = found.tolist() if hasattr(found, "tolist") else found  # NumPy, PyTorch
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != size:
        said = f"{len(found)} rewards" if isinstance(found, Sequence) else "no list"
        raise RookWorldError(
            f"the reward {name} returned {said} for {size} completions; return one number or None for "
            "each"
        )
    return found


def _numbers(name: str, found: Any, size: int) -> Rewards:
    try:
        numbers = [
            None if number is None else float(number) for number in listed(name, found, size)
        ]
    except (TypeError, ValueError) as error:
        if isinstance(error, RookWorldError):
            raise
        raise RookWorldError(
            f"the reward {name} returned something that is not a number: {error}"
        ) from error
    if any(number is not None and math.isinf(number) for number in numbers):
        raise RookWorldError(
            f"the reward {name} returned an infinite number; return finite numbers or None"
        )
    return numbers
