"""Measured on held-out rows if a key asks for it: pass@k, and what a run does to the other tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer

from ..common.errors import RookWorldError
from ..common.progress import quiet
from ..evaluation.models import LanguageModel
from ..evaluation.pass_at_k import (
    GREEDY_SHARE,
    Measured,
    RightCounts,
    count_right,
    read_counts,
    write_counts,
)
from ..models.decoding import ANSWER_TOKENS, Decoding, complete, shared
from ..tasks.metrics import evaluate_completions
from ..tasks.registry import TASKS, asked, is_right, row_task
from ..tasks.types import values_by_move
from .results import HELDOUT_PASS
from .sampling import answering, decode, is_sharded

if TYPE_CHECKING:
    from .trainer import RookWorldGRPOTrainer

PASS_ROWS = 200  # of each task, always the same ones


# --------------------------------------------------------------------------------------------------
# pass@k
# --------------------------------------------------------------------------------------------------
def sample_heldout(
    trainer: RookWorldGRPOTrainer, rows: Dataset, greedy: Sequence[str]
) -> dict[str, RightCounts]:
    """Sample held-out rows at training's temperature, and count the right answers.

    What is sampled is decided by prompt and seed, so training's own noise is untouched. Every process
    samples its share of the rows; all get all counts.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        rows: `N` held-out rows.
        greedy: `N` texts, the greedy answers of the same weights.

    Returns:
        By task; a task none of whose rows has a known truth is left out.
    """
    count = trainer.args.pass_samples
    policy = LanguageModel(f"pass@{count}", partial(decode, trainer))
    scored = [_is_right(row, text) for row, text in zip(rows, greedy, strict=True)]
    tasks = list(map(row_task, rows))
    found = {}
    for task in TASKS:
        places = [
            place
            for place, its_task in enumerate(tasks)
            if its_task == task and scored[place] is not None
        ]
        if not places:
            continue
        chosen = evenly(places, PASS_ROWS)
        asked = rows.select(chosen)
        prompts = asked["prompt"][:]
        (how,) = trainer.samplings(prompts[:1])
        decoding = Decoding("sampled", how.temperature, how.top_k, how.top_p, trainer.args.seed)
        drawn = policy.samples(prompts, count, decoding)
        counted = [
            count_right(texts, {t: bool(_is_right(row, t)) for t in texts}, TASKS[task].vote)
            for row, texts in zip(asked, drawn, strict=True)
        ]
        greedy_hits = [int(bool(scored[place])) for place in chosen]
        right, voted = zip(*counted, strict=True)
        found[task] = RightCounts(count, list(right), greedy_hits, list(voted))
    return found


def evenly(places: Sequence[int], most: int) -> list[int]:
    """At most so many of the places, spread evenly over all of them.

    >>> evenly([3, 4, 5, 6, 7], 2), evenly([3, 4], 5)
    ([3, 5], [3, 4])
    """
    count = min(most, len(places))
    return [places[turn * len(places) // count] for turn in range(count)]


def _is_right(row: Mapping[str, Any], completion: str) -> bool | None:
    if row_task(row) is None:
        return None
    return is_right(asked(row), completion, values_by_move(row.get("action_values")))


def measure_pass(trainer: RookWorldGRPOTrainer, rows: Dataset, when: str) -> dict[str, float]:
    """Count for the weights that answered last, and write the counts for the report and a resumed run.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        rows: The rows that its `heldout` has answered.
        when: ``before`` or ``after`` training.

    Returns:
        Metrics by name, as they are logged.
    """
    heldout, args = trainer.heldout, trainer.args
    with quiet(bool(args.disable_tqdm)):
        heldout.right[when] = sample_heldout(trainer, rows, heldout.completions)
    if trainer.accelerator.is_main_process:
        settings = {"pass_samples": args.pass_samples, "temperature": args.temperature}
        write_counts(Path(args.output_dir) / HELDOUT_PASS, settings, heldout.right)
    return {
        f"pass/{task}/{name}": estimate.value
        for task, counts in heldout.right[when].items()
        for name, estimate in counts.estimates().items()
    }


def starting_counts(args: Any, run: Path) -> dict[str, Mapping[str, RightCounts]]:
    """The counts from before the first step of the run in a folder, which goes on; empty without any.

    Those of another number of samples are left out, because they could not be compared.
    """
    path = run / HELDOUT_PASS
    if not path.is_file():
        return {}
    settings, measured = read_counts(path)
    is_same = "before" in measured and settings["pass_samples"] == args.pass_samples
    return {"before": measured["before"]} if is_same else {}


def pass_lines(measured: Measured) -> list[str]:
    """A line for each task: greedy, pass@1 and pass@k at the largest k, before and after training."""
    before, after = measured.get("before", {}), measured.get("after", {})
    lines = []
    for task, counts in after.items():
        top = f"pass@{counts.samples}"
        shown = (GREEDY_SHARE, "pass@1", f"majority@{counts.samples}", top)
        sides = [side[task].estimates() for side in (before, after) if task in side]
        shares = [
            f"{name} {' -> '.join(f'{side[name].value:.1%}' for side in sides)}"
            for name in dict.fromkeys(shown)
        ]
        change = ""
        if task in before:
            found = before[task].compare(counts)[top]
            points = [100 * number for number in (found.difference, found.low, found.high)]
            change = " ({:+.1f} points [{:+.1f}, {:+.1f}])".format(*points)
        by = TASKS[task].right_by
        lines.append(f"{task} {by}, {len(counts.right)} prompts: {'; '.join(shares)}{change}")
    return lines


# --------------------------------------------------------------------------------------------------
# Tasks that were not trained
# --------------------------------------------------------------------------------------------------
def measure_others(
    trainer: RookWorldGRPOTrainer,
    others: Sequence[Mapping[str, Any]],
    load_start: Callable[[], torch.nn.Module],
) -> None:
    """Compare a trainer's policy with the model that it started from on other tasks, and log it.

    The held-out results of both, before and after training, get those of the other tasks, by
    ``other/<task>/<metric>``. Every process takes a share of the rows. Sharded weights are not
    measured, because two models would have to be gathered.

    Args:
        trainer: The `RookWorldGRPOTrainer`, with the final weights.
        others: Held-out rows of the other tasks.
        load_start: Loads the starting model.
    """
    start, fault = None, ""
    try:
        if is_sharded(trainer):
            raise RookWorldError("the weights are sharded; set other_task_rows: 0 to leave it out")
        start = load_start()
    except RookWorldError as error:  # the run's own results are still to be written
        fault = str(error)
    if faults := list(filter(None, gather_object([fault]))):  # one process alone must not return
        trainer.accelerator.print(f"what the other tasks lost is not measured: {faults[0]}")
        return
    assert start is not None
    heldout, prompts = trainer.heldout, [row["prompt"] for row in others]
    how: dict[str, Any] = {
        "max_new_tokens": ANSWER_TOKENS,  # the trained tasks' own limit may be lower
        "batch_size": trainer.args.per_device_eval_batch_size,
    }
    with quiet(bool(trainer.args.disable_tqdm)), answering(trainer) as policy:
        start = start.to(policy.device).eval()
        for name, network in (("before", start), ("results", policy)):
            answer = partial(complete, network, trainer.processing_class, **how)
            texts = shared(prompts, answer, "the other tasks")
            found = evaluate_completions(others, texts)
            named = {f"other/{metric}": result for metric, result in found.items()}
            setattr(heldout, name, {**(getattr(heldout, name) or {}), **named})
    Trainer.log(trainer, {f"eval_{name}": result.value for name, result in named.items()})
