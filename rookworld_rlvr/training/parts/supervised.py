"""A supervised term: the likelihood of right answers, beside what is learnt from rewards.

The term is the mean negative log-likelihood of the answers' tokens, in nats, at the temperature of
sampling (CHORD: W. Zhang et al., "On-policy RL meets off-policy experts", 2025, arXiv 2508.11408,
weighs the two in one loss). The answers go through the network with the completions of their group, so
that they share its prompt. Prompts that are not sampled can add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from trl.trainer.utils import pad

from ...models.decoding import pad_rows
from .aggregation import on_all, per_item
from .part import Batch, Call, Part, Rows, Scores
from .teaching import taught_answer

_COLUMNS = ("answer_prompt_ids", "answer_prompt_mask", "answer_ids", "answer_mask")


class Supervised(Part):
    """Adds the negative log-likelihood of right answers to the loss.

    Attributes:
        logps: Log-probs ``(g, L)`` of the answers of the micro-batch, 0 for padding; None without any.
    """

    loss_term = "supervised"

    def extend(self, call: Call, batch: Batch) -> None:
        """Add right answers with their prompts to a batch of `B` rows, up to `E` to each row.

        The first row of a group has the answer to its prompt; those to prompts that are not sampled
        come after it, spread over all rows. An answer that is not known, or too long, is empty.
        The columns are ``answer_prompt_ids`` and ``answer_prompt_mask`` ``(B, E, P)``, ``answer_ids``
        and ``answer_mask`` ``(B, E, L)``, if tasks have temperatures ``answer_temperature``
        ``(B, E)``, and ``answer_items``, the number of the answers' tokens on all processes.
        """
        trainer, size = self._trainer, self._trainer.num_generations
        each = math.ceil(trainer.args.sft_extra / size)
        extra = self._extra(len(call.rows) // size)
        rows: list[Any] = []
        for place, row in enumerate(call.rows):
            own = extra[place * each : (place + 1) * each]
            rows += [None if place % size else row, *own, *[None] * (each - len(own))]
        taught = [row and taught_answer(trainer, row, "sft") for row in rows]
        prompts = [(row or call.rows[0])["prompt"] for row in rows]
        encoded = trainer.processing_class(text=prompts)["input_ids"]
        answers = [answer[1] if answer else [] for answer in taught]
        columns = [*self._padded(encoded, "left"), *self._padded(answers, "right")]
        if (temperatures := trainer.temperatures(prompts)) is not None:
            columns.append(temperatures)
        split = [column.unflatten(0, (-1, 1 + each)) for column in columns]
        batch |= dict(zip((*_COLUMNS, "answer_temperature"), split, strict=False))
        batch["answer_items"] = on_all(trainer, batch["answer_mask"])

    def _extra(self, groups: int) -> list[Mapping[str, Any]]:
        """This process's rows of prompts that are not sampled, for so many groups that are."""
        trainer, count = self._trainer, self._trainer.args.sft_extra * groups
        if not count:
            return []
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        drawn = trainer.prompt_sampler.extra(count * processes, trainer.state.global_step, 0)
        return [trainer.train_dataset[row] for row in drawn[rank::processes]]

    def _padded(self, rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of tokens as one tensor, and the mask of their tokens."""
        padded = pad_rows(rows, self._trainer.processing_class.pad_token_id, side)
        tokens, mask = (column.to(self._trainer.accelerator.device) for column in padded.values())
        return tokens, mask

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """Add the answers, with their prompts, below the rows ``(B, T)`` of a micro-batch."""
        self.logps: torch.Tensor | None = None
        if call.inputs is None or "answer_ids" not in call.inputs:
            return rows
        return with_answers(rows, call.inputs)

    def after_scoring(self, call: Call, rows: Rows, scores: Scores) -> Scores:
        """Keep the answers' log-probs, and give those of the micro-batch."""
        if call.inputs is None or "answer_ids" not in call.inputs:
            return scores
        count, length = call.inputs["completion_ids"].shape
        logps, entropies, aux_loss = scores
        self.logps = logps[count:] * rows.mask[count:, -rows.length :]
        entropies = None if entropies is None else entropies[:count, :length]
        return Scores(logps[:count, :length], entropies, aux_loss)

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """See `Part`: none of the batch's rows, because the answers are rows of their own."""
        return torch.zeros(len(inputs["advantages"]), dtype=torch.bool)

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The supervised term."""
        if self.logps is None:
            return None
        trainer.tally("sft/loss", -self.logps.detach().sum(), inputs["answer_mask"].sum())
        total = -trainer.args.sft_coef * self.logps.sum()
        return per_item(trainer, total, inputs["answer_items"])


def with_answers(rows: Rows, inputs: Mapping[str, torch.Tensor]) -> Rows:
    """Rows ``(B, T)``, and below them the `g` answers of a micro-batch that are not empty."""
    ids, mask, length, temperatures = rows
    kept = inputs["answer_mask"].any(-1).T  # (E, B)
    prompts, prompt_mask, answers, answer_mask = (
        inputs[name].transpose(0, 1)[kept] for name in _COLUMNS
    )
    # Rounds that are joined have padding in between.
    order = prompt_mask.argsort(dim=1, stable=True)
    longest = max([length, *answer_mask.sum(1).tolist()])
    if temperatures is not None:
        temperatures = torch.cat([temperatures, inputs["answer_temperature"].T[kept]])
    return Rows(
        _below(ids, length, prompts.gather(1, order), answers[:, :longest]),
        _below(mask, length, prompt_mask.gather(1, order), answer_mask[:, :longest]),
        longest,
        temperatures,
    )


def _below(
    columns: torch.Tensor, length: int, prompts: torch.Tensor, answers: torch.Tensor
) -> torch.Tensor:
    """Rows ``(B, P + length)``, and prompts with answers below them."""
    before = pad([*columns[:, :-length], *prompts], 0, "left")
    after = pad([*columns[:, -length:], *answers], 0, "right")
    return torch.cat([before, after], dim=1)
