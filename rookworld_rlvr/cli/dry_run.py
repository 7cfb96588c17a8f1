"""What `--dry_run` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ..data.loading import LoadedData, action_values_of
from ..engine.truth import PolicyTruth
from ..evaluation.answerers import guesses
from ..rewards.registry import RewardFunc, get_reward_funcs
from ..tasks import fill_in_truth, rules
from ..tasks.environment import write_environment_answer
from ..tasks.fill_in import MASK, parse_fill_in_prompt, write_fill_in_answer
from ..tasks.policy import parse_policy_answer, write_policy_answer
from ..tasks.scoring import policy_reference
from ..tasks.types import TASKS

ROWS_SHOWN = 3


def dry_run_text(
    data: LoadedData, specs: Sequence[Mapping[str, Any]], truth: PolicyTruth | None = None
) -> str:
    """The data's counts, and for each task three rows with scored reference and broken variant."""
    funcs = get_reward_funcs(specs, truth)
    lines = [*data.report.lines()]
    for task in TASKS:
        rows = (row for row in data.train if row["task"] == task)
        for place, row in enumerate(islice(rows, ROWS_SHOWN), 1):
            lines += ["", f"{task} row {place}: {row['prompt']!r}"]
            for kind, text in (("reference", reference(row)), ("broken", broken(row))):
                lines.append(f"  {kind:<9} {text!r}")
                lines.append(f"            {_rewards(row, text, funcs)}")
    return "\n".join(lines)


def reference(row: Mapping[str, Any]) -> str:
    """The right answer to a row.

    It is the data's own where a policy row has no action values, and in a fill-in row, where it was
    checked when the row was read.
    """
    if row["task"] == "environment":
        return write_environment_answer(rules.transition(row["fen"], row["action"]))
    if row["task"] == "fill_in" or not row["action_values"]:
        return str(row["completion"])
    values = action_values_of(row["action_values"])
    return write_policy_answer(policy_reference(row["fen"], values))


def broken(row: Mapping[str, Any]) -> str:
    """The reference with one thing wrong: the other side to move, or the worst move as the best.

    Of a fill-in row an answer of the right form that does not fit; the mask, where all of them do.
    """
    if row["task"] == "fill_in":
        record = parse_fill_in_prompt(row["prompt"])
        fits = fill_in_truth.answers(record)
        wrong = (guess for guess in guesses(record) if guess not in fits)
        return write_fill_in_answer(next(wrong, MASK))
    text = reference(row)
    if row["task"] == "environment":
        turn = " w " if " w " in text else " b "
        return text.replace(turn, " b " if turn == " w " else " w ", 1)
    answer = parse_policy_answer(text)
    worst = row["action_values"][-1]["move"] if row["action_values"] else "a1a1"
    return write_policy_answer(dataclasses.replace(answer, best_move=worst))


def _rewards(row: Mapping[str, Any], text: str, funcs: Sequence[RewardFunc]) -> str:
    columns = {key: [row[key]] for key in row if key not in ("prompt", "completion")}
    parts = []
    for func in funcs:
        number = func(prompts=[row["prompt"]], completions=[text], **columns)[0]
        if number is not None:
            parts.append(f"{func.__name__} {number:.3f}")
    return "  ".join(parts) or "no reward applies"
