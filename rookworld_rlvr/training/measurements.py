"""Measured on held-out rows if a key asks for it: pass@k, and what a run does to the other tasks.

When training has ended, the starting model is loaded again. Both models answer held-out rows of the
tasks that were not trained, and the exact KL from the policy to the starting model is taken along the
policy's own greedy answers, also to rows of the trained tasks: how far a model moves there tells more
about what it forgets than its training reward does (RL's Razor, 2509.04259).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch.nn import functional
from transformers import Trainer

from ..common.errors import RookWorldError
from ..common.progress import quiet
from ..data.loading import LoadedData, first_of_each_task
from ..evaluation.answerers import LanguageModel, shared
from ..evaluation.pass_at_k import (
    GREEDY_SHARE,
    Measured,
    RightCounts,
    majority,
    read_counts,
    write_counts,
)
from ..models.decoding import ANSWER_TOKENS, Decoding, complete, complete_ids
from ..tasks.metrics import evaluate_completions
from ..tasks.registry import TASKS, is_right
from ..tasks.types import values_by_move
from .answering import answering, decode
from .results import HELDOUT_PASS
from .sharding import is_sharded

PASS_ROWS = 200  # of each task, always the same ones
_ROWS_AT_ONCE = 8  # in a forward: a large vocabulary needs 10 MB of logits for 50 tokens
_SAMPLED_BY = (
    *("pass_samples", "temperature", "top_p", "top_k"),
    *("max_completion_length", "task_sampling", "seed"),
)


# --------------------------------------------------------------------------------------------------
# pass@k
# --------------------------------------------------------------------------------------------------
def sample_heldout(trainer: Any, rows: Dataset, greedy: Sequence[str]) -> dict[str, RightCounts]:
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
    found = {}
    for task in TASKS:
        places = [
            place
            for place, its_task in enumerate(rows["task"])
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
        hits = [
            {text: bool(_is_right(row, text)) for text in texts}
            for row, texts in zip(asked, drawn, strict=True)
        ]
        pairs = [*zip(hits, drawn, strict=True)]
        found[task] = RightCounts(
            count,
            [sum(of[text] for text in texts) for of, texts in pairs],
            [int(bool(scored[place])) for place in chosen],
            [int(of[majority(texts, TASKS[task].vote)]) for of, texts in pairs],
        )
    return found


def evenly(places: Sequence[int], most: int) -> list[int]:
    """At most so many of the places, spread evenly over all of them.

    >>> evenly([3, 4, 5, 6, 7], 2), evenly([3, 4], 5)
    ([3, 5], [3, 4])
    """
    count = min(most, len(places))
    return [places[turn * len(places) // count] for turn in range(count)]


def _is_right(row: Mapping[str, Any], completion: str) -> bool | None:
    return is_right(row["prompt"], completion, values_by_move(row["action_values"]))


def keep_counts(args: Any, right: Measured) -> None:
    """Write the counts for pass@k into the run's folder, for the report and for a resumed run."""
    settings = {name: getattr(args, name) for name in _SAMPLED_BY}
    write_counts(Path(args.output_dir) / HELDOUT_PASS, settings, right)


def starting_counts(args: Any) -> dict[str, Mapping[str, RightCounts]]:
    """The counts from before the first step of the run that goes on in a folder; empty without any.

    Raises:
        RookWorldError: They were measured with other settings, or could not be read.
    """
    path = Path(args.output_dir) / HELDOUT_PASS
    if not path.is_file():
        return {}
    try:
        earlier, measured = read_counts(path)
    except (OSError, ValueError) as error:
        raise RookWorldError(
            f"{path} could not be read ({error}); start in another output_dir"
        ) from error
    if other := [name for name in _SAMPLED_BY if earlier.get(name) != getattr(args, name)]:
        before = ", ".join(f"{name}: {earlier.get(name)}" for name in other)
        raise RookWorldError(
            f"the run in {args.output_dir} measured pass@k before training with {before}; resume it "
            "with that, set pass_samples: 0, or start in another output_dir"
        )
    return {"before": measured["before"]} if "before" in measured else {}


def pass_lines(measured: Measured) -> list[str]:
    """A line for each task: greedy, pass@1 and pass@k at the largest k, before and after training."""
    before, after = measured.get("before", {}), measured.get("after", {})
    lines = []
    for task, counts in after.items():
        old = before[task].estimates() if task in before else {}
        new, top = counts.estimates(), f"pass@{counts.samples}"
        told = (GREEDY_SHARE, "pass@1", f"majority@{counts.samples}", top)
        shares = [
            f"{name} {f'{old[name].value:.1%} -> ' if old else ''}{new[name].value:.1%}"
            for name in dict.fromkeys(told)
            if name in new and (not old or name in old)
        ]
        change = ""
        if old:
            found = before[task].compare(counts)[top]
            points = [100 * number for number in (found.difference, found.low, found.high)]
            change = " ({:+.1f} points [{:+.1f}, {:+.1f}])".format(*points)
        lines.append(f"{task}, {len(counts.right)} prompts: {'; '.join(shares)}{change}")
    return lines


# --------------------------------------------------------------------------------------------------
# Tasks that were not trained
# --------------------------------------------------------------------------------------------------
def measure_others(
    trainer: Any, data: LoadedData, load_start: Callable[[], torch.nn.Module]
) -> dict[str, float]:
    """Compare a trainer's policy with the model that it started from, and log the comparison.

    The held-out results of both, before and after training, get those of the other tasks, by
    ``other/<task>/<metric>``. Every process takes a share of the rows. Sharded weights are not
    measured, because two models would have to be gathered.

    Args:
        trainer: The `RookWorldGRPOTrainer`, with the final weights.
        data: The rows; `others` are those of the other tasks.
        load_start: Loads the starting model.

    Returns:
        Task, trained or not → KL from the final to the starting model in nats a token, the mean over
        all tokens of the final model's greedy answers to held-out rows; empty if it was not measured.
    """
    start: Any = None
    fault = ""
    try:
        if is_sharded(trainer):
            raise RookWorldError("the weights are sharded; set other_task_rows: 0 to leave it out")
        start = load_start()
    except RookWorldError as error:
        fault = str(error)
    if faults := list(filter(None, gather_object([fault]))):  # one process alone must not return
        trainer.accelerator.print(f"what the other tasks lost is not measured: {faults[0]}")
        return {}
    rows = [*first_of_each_task(data.heldout.to_list(), trainer.args.other_task_rows), *data.others]
    with quiet(bool(trainer.args.disable_tqdm)):
        prompts = [row["prompt"] for row in rows]
        answered = shared(prompts, partial(_answer, trainer, start), "the other tasks")
    before, after, kls, tokens = zip(*answered, strict=True)
    count = len(data.others)
    heldout = trainer.heldout
    for name, texts in (("before", before), ("results", after)):
        others = evaluate_completions(data.others, texts[-count:])
        named = {f"other/{metric}": result for metric, result in others.items()}
        setattr(heldout, name, {**(getattr(heldout, name) or {}), **named})
    by_task = {
        task: [place for place, row in enumerate(rows) if row["task"] == task]
        for task in dict.fromkeys(row["task"] for row in rows)
    }
    kl = {
        task: sum(kls[place] for place in places) / sum(tokens[place] for place in places)
        for task, places in by_task.items()
    }
    Trainer.log(
        trainer,
        {
            **{f"eval_{name}": result.value for name, result in named.items()},
            **{f"kl/start/{task}": number for task, number in kl.items()},
        },
    )
    return kl


def _answer(
    trainer: Any,
    start: torch.nn.Module,
    prompts: Sequence[str],
    progress: Callable[[int], object],
) -> list[tuple[str, str, float, int]]:
    """Answer prompts greedily with both models, on this process.

    Returns:
        For each prompt the starting model's answer and the policy's; the KL summed over the policy's
        answer, in nats; and the tokens of that answer, with its end.
    """
    tokenizer = trainer.processing_class
    limits: dict[str, Any] = {
        "max_new_tokens": ANSWER_TOKENS,  # the trained tasks' own limit may be lower
        "batch_size": trainer.args.per_device_eval_batch_size,
    }
    with answering(trainer) as policy:
        start = start.to(policy.device).eval()
        before = complete(start, tokenizer, prompts, **limits)
        ids = complete_ids(policy, tokenizer, prompts, **limits)
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        kls: list[float] = []
        for first in range(0, len(ids), _ROWS_AT_ONCE):
            places = slice(first, first + _ROWS_AT_ONCE)
            kls += answer_kls(policy, start, encoded[places], ids[places])
            progress(len(ids[places]))
    after = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return list(zip(before, after, kls, map(len, ids), strict=True))


@torch.no_grad()
def answer_kls(
    policy: Any, start: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[float]:
    """KL(policy || start) of each answer's distribution, given its prompt, summed over its tokens.

    Args:
        policy: A causal language model.
        start: One with the same vocabulary.
        prompts: Token ids of `B` prompts.
        answers: Token ids of `B` answers, of which none is empty.

    Returns:
        `B` numbers, in nats.
    """
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    width = max(map(len, rows))
    # Padding is on the right, so positions count from 0 and the mask hides nothing from the text.
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=policy.device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]).to(ids.device)
    is_asked = torch.zeros_like(mask, dtype=torch.bool)  # the token before each token of an answer
    for place, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        is_asked[place, len(prompt) - 1 : len(row) - 1] = True
    log_policy, log_start = (  # a prompt's virtual tokens, as in prompt tuning, come first
        network(input_ids=ids, attention_mask=mask)
        .logits[:, -width:][is_asked]
        .float()
        .log_softmax(-1)
        for network in (policy, start)
    )
    kls = functional.kl_div(log_start, log_policy, reduction="none", log_target=True).sum(-1)
    return [float(kl.sum()) for kl in kls.split([len(answer) for answer in answers])]
