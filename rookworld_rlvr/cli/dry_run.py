"""What `--dry_run` prints."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from transformers import TrainerState

from ..common.errors import RookWorldError
from ..common.terminal import wrapped
from ..data.loading import LoadedData
from ..engine.truth import PolicyTruth
from ..rewards.own import checked
from ..rewards.registry import RewardFunc, get_reward_funcs
from ..tasks.registry import TASKS
from ..tasks.task import Task

ROWS_SHOWN = 3


KINDS = ("reference", "wrong", "unreadable")  # answers to each row


def dry_run_text(
    data: LoadedData, specs: Sequence[Mapping[str, Any]], truth: PolicyTruth | None = None
) -> str:
    """The counts of the data, and for each task three rows with answers to them, scored.

    The reference, a wrong and an unreadable answer to each row make one batch.
    """
    funcs = get_reward_funcs(specs, truth)
    lines = [wrapped("\n".join(data.report.lines()))]
    with asyncio.Runner() as runner:  # one event loop for all rewards, as in training
        for name, task in TASKS.items():
            rows = (row for row in data.train if row["task"] == name)
            known = (
                row
                for row in rows
                if not task.needs_values or row["action_values"] or row["completion"]
            )
            batch = [
                (row, *answer)
                for row in islice(known, ROWS_SHOWN)
                for answer in _answers(task, row)
            ]
            scored = zip(batch, _rewards(batch, funcs, runner), strict=True)
            for at, ((row, kind, text), cell) in enumerate(scored):
                if kind == KINDS[0]:
                    lines += ["", f"{name} row {1 + at // len(KINDS)}: {row['prompt']!r}"]
                lines += [f"  {kind:<10} {text!r}", f"{'':13}{cell or 'no reward applies'}"]
    return "\n".join(lines)


def _answers(task: Task, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    reference = task.reference(row)
    return zip(KINDS, (reference, task.broken(row), reference[: len(reference) // 3]), strict=True)


def _rewards(
    batch: Sequence[tuple[Mapping[str, Any], str, str]],
    funcs: Sequence[RewardFunc],
    runner: asyncio.Runner,
) -> list[str]:
    """What the rewards give for each answer of a batch."""
    if not batch:
        return []
    rows, _, texts = zip(*batch, strict=True)
    columns = {
        key: [row[key] for row in rows] for key in rows[0] if key not in ("prompt", "completion")
    }
    of_trainer = {  # what TRL passes in training; `completion_ids` would need a tokenizer
        "trainer_state": TrainerState(),
        "log_metric": lambda name, value: None,
        "log_extra": lambda column, values: None,
    }
    cells: list[list[str]] = [[] for _ in batch]
    for func in funcs:
        found = func(
            prompts=[row["prompt"] for row in rows],
            completions=list(texts),
            **columns,
            **of_trainer,
        )
        values = runner.run(found) if inspect.iscoroutine(found) else found
        for cell, number in zip(cells, checked(func.__name__, values, len(batch)), strict=True):
            if isinstance(number, RookWorldError):
                raise number
            if number is not None:
                cell.append(f"{func.__name__} {number:.3f}")
    return list(map("  ".join, cells))
