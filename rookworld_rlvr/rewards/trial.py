"""What rewards give for answers outside of training: in a dry run, and on the web page."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerState

from ..common.errors import RookWorldError
from .guard import checked, placed_errors
from .registry import RewardFunc


def rewards_of(
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    funcs: Sequence[RewardFunc],
    runner: asyncio.Runner,
) -> dict[str, list[float | None]]:
    """What rewards give for a batch of answers, by name; None where one does not apply.

    Args:
        rows: The rows that are answered, with their columns.
        texts: An answer to each.
        funcs: The rewards.
        runner: Runs those that are coroutines.

    Raises:
        RookWorldError: A reward failed; it names the file and line.
    """
    columns = {
        key: [row[key] for row in rows] for key in rows[0] if key not in ("prompt", "completion")
    }
    of_trainer = {  # what TRL passes in training; `completion_ids` would need a tokenizer
        "trainer_state": TrainerState(),
        "log_metric": lambda name, value: None,
        "log_extra": lambda column, values: None,
    }
    rewards = {}
    for func in funcs:
        with placed_errors(func.__name__):
            values = func(
                prompts=[row["prompt"] for row in rows],
                completions=list(texts),
                **columns,
                **of_trainer,
            )
            values = runner.run(values) if inspect.iscoroutine(values) else values
        rewards[func.__name__] = numbers = list[float | None]()
        for number in checked(func.__name__, values, len(rows)):
            if isinstance(number, RookWorldError):
                raise number
            numbers.append(number)
    return rewards
