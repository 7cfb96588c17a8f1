"""Right answers in groups where no completion is right, so that these groups teach something.

GRPO moves a policy only where some completions of a group are better than others. If the policy never
finds a right answer, it never learns one. Here, a right answer takes the place of a completion of such
a group (LUFFY: J. Yan et al., "Learning to reason under off-policy guidance", 2025, arXiv 2504.14945,
mixes in answers of a stronger model). Its reward is what the rewards give it.

A taught answer was not sampled from the policy, so that it has a term of its own in the loss,
`losses.taught`: ``-A log p`` by token, where `A` is its advantage in the group and `p` the token's
probability. The token thus weighs as much as a sampled one.
"""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ...common.errors import RookWorldError
from ...engine.truth import PolicyTruth, policy_values
from ...tasks.registry import TASKS, asked, is_right, row_task
from ..sampling import answer_tokens

if TYPE_CHECKING:
    from ..rollouts import Rollouts
    from ..step import Step


# --------------------------------------------------------------------------------------------------
# Right completions, by the metric `right` of their tasks, and right answers
# --------------------------------------------------------------------------------------------------
def right(
    rows: Sequence[Mapping[str, Any]], completions: Sequence[str], truth: PolicyTruth | None = None
) -> torch.Tensor:
    """Whether each of `B` completions is right: ``(B,)`` of 1 and 0, nan if the truth is not known.

    Args:
        rows: The row of each completion, with `prompt`, a text or a chat, and, for tasks that need
            values, `action_values`.
        completions: What the policy wrote.
        truth: Where values of moves come from; None takes the column `action_values`.
    """
    prompts = [asked(row) if row_task(row) else "" for row in rows]
    column = [row.get("action_values") for row in rows]
    values = policy_values(truth or PolicyTruth(), prompts, column)
    found = (
        is_right(prompt, completion, worth) if prompt else None
        for prompt, completion, worth in zip(prompts, completions, values, strict=True)
    )
    return torch.tensor([torch.nan if one is None else float(one) for one in found])


def right_answer(row: Mapping[str, Any], seed: str, truth: PolicyTruth | None = None) -> str | None:
    """A right answer to a row's prompt; None if the truth is not known.

    Args:
        row: See `right`.
        seed: Picks one of several right answers, together with the prompt.
        truth: See `right`.
    """
    prompt, task = asked(row), row_task(row)
    if task is None:
        return None
    (values,) = policy_values(truth or PolicyTruth(), [prompt], [row.get("action_values")])
    draw = random.Random(f"{seed} {prompt}")
    return TASKS[task].right_answer(prompt, values, draw)


def known_answer(trainer: Step, row: Mapping[str, Any], seed: str) -> tuple[str, list[int]] | None:
    """A right answer to a row and its tokens; None if the truth is not known.

    Args:
        trainer: A `RookWorldGRPOTrainer`.
        row: See `right`.
        seed: See `right_answer`; the trainer's own seed and step are added.
    """
    seed = f"{trainer.args.seed} {trainer.state.global_step} {seed}"
    answer = right_answer(row, seed, truth_of(trainer.reward_funcs))
    if answer is None:
        return None
    return answer, answer_tokens(trainer, row["prompt"], answer)


def taught_answer(trainer: Step, row: Mapping[str, Any], seed: str) -> tuple[str, list[int]] | None:
    """See `known_answer`; also None if the answer is longer than a completion may be."""
    found = known_answer(trainer, row, seed)
    return found if found and len(found[1]) <= trainer.max_completion_length else None


def truth_of(reward_funcs: Iterable[Any]) -> PolicyTruth | None:
    """Where a trainer's rewards take values of moves from; None if none of them takes any."""
    found = (getattr(inspect.unwrap(func), "truth", None) for func in reward_funcs)
    return next((truth for truth in found if isinstance(truth, PolicyTruth)), None)


def ask_ahead(
    reward_funcs: Iterable[Any], rows: Sequence[Mapping[str, Any]]
) -> threading.Thread | None:
    """Let an engine value the positions of rows in a thread while their completions are sampled.

    The values depend on prompts alone. Whoever needs them asks again, and finds them in the cache of the
    labeller or waits for it. None without an engine.

    Args:
        reward_funcs: A trainer's.
        rows: With `prompt`, a text or a chat, and perhaps `action_values`.
    """
    truth = truth_of(reward_funcs)
    if truth is None or truth.labeller is None:
        return None
    valued = {asked(row): row.get("action_values") for row in rows if row_task(row)}

    def ask() -> None:
        with suppress(RookWorldError):  # which is raised again to whoever needs the values
            policy_values(truth, [*valued], [*valued.values()])

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


# --------------------------------------------------------------------------------------------------
# Teaching
# --------------------------------------------------------------------------------------------------
def teach(
    trainer: Step, sampled: Rollouts, ids: list[list[int]], logps: list[list[Any]] | None
) -> tuple[list[list[int]], list[list[Any]] | None]:
    """Completions ``ids`` with a right answer for the last one of each hopeless group, and log-probs.

    Hopeless is a group without a right completion. The round gets `taught`. The sampler's log-probs of a
    taught answer are not known.
    """
    size, device = trainer.num_generations, trainer.accelerator.device
    texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    found = right(sampled.rows, texts, truth_of(trainer.reward_funcs))
    taught, ids = torch.zeros(len(ids), dtype=torch.bool), list(ids)
    for group in (found.view(-1, size) == 0).all(1).nonzero().flatten().tolist():
        row = (group + 1) * size - 1
        if answer := taught_answer(trainer, sampled.rows[row], "0"):
            taught[row], (_, ids[row]) = True, answer
    sampled.taught = taught.to(device)
    trainer.record(_shares(trainer, found.to(device), sampled.taught))
    if logps is not None:
        told = zip(ids, logps, taught.tolist(), strict=True)
        logps = [[None] * len(row) if is_taught else own for row, own, is_taught in told]
    return ids, logps


def _shares(trainer: Step, right: torch.Tensor, taught: torch.Tensor) -> dict[str, float]:
    """Shares of groups that were hopeless, of those that were taught, and of right completions."""
    right = trainer.accelerator.gather(right).view(-1, trainer.num_generations)
    known = right[~right.isnan().any(1)]
    return {
        "teach/hopeless": (known == 0).all(1).sum().item() / max(1, len(known)),
        "teach/share": trainer.accelerator.gather(taught).sum().item() / len(right),
        "teach/right": known.sum().item() / max(1, known.numel()),
    }
