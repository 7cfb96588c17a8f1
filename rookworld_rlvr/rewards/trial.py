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


def inputs_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], **of_trainer: Any
) -> dict[str, Any]:
    """What TRL passes to a reward for answers to rows; what the reward logs goes nowhere."""
    return {
        "prompts": [row["prompt"] for row in rows],
        "completions": list(texts),
        "log_metric": lambda name, value: None,
        "log_extra": lambda column, values: None,
        **{k: [row[k] for row in rows] for k in rows[0] if k not in ("prompt", "completion")},
        **of_trainer,
    }


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
    inputs = inputs_of(rows, texts, trainer_state=TrainerState())  # ids would need a tokenizer
    rewards = {}
    for func in funcs:
        with placed_errors(func.__name__):
            values = func(**inputs)
            values = runner.run(values) if inspect.iscoroutine(values) else values
        rewards[func.__name__] = numbers = list[float | None]()
        for number in checked(func.__name__, values, len(rows)):
            if isinstance(number, RookWorldError):
                raise number
            numbers.append(number)
    return rewards
