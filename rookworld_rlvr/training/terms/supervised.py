"""A supervised term: the likelihood of right answers, beside what is learnt from rewards.

The term is the mean negative log-likelihood of the answers' tokens, in nats, at the temperature of
sampling (CHORD: W. Zhang et al., "On-policy RL meets off-policy experts", 2025, arXiv 2508.11408,
weighs the two in one loss). The answers go through the network with the completions of their group, so
that they share its prompt. Prompts that are not sampled can add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from trl.trainer.utils import pad

from ...models.decoding import on_device, pad_rows
from ...tasks.registry import row_task
from ..rollouts import Batch, Rollouts
from ..sampling import encode
from ..scoring import Scores, Sequences
from .right_answers import taught_answer

if TYPE_CHECKING:
    from ..step import Step

TokenisedAnswer = tuple[list[int], list[int], float]
"""The tokens of a prompt and of an answer to it, and the temperature at which it would be sampled."""


def answer_columns(trainer: Step, sampled: Rollouts) -> Batch:
    """Right answers for a batch of `B` rows.

    ``answers`` has a list for each row, with the tokens of prompts and their answers, and the
    temperatures: in the first row of a group the answer to its prompt; then those to prompts that are
    not sampled, spread over all rows; None for an answer that is not known, or too long.
    ``answer_tokens`` ``(B,)`` is the number of the answers' tokens, ``answer_items`` their sum on all
    processes.
    """
    size = trainer.num_generations
    each = math.ceil(trainer.args.sft_extra / size)
    extra = _extra(trainer, len(sampled.rows) // size)
    answers = []
    for place, row in enumerate(sampled.rows):
        asked = [None if place % size else row, *extra[place * each : (place + 1) * each]]
        answers.append([one and _answer(trainer, one) for one in asked])
    counts = [sum(len(one[1]) for one in row if one) for row in answers]
    tokens = on_device(torch.tensor(counts), trainer.accelerator.device)
    items = trainer.on_all(tokens)
    return {"answers": answers, "answer_tokens": tokens, "answer_items": items}


def _answer(trainer: Step, row: Mapping[str, Any]) -> TokenisedAnswer | None:
    """The right answer to a row; None if it is not known, or too long."""
    if (found := taught_answer(trainer, row, "sft")) is None:
        return None
    how = trainer.sampling_of(row_task(row))
    (prompt,) = encode(trainer, [row["prompt"]])
    return prompt, found[1], how.temperature


def _extra(trainer: Step, groups: int) -> list[Mapping[str, Any]]:
    """This process's rows of prompts that are not sampled, for so many groups that are."""
    count = trainer.args.sft_extra * groups
    if not count:
        return []
    processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
    drawn = trainer.prompt_sampler.extra(count * processes, trainer.state.global_step, 0)
    return [trainer.train_dataset[row] for row in drawn[rank::processes]]


# --------------------------------------------------------------------------------------------------
# In the forward of the loss
# --------------------------------------------------------------------------------------------------
def with_answers(
    score: Callable[[Sequences], Scores],
    rows: Sequences,
    answers: Sequence[Sequence[TokenisedAnswer | None]],
) -> Scores:
    """The scores of a micro-batch, and the log-probs of right answers, from one forward.

    Args:
        score: How rows are scored.
        rows: The micro-batch.
        answers: Of each of its rows, see `answer_columns`.
    """
    asked, (count, length) = below(rows, answers), (len(rows.ids), rows.length)
    scores = score(asked)

    def own(column: torch.Tensor | None) -> torch.Tensor | None:
        return None if column is None else column[:count, :length]

    return Scores(
        scores.logps[:count, :length],
        own(scores.entropies),
        scores.aux_loss,
        own(scores.values),
        scores.logps[count:] * on_device(asked.mask[count:, -asked.length :], scores.logps.device),
    )


def below(rows: Sequences, answers: Sequence[Sequence[TokenisedAnswer | None]]) -> Sequences:
    """Sequences ``(B, T)``, and below them the `g` answers of a micro-batch that there are."""
    found = [answer for turn in zip_longest(*answers) for answer in turn if answer]
    if not found:
        return rows
    prompts, texts, heats = zip(*found, strict=True)
    before, after = pad_rows(prompts, 0), pad_rows(texts, 0, "right")

    def added(columns: torch.Tensor, name: str) -> torch.Tensor:
        left, right = columns[:, : -rows.length], columns[:, -rows.length :]
        left = pad([*left, *before[name].to(left.device)], 0, "left")
        right = pad([*right, *after[name].to(right.device)], 0, "right")
        return torch.cat([left, right], dim=1)

    ids, mask = added(rows.ids, "input_ids"), added(rows.mask, "attention_mask")
    temperatures = rows.temperatures
    if temperatures is not None:
        temperatures = torch.cat([temperatures, temperatures.new_tensor(heats)])
    return Sequences(ids, mask, max(rows.length, *map(len, texts)), temperatures)
