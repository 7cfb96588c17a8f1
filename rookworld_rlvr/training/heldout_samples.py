"""pass@k of the policy on held-out rows: several sampled answers to each, with training's settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from datasets import Dataset

from ..common.settings import setting
from ..evaluation.answerers import shared
from ..evaluation.pass_at_k import RightCounts
from ..tasks.registry import TASKS, is_right
from ..tasks.scoring import values_by_move
from ..tasks.task import Row
from .parts.part import arguments_of
from .parts.sampling import draw


@dataclass
class PassArguments:
    """pass@k of sampled answers to held-out rows, before training and after it."""

    pass_samples: int = setting(
        0,
        "Sampled answers to each held-out row, for pass@k with k up to this number, before training and "
        "with the final weights; 64 is usual. 0 measures no pass@k.",
        least=0,
    )


PASS_ROWS = 200  # of each task, always the same ones


_SAMPLED_BY = (
    "pass_samples",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_completion_length",
    "task_sampling",
)


def pass_settings(args: Any) -> dict[str, Any]:
    """The keys on which pass@k depends; they must be the same before and after training."""
    return {name: getattr(args, name) for name in _SAMPLED_BY}


def sample_heldout(trainer: Any, rows: Dataset, greedy: Sequence[str]) -> dict[str, RightCounts]:
    """Sample held-out rows as in training, and count the right answers; training's noise is untouched.

    Every process samples its share of the rows; all get all counts.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        rows: `N` held-out rows.
        greedy: `N` texts, the greedy answers of the same weights.

    Returns:
        By task; a task none of whose rows has a known truth is left out.
    """
    args = arguments_of(trainer.args, PassArguments)
    scored = [_is_right(row, text) for row, text in zip(rows, greedy, strict=True)]
    found = {}
    with _own_noise(trainer):
        for task in TASKS:
            mine = [
                place
                for place, (its_task, right) in enumerate(zip(rows["task"], scored, strict=True))
                if its_task == task and right is not None
            ]
            chosen = evenly(mine, PASS_ROWS)
            if not chosen:
                continue
            right = shared(
                [rows[place] for place in chosen],
                partial(_count_right, trainer, args.pass_samples),
                f"pass@{args.pass_samples}: {task}",
                each=args.pass_samples,
            )
            found[task] = RightCounts(
                args.pass_samples, right, [int(bool(scored[place])) for place in chosen]
            )
    return found


def evenly(places: Sequence[int], most: int) -> list[int]:
    """At most so many of the places, spread evenly over all of them.

    >>> evenly([3, 4, 5, 6, 7], 2), evenly([3, 4], 5)
    ([3, 5], [3, 4])
    """
    count = min(most, len(places))
    return [places[turn * len(places) // count] for turn in range(count)]


def _is_right(row: Row, completion: str) -> bool | None:
    return is_right(row["prompt"], completion, values_by_move(row["action_values"]))


def _count_right(
    trainer: Any,
    samples: int,
    rows: Sequence[Mapping[str, Any]],
    progress: Callable[[int], object] | None = None,
) -> list[int]:
    """Draw `samples` answers to each of `B` rows; how many of them are right, ``(B,)``."""
    prompts = [row["prompt"] for row in rows]
    encoded = trainer.processing_class(text=prompts)["input_ids"]
    drawn = draw(
        trainer,
        [ids for ids in encoded for _ in range(samples)],
        [how for how in trainer.samplings(prompts) for _ in range(samples)],
        batch_size=trainer.args.per_device_eval_batch_size,
        progress=progress,
    )
    texts = trainer.processing_class.batch_decode(drawn.ids, skip_special_tokens=True)
    counts = [Counter(texts[at : at + samples]) for at in range(0, len(texts), samples)]
    return [
        sum(times for text, times in count.items() if _is_right(row, text))
        for row, count in zip(rows, counts, strict=True)
    ]


@contextmanager
def _own_noise(trainer: Any) -> Iterator[None]:
    """Draw from a seed of its own, so that a run with pass@k trains exactly as one without."""
    device = trainer.accelerator.device
    others = [] if device.type == "cpu" else [device]  # beside the CPU, which is always kept
    with torch.random.fork_rng(others, device_type=device.type):
        torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
        yield
