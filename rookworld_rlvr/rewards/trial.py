"""What rewards give for answers outside of training: held out, in a dry run, on the web page."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerState

from ..common.errors import RookWorldError
from .guard import checked, placed_errors
from .registry import RewardFunc

if TYPE_CHECKING:
    from trl import GRPOTrainer


def inputs_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], **of_trainer: Any
) -> dict[str, Any]:
    """What TRL passes to a reward for answers to rows; what the reward logs goes nowhere.

    As with TRL, the completion of a chat is a list of one message.
    """
    return {
        "prompts": [row["prompt"] for row in rows],
        "completions": [
            text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
            for row, text in zip(rows, texts, strict=True)
        ],
        "log_metric": lambda name, value: None,
        "log_extra": lambda column, values: None,
        **{k: [row[k] for row in rows] for k in rows[0] if k not in ("prompt", "completion")},
        **of_trainer,
    }


def score(
    trainer: GRPOTrainer,
    func: Callable[..., Any],
    answered: Sequence[tuple[Mapping[str, Any], str]],
    progress: Callable[[int], object],
) -> list[float | None]:
    """A reward's numbers for rows and answers to them, on this process; nothing of it is logged."""
    numbers: list[float | None] = []
    size = trainer.args.per_device_eval_batch_size
    for batch in (answered[first : first + size] for first in range(0, len(answered), size)):
        texts = [text for _, text in batch]
        ids = trainer.processing_class(text=texts)["input_ids"]
        rows = [row for row, _ in batch]
        found = func(**inputs_of(rows, texts, completion_ids=ids, trainer_state=trainer.state))
        if inspect.iscoroutine(found):
            found = asyncio.run_coroutine_threadsafe(found, trainer.async_loop).result()
        numbers += found
        progress(len(batch))
    return numbers


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
