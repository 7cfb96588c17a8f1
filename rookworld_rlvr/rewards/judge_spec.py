"""A judge's entry in `rewards`, checked without loading anything."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..common.settings import setting
from ..tasks.registry import TASKS
from .composites import Options

_NAME = re.compile(r"judge(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class JudgeSpec(Options):
    """A judge as a reward."""

    model: str = setting(
        "",
        "Folder (rookworld judge makes one) or Hub id of a sequence classifier with one score.",
        filled=True,
    )
    batch_size: int = setting(64, "Texts scored in one forward pass.", least=1)
    scale: Literal["raw", "sigmoid"] = setting(
        "raw", "How a score becomes the reward: raw leaves it as it is; sigmoid maps it to [0, 1]."
    )
    tasks: tuple[str, ...] = setting(
        lambda: tuple(TASKS),
        "Tasks whose rows it judges; other rows get None.",
        among=TASKS,
        of="task",
        filled=True,
    )


def is_judge(name: Any) -> bool:
    """Whether a reward's name is a judge's.

    >>> is_judge("judge"), is_judge("judge_large"), is_judge("judgement")
    (True, True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def judge_spec(spec: Mapping[str, Any]) -> JudgeSpec:
    """An entry as a record; nothing must be wrong with it."""
    return JudgeSpec(**{**spec, "tasks": tuple(spec.get("tasks", TASKS))})


def judges_of(reward_funcs: Iterable[Any]) -> dict[str, Any]:
    """The `judge.JudgeReward`s among a trainer's reward functions, by name; wrapped ones too."""
    unwrapped = (inspect.unwrap(func) for func in reward_funcs)
    return {func.__name__: func for func in unwrapped if getattr(func, "is_judge", False)}
