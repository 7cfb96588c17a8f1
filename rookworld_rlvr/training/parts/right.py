"""Which completions are right, and right answers to learn from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...tasks.registry import TASKS, score_row, task_of
from ...tasks.scoring import values_by_move

Row = Mapping[str, Any]


def right(rows: Sequence[Row], completions: Sequence[str]) -> torch.Tensor:
    """Which completions are right by their task's headline metric.

    Args:
        rows: `B` rows with the columns `prompt` and, if their task needs them, `action_values`.
        completions: `B` texts.

    Returns:
        ``(B,)``: 1 if right, 0 if wrong, nan if the truth is not known.
    """
    found = []
    for row, completion in zip(rows, completions, strict=True):
        values = values_by_move(row.get("action_values"))
        score = score_row(row["prompt"], completion, values)
        task = TASKS[task_of(row["prompt"])]
        found.append(torch.nan if score is None else float(task.is_right(score)))
    return torch.tensor(found)


def right_answer(row: Row, seed: str) -> str | None:
    """A right answer to a row's prompt, of several one by `seed`; None if the truth is not known."""
    values = values_by_move(row.get("action_values"))
    task = TASKS[task_of(row["prompt"])]
    return task.right_answer(row["prompt"], values, random.Random(f"{seed} {row['prompt']}"))


def answer_tokens(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """The tokens that a policy has to write after a prompt to give an answer, with the end token."""
    before: list[int] = tokenizer(prompt)["input_ids"]
    both: list[int] = tokenizer(prompt + answer)["input_ids"]
    if both[: len(before)] != before:  # the prompt's last characters joined the answer's first
        both = before + tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*both[len(before) :], tokenizer.eos_token_id]
