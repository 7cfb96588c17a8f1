"""What an entry of `rewards` says of a judge, checked without loading anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

from ..common.settings import record_faults, setting
from ..tasks.registry import TASKS

_NAME = re.compile(r"judge(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A judge as a reward."""

    name: str = setting(MISSING, "judge or judge_<suffix>, the reward's name on dashboards.")
    model: str = setting(
        MISSING,
        "Folder or Hub id of a sequence classifier with one score.",
        filled=True,
        remedy="give a folder (recipes/train_judge.py) or Hub id",
    )
    tokenizer: str | None = setting(
        None,
        "Where its tokenizer comes from; None takes the model's.",
        filled=True,
        remedy="give a folder or Hub id",
    )
    batch_size: int = setting(64, "Texts scored in one forward.", least=1)
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of its weights and forwards, whatever the policy's."
    )
    scale: Literal["raw", "sigmoid", "zscore"] = setting(
        "raw",
        "What the reward is: raw the score, sigmoid of it, zscore by mean and deviation of the last "
        "window scores.",
    )
    window: int = setting(
        1024,
        "Scores of all processes that zscore looks back over, this batch's among them.",
        least=2,
    )
    tasks: tuple[str, ...] = setting(
        lambda: tuple(TASKS),
        "Whose rows it judges; the others get None.",
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
    """The record of an entry that `judge_faults` has found nothing wrong with."""
    given = {key: value for key, value in spec.items() if key != "weight"}
    return JudgeSpec(**{**given, "tasks": tuple(given.get("tasks", TASKS))})


def judge_faults(spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with an entry's options, one sentence each; the weight is not looked at."""
    where = f"rewards: {spec['name']}"
    options = {key: value for key, value in spec.items() if key != "weight"}
    faults = record_faults(JudgeSpec, options, where)
    if "window" in spec and spec.get("scale") != "zscore":
        faults.append(f"{where}: window is for scale: zscore; leave it out")
    return faults
