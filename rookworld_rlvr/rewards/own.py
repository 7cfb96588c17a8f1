"""A user's own rewards: functions in TRL's signature, in a file or module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.own import load_own, place_of
from ..common.settings import record_faults, setting
from ..tasks.registry import TASKS, task_of
from ..tasks.text import message_text
from .composites import Options

# What TRL passes, with the columns of the data.
_GIVEN = {
    "prompts",
    "completions",
    "completion_ids",
    "task",
    "fen",
    "action",
    "history",
    "action_values",
}
_LEFT_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OURS = ("name", "weight", "tasks")  # keys of a specification that are not options of the function


@dataclass(frozen=True, slots=True)
class _OwnSpec(Options):
    """The keys of a user's reward that are not options of the function."""

    tasks: list[str] | None = setting(
        None, "Tasks whose rows it judges; None means all.", among=TASKS, of="task", filled=True
    )


def own_tasks(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The tasks that a user's reward judges: all, unless `tasks` names some."""
    return tuple(spec.get("tasks") or TASKS)


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
    kinds = [parameter.kind for parameter in parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        faults.append(
            f"rewards: {name} takes {inspect.signature(func)}; TRL passes all columns of the data, "
            "so write def reward(prompts, completions, **columns)"
        )
    named = {key for key, parameter in parameters.items() if parameter.kind not in _LEFT_OPEN}
    options = {*_OURS, *named} - _GIVEN
    faults += [
        f"rewards: {name} has no option {key!r}{close_matches(str(key), options)}"
        for key in spec
        if key not in options
    ]
    return faults


@contextmanager
def placed_errors(name: str) -> Iterator[None]:
    """Whatever a user's reward raises, as one message with the file and line."""
    try:
        yield
    except RookWorldError:
        raise
    except Exception as error:
        raise RookWorldError(f"the reward {name} raised {place_of(error)}") from error


def own_reward(spec: Mapping[str, Any]) -> Callable[..., Any]:
    """A user's reward with its options, called for the rows of its tasks only.

    Args:
        spec: ``{"name": ..., "weight": ..., "tasks": [...], **options}``.
    """
    func = load_own(spec["name"], "rewards")
    options = {key: value for key, value in spec.items() if key not in _OURS}
    asked = partial(func, **options)
    signature = inspect.signature(asked)
    tasks, name = own_tasks(spec), spec["name"].rpartition(":")[2]

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

    def reward(prompts: Sequence[Any], **columns: Any) -> list[Any]:
        rows, inputs = inputs_of(prompts, columns)
        return of_all(rows, asked(**inputs) if rows else [], len(prompts))

    async def reward_in_time(prompts: Sequence[Any], **columns: Any) -> list[Any]:
        rows, inputs = inputs_of(prompts, columns)
        return of_all(rows, await asked(**inputs) if rows else [], len(prompts))

    calls = (func, getattr(func, "__call__", None))  # noqa: B004  (an object's own)
    made = reward_in_time if any(map(inspect.iscoroutinefunction, calls)) else reward
    made.__name__ = name
    made.__doc__ = f"The user's own reward `{spec['name']}`."
    vars(made)["tasks"] = tasks
    return made


def only_rows(rows: Sequence[int], size: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What TRL passes for `size` completions, for some of them."""
    if len(rows) == size:
        return dict(inputs)
    chosen = {
        key: [value[row] for row in rows]
        if isinstance(value, list) and len(value) == size
        else value
        for key, value in inputs.items()
    }
    if (log := inputs.get("log_extra")) is not None:

        def log_extra(column: str, values: Sequence[Any]) -> None:
            by_row = dict(zip(rows, values, strict=True))
            log(column, [by_row.get(row) for row in range(size)])

        chosen["log_extra"] = log_extra
    return chosen


def listed(name: str, values: Any, size: int) -> Sequence[Any]:
    """What a reward returned for `size` completions, as a list of that length.

    Raises:
        RookWorldError: It is not a list, array or tensor, or it has another length.
    """
    values = values.tolist() if hasattr(values, "tolist") else values  # NumPy, PyTorch
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != size:
        said = f"{len(values)} rewards" if isinstance(values, Sequence) else "no list"
        raise RookWorldError(
            f"the reward {name} returned {said} for {size} completions; return one number or None for "
            "each"
        )
    return values


def checked(name: str, values: Any, size: int) -> list[float | RookWorldError | None]:
    """What a reward returned: for each row a number, None, or what is wrong with the value.

    Raises:
        RookWorldError: See `listed`.
    """
    return [
        RookWorldError(f"the reward {name} returned {value!r}; return finite numbers or None")
        if value is not None and not _is_finite(value)
        else value
        if value is None
        else float(value)
        for value in listed(name, values, size)
    ]


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number; numbers of NumPy and PyTorch are, texts are not."""
    try:
        return not isinstance(value, str | bytes) and math.isfinite(value)
    except Exception:  # what a user's function returns may raise anything, as a vector does
        return False
