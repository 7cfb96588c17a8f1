"""What an entry of `rewards` says of a judge, checked without loading anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..common.errors import close_matches
from ..tasks.types import TASKS, Task

SCALES = ("raw", "sigmoid", "zscore")


DTYPES = ("float32", "bfloat16", "float16")


_NAME = re.compile(r"judge(_[a-z0-9]+)*")


_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A judge as a reward.

    Args:
        name: ``judge`` or ``judge_<suffix>``, the reward's name on dashboards.
        model: Folder or Hub id of a sequence classifier with one score.
        tokenizer: Where its tokenizer comes from; None takes `model`.
        batch_size: Texts scored in one forward.
        dtype: Precision of its weights and forwards, whatever the policy's.
        scale: What the reward is: ``raw`` the score, ``sigmoid`` of it, ``zscore`` by mean and
            deviation of the last `window` scores.
        window: Scores of all processes that ``zscore`` looks back over, this batch's among them.
        tasks: Whose rows it judges; the others get None.
    """

    name: str
    model: str
    tokenizer: str | None = None
    batch_size: int = 64
    dtype: str = "float32"
    scale: str = "raw"
    window: int = _WINDOW
    tasks: tuple[Task, ...] = TASKS


OPTIONS = tuple(item.name for item in fields(JudgeSpec) if item.name != "name")


def is_judge(name: Any) -> bool:
    """Whether a reward's name is a judge's.

    >>> is_judge("judge"), is_judge("judge_large"), is_judge("judgement")
    (True, True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def judge_spec(spec: Mapping[str, Any]) -> JudgeSpec:
    """The record of an entry that `judge_faults` has found nothing wrong with."""
    given = {key: value for key, value in spec.items() if key != "weight"}
    return JudgeSpec(**{**given, "tasks": tuple(given.get("tasks", TASKS))})


def judge_faults(spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with an entry's options, one sentence each; the weight is not looked at."""
    name = spec["name"]
    known = ("name", "weight", *OPTIONS)
    faults = [
        f"rewards: {name} has no option {key!r}{close_matches(str(key), known)}"
        for key in spec
        if key not in known
    ]
    if "model" not in spec:
        faults.append(
            f"rewards: {name} has no model; give a folder (recipes/train_judge.py) or Hub id"
        )
    faults += [
        f"rewards: {key} of {name} is {spec[key]!r}, no folder or Hub id"
        for key in ("model", "tokenizer")
        if key in spec and (not isinstance(spec[key], str) or not spec[key])
    ]
    faults += [
        f"rewards: {key} of {name} is {spec[key]!r}, no whole number from {least}"
        for key, least in (("batch_size", 1), ("window", 2))
        if key in spec and not _is_whole(spec[key], least)
    ]
    faults += [
        f"rewards: {key} of {name} is {spec[key]!r}{close_matches(str(spec[key]), allowed)}"
        for key, allowed in (("dtype", DTYPES), ("scale", SCALES))
        if key in spec and spec[key] not in allowed
    ]
    if "window" in spec and spec.get("scale") != "zscore":
        faults.append(f"rewards: window of {name} is for scale: zscore; leave it out")
    return faults + _task_faults(name, spec.get("tasks", TASKS))


def _task_faults(name: str, tasks: Any) -> list[str]:
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not tasks:
        return [f"rewards: tasks of {name} is {tasks!r}, no list of tasks ({', '.join(TASKS)})"]
    return [
        f"rewards: tasks of {name} names {task!r}, no task{close_matches(str(task), TASKS)}"
        for task in tasks
        if task not in TASKS
    ]


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
