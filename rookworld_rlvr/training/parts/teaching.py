"""Right answers in groups where no completion is right, so that these groups teach something.

GRPO moves a policy only where some completions of a group are better than others. If the policy never
finds a right answer, it never learns one. Here, a right answer takes the place of a completion of such
a group (LUFFY: J. Yan et al., "Learning to reason under off-policy guidance", 2025, arXiv 2504.14945,
mixes in answers of a stronger model). Its reward is what the rewards give it.

A taught answer was not sampled from the policy, so that it has a term of its own in the loss:
``-A log p`` by token, where `A` is its advantage in the group and `p` the token's probability. The token
thus weighs as much as a sampled one.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ...engine.truth import PolicyTruth, policy_values
from ...tasks.registry import TASKS, asked, is_right, row_task
from .aggregation import aggregate
from .part import Batch, Call, Part
from .sampling import answer_tokens


# --------------------------------------------------------------------------------------------------
# Right completions, by their tasks' headline metrics, and right answers
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


def known_answer(trainer: Any, row: Mapping[str, Any], seed: str) -> tuple[str, list[int]] | None:
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


def taught_answer(trainer: Any, row: Mapping[str, Any], seed: str) -> tuple[str, list[int]] | None:
    """See `known_answer`; also None if the answer is longer than a completion may be."""
    found = known_answer(trainer, row, seed)
    return found if found and len(found[1]) <= trainer.max_completion_length else None


def truth_of(reward_funcs: Iterable[Any]) -> PolicyTruth | None:
    """Where a trainer's rewards take values of moves from; None if none of them takes any."""
    found = (getattr(inspect.unwrap(func), "truth", None) for func in reward_funcs)
    return next((truth for truth in found if isinstance(truth, PolicyTruth)), None)


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class Teaching(Part):
    """Puts right answers into groups without any, and adds their term to the loss."""

    loss_term = "taught"

    def after_sampling(
        self, call: Call, ids: list[list[int]], texts: list[str], logps: list[Any] | None
    ) -> None:
        """Replace the last completion of each group without a right one by a right answer.

        The sampler's log-probs of taught answers are not known.
        """
        trainer, size = self._trainer, self._trainer.num_generations
        # Which completions were right ``(groups, completions)``, and the answers put in ``(B,)``.
        self._right = right(call.rows, texts, truth_of(trainer.reward_funcs)).view(-1, size)
        self._rows = torch.zeros(len(ids), dtype=torch.bool)
        for group in (self._right == 0).all(1).nonzero().flatten().tolist():
            row = (group + 1) * size - 1
            answer = taught_answer(trainer, call.rows[row], "0")
            if answer is None:
                continue
            self._rows[row], (texts[row], ids[row]) = True, answer
            if logps is not None:
                logps[row] = [None] * len(ids[row])

    def extend(self, call: Call, batch: Batch) -> None:
        """Move the advantages of taught answers from TRL's loss to this part's term; log the step."""
        trainer = self._trainer
        advantages = batch["advantages"]  # (B,): with gae, which has others, nothing is taught
        rows = batch["taught"] = self._rows.to(advantages.device)
        batch["taught_advantages"] = torch.where(rows, advantages, 0.0)
        batch["advantages"] = torch.where(rows, 0.0, advantages)
        right = trainer.accelerator.gather(self._right.to(advantages.device))
        known = right[~right.isnan().any(1)]
        taught = trainer.accelerator.gather(rows).sum().item()
        trainer.record(
            {
                "teach/hopeless": (known == 0).all(1).sum().item() / max(1, len(known)),
                "teach/share": taught / len(right),
                "teach/right": known.sum().item() / max(1, known.numel()),
            }
        )

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """See `Part`: the taught answers."""
        none = torch.zeros(len(inputs["advantages"]))
        return inputs.get("taught_advantages", none) != 0

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The taught answers' term."""
        if "taught_advantages" not in inputs:
            return None
        assert call.scores is not None
        advantages = inputs["taught_advantages"].unsqueeze(1)  # 0 for sampled completions
        return aggregate(trainer, -advantages * call.scores.logps, inputs)
