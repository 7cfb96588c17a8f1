"""Which completions are right by their tasks' headline metrics, and right answers to learn from."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ...engine.truth import PolicyTruth, policy_values
from ...tasks.registry import TASKS, is_right, task_of


def right(
    rows: Sequence[Mapping[str, Any]], completions: Sequence[str], truth: PolicyTruth | None = None
) -> torch.Tensor:
    """Whether each of `B` completions is right: ``(B,)`` of 1 and 0, nan if the truth is not known.

    Args:
        rows: The row of each completion, with `prompt` and, for tasks that need values,
            `action_values`.
        completions: What the policy wrote.
        truth: Where values of moves come from; None takes the column `action_values`.
    """
    prompts = [row["prompt"] for row in rows]
    column = [row.get("action_values") for row in rows]
    values = policy_values(truth or PolicyTruth(), prompts, column, [True] * len(prompts))
    found = map(is_right, prompts, completions, values)
    return torch.tensor([torch.nan if one is None else float(one) for one in found])


def right_answer(row: Mapping[str, Any], seed: str, truth: PolicyTruth | None = None) -> str | None:
    """A right answer to a row's prompt; None if the truth is not known.

    Args:
        row: See `right`.
        seed: Picks one of several right answers, together with the prompt.
        truth: See `right`.
    """
    prompt = row["prompt"]
    (values,) = policy_values(truth or PolicyTruth(), [prompt], [row.get("action_values")], [True])
    draw = random.Random(f"{seed} {prompt}")
    return TASKS[task_of(prompt)].right_answer(prompt, values, draw)


def answer_tokens(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """The tokens that a policy has to write after a prompt to give an answer, with the end token."""
    before: list[int] = tokenizer(prompt)["input_ids"]
    both: list[int] = tokenizer(prompt + answer)["input_ids"]
    if both[: len(before)] != before:  # the prompt's last characters joined the answer's first
        both = before + tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*both[len(before) :], tokenizer.eos_token_id]


def taught_answer(trainer: Any, row: Mapping[str, Any], seed: str) -> tuple[str, list[int]] | None:
    """A right answer to a row and its tokens; None if the truth is not known, or it is too long.

    Args:
        trainer: A `RookWorldGRPOTrainer`.
        row: See `right`.
        seed: See `right_answer`; the trainer's own seed and step are added.
    """
    seed = f"{trainer.args.seed} {trainer.state.global_step} {seed}"
    answer = right_answer(row, seed, truth_of(trainer.reward_funcs))
    if answer is None:
        return None
    tokens = answer_tokens(trainer.processing_class, row["prompt"], answer)
    return (answer, tokens) if len(tokens) <= trainer.max_completion_length else None


def truth_of(reward_funcs: Iterable[Any]) -> PolicyTruth | None:
    """Where a trainer's rewards take values of moves from; None if none of them takes any."""
    found = (getattr(inspect.unwrap(func), "truth", None) for func in reward_funcs)
    return next((truth for truth in found if isinstance(truth, PolicyTruth)), None)
