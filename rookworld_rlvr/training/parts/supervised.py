"""A supervised term: the likelihood of right answers, beside what is learnt from rewards.

The term is the mean negative log-likelihood of the answers' tokens, in nats, at the temperature of
sampling (CHORD: W. Zhang et al., "On-policy RL meets off-policy experts", 2025, arXiv 2508.11408,
weighs the two in one loss). The answers go through the network with the completions of their group, so
that they share its prompt. Prompts that are not sampled can add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from trl.trainer.utils import pad

from ...models.decoding import pad_rows
from .aggregation import on_all, per_item
from .part import Batch, Call, Part, Rows, Scores
from .sampling import encode
from .teaching import taught_answer

Answer = tuple[list[int], list[int], float]
"""The tokens of a prompt and of an answer to it, and the temperature at which it would be sampled."""


class Supervised(Part):
    """Adds the negative log-likelihood of right answers to the loss.

    Attributes:
        logps: Log-probs ``(g, L)`` of the answers of the micro-batch, 0 for padding; None without any.
    """

    loss_term = "supervised"
    scores_own_rows = True

    def extend(self, call: Call, batch: Batch) -> None:
        """Add right answers to a batch of `B` rows.

        ``answers`` has a list for each row, with the tokens of prompts and their answers, and the
        temperatures: in the first row of a group the answer to its prompt; then those to prompts that
        are not sampled, spread over all rows; None for an answer that is not known, or too long.
        ``answer_tokens`` ``(B,)`` is the number of the answers' tokens, ``answer_items`` their sum on
        all processes.
        """
        size = self._trainer.num_generations
        each = math.ceil(self._trainer.args.sft_extra / size)
        extra = self._extra(len(call.rows) // size)
        batch["answers"] = []
        for place, row in enumerate(call.rows):
            asked = [None if place % size else row, *extra[place * each : (place + 1) * each]]
            batch["answers"].append([one and self._answer(one) for one in asked])
        counts = [sum(len(one[1]) for one in row if one) for row in batch["answers"]]
        batch["answer_tokens"] = torch.tensor(counts, device=self._trainer.accelerator.device)
        batch["answer_items"] = on_all(self._trainer, batch["answer_tokens"])

    def _answer(self, row: Mapping[str, Any]) -> Answer | None:
        """The right answer to a row; None if it is not known, or too long."""
        if (found := taught_answer(self._trainer, row, "sft")) is None:
            return None
        (how,) = self._trainer.samplings([row["prompt"]])
        (prompt,) = encode(self._trainer, [row["prompt"]])
        return prompt, found[1], how.temperature

    def _extra(self, groups: int) -> list[Mapping[str, Any]]:
        """This process's rows of prompts that are not sampled, for so many groups that are."""
        trainer, count = self._trainer, self._trainer.args.sft_extra * groups
        if not count:
            return []
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        drawn = trainer.prompt_sampler.extra(count * processes, trainer.state.global_step, 0)
        return [trainer.train_dataset[row] for row in drawn[rank::processes]]

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """Add the answers, with their prompts, below the rows ``(B, T)`` of a micro-batch."""
        self.logps: torch.Tensor | None = None
        if call.inputs is None or "answers" not in call.inputs:
            return rows
        return with_answers(rows, call.inputs["answers"])

    def after_scoring(self, call: Call, rows: Rows, scores: Scores) -> Scores:
        """Keep the answers' log-probs, and give those of the micro-batch."""
        if call.inputs is None or "answers" not in call.inputs:
            return scores
        count, length = call.inputs["completion_ids"].shape
        logps, entropies, aux_loss = scores
        self.logps = logps[count:] * rows.mask[count:, -rows.length :]
        entropies = None if entropies is None else entropies[:count, :length]
        return Scores(logps[:count, :length], entropies, aux_loss)

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The supervised term."""
        if self.logps is None:
            return None
        trainer.tally("sft/loss", -self.logps.detach().sum(), inputs["answer_tokens"].sum())
        total = -trainer.args.sft_coef * self.logps.sum()
        return per_item(trainer, total, inputs["answer_items"])


def with_answers(rows: Rows, answers: Sequence[Sequence[Answer | None]]) -> Rows:
    """Rows ``(B, T)``, and below them the `g` answers of a micro-batch that there are."""
    found = [answer for turn in zip_longest(*answers) for answer in turn if answer]
    if not found:
        return rows
    prompts, texts, heats = zip(*found, strict=True)
    before, after = pad_rows(prompts, 0), pad_rows(texts, 0, "right")

    def below(columns: torch.Tensor, name: str) -> torch.Tensor:
        left, right = columns[:, : -rows.length], columns[:, -rows.length :]
        left = pad([*left, *before[name].to(left.device)], 0, "left")
        right = pad([*right, *after[name].to(right.device)], 0, "right")
        return torch.cat([left, right], dim=1)

    ids, mask = below(rows.ids, "input_ids"), below(rows.mask, "attention_mask")
    temperatures = rows.temperatures
    if temperatures is not None:
        temperatures = torch.cat([temperatures, temperatures.new_tensor(heats)])
    return Rows(ids, mask, max(rows.length, *map(len, texts)), temperatures)
