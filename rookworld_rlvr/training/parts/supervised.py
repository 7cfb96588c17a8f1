"""A supervised term: the likelihood of right answers, beside what is learnt from rewards.

The term is the mean negative log-likelihood of the answers' tokens, in nats, at the temperature of
sampling (CHORD: W. Zhang et al., "On-policy RL meets off-policy experts", 2025, arXiv 2508.11408,
weighs the two in one loss). The answers go through the network with the completions of their group, so
that they share its prompt. Prompts that are not sampled can add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from trl.trainer.utils import pad

from .part import Batch, Call, Part, Rows, Scores
from .teaching import taught_answer


class Supervised(Part):
    """Adds the negative log-likelihood of right answers to the loss.

    Args:
        trainer: The `RookWorldGRPOTrainer`.

    Attributes:
        logps: Log-probs ``(g, L)`` of the answers of the micro-batch, 0 for padding; None without any.
    """

    loss_term = "supervised"
    teaches = True

    def __init__(self, trainer: Any) -> None:
        self.args = trainer.args
        self.logps: torch.Tensor | None = None
        self._trainer = trainer

    @classmethod
    def of(cls, trainer: Any) -> Supervised:
        return cls(trainer)

    def extend(self, call: Call, batch: Batch) -> None:
        """Add a right answer of each group to a batch, in its first row; none if it cannot be learnt.

        The columns are ``answer_ids`` and ``answer_mask`` ``(B, L)``, those of `_add_extra`, and
        ``answer_items``, the number of the answers' tokens on all processes.
        """
        trainer, size = self._trainer, self._trainer.num_generations
        ids: list[list[int]] = []
        for row in call.rows[::size]:
            answer = taught_answer(trainer, row, "sft")
            ids += [answer[1] if answer else [], *[[]] * (size - 1)]
        batch["answer_ids"], batch["answer_mask"] = self._padded(ids, "right")
        tokens = batch["answer_mask"].sum()
        if self.args.sft_extra:
            self._add_extra(batch, len(ids) // size)
            tokens = tokens + batch["extra_mask"].sum()
        batch["answer_items"] = trainer.accelerator.gather(tokens).sum()

    def _add_extra(self, batch: Batch, groups: int) -> None:
        """Add prompts that are not sampled to a batch of `B` rows, with their right answers.

        Each row takes `E` of them: ``extra_prompt_ids`` and ``extra_prompt_mask`` ``(B, E, P)``,
        ``extra_ids`` and ``extra_mask`` ``(B, E, L)`` and, if tasks have temperatures,
        ``extra_temperature`` ``(B, E)``.
        """
        trainer = self._trainer
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        count = self.args.sft_extra * groups
        drawn = trainer.prompt_sampler.extra(count * processes, trainer.state.global_step, 0)
        rows = [trainer.train_dataset[row] for row in drawn[rank::processes]]
        found = [taught_answer(trainer, row, "sft") for row in rows]
        each = math.ceil(self.args.sft_extra / trainer.num_generations)  # E
        free = groups * trainer.num_generations * each - len(rows)
        texts = [row["prompt"] for row in rows] + [rows[0]["prompt"]] * free
        answers = [answer[1] if answer else [] for answer in found] + [[]] * free
        prompts = [trainer.processing_class(text)["input_ids"] for text in texts]
        columns = {}
        columns["extra_prompt_ids"], columns["extra_prompt_mask"] = self._padded(prompts, "left")
        columns["extra_ids"], columns["extra_mask"] = self._padded(answers, "right")
        temperatures = trainer.temperatures(texts)
        if temperatures is not None:
            columns["extra_temperature"] = temperatures
        batch |= {name: column.unflatten(0, (-1, each)) for name, column in columns.items()}

    def _padded(
        self, rows: Sequence[Sequence[int]], side: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of tokens as one tensor, and the mask of their tokens."""
        tokens = [torch.tensor(row, dtype=torch.long) for row in rows]
        fill, device = self._trainer.processing_class.pad_token_id, self._trainer.accelerator.device
        masks = [torch.ones_like(row) for row in tokens]
        return pad(tokens, fill, side).to(device), pad(masks, 0, side).to(device)

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """Add the answers, with their prompts, below the rows ``(B, T)`` of a micro-batch."""
        self.logps = None
        if call.inputs is None or "answer_ids" not in call.inputs:
            return rows
        return _with_answers(rows, call.inputs)

    def after_scoring(self, call: Call, rows: Rows, scores: Scores) -> Scores:
        """Keep the answers' log-probs, and give those of the micro-batch."""
        if call.inputs is None or "answer_ids" not in call.inputs:
            return scores
        count, length = call.inputs["completion_ids"].shape
        logps, entropies, aux_loss = scores
        self.logps = logps[count:] * rows.mask[count:, -rows.length :]
        entropies = None if entropies is None else entropies[:count, :length]
        return Scores(logps[:count, :length], entropies, aux_loss)

    def answer_logps(self, sampled: Rows, places: Sequence[int], answers: Rows) -> torch.Tensor:
        """See `Part`: the answers are rows below the completions."""
        columns = {}
        for name, column in (("answer_ids", answers.ids), ("answer_mask", answers.mask)):
            columns[name] = column.new_zeros(len(sampled.ids), answers.length)
            columns[name][places] = column[:, -answers.length :]
        rows = _with_answers(sampled, columns)
        logps: torch.Tensor = self._trainer.log_probs(self._trainer.model, *rows).logps
        return logps[len(sampled.ids) :, : answers.length]

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """See `Part`: none of the batch's rows, because the answers are rows of their own."""
        return torch.zeros(len(inputs["advantages"]), dtype=torch.bool)

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The supervised term."""
        if self.logps is None:
            return None
        tokens = sum(inputs[name].sum() for name in ("answer_mask", "extra_mask") if name in inputs)
        self._log(-self.logps.detach().sum(), tokens)
        return self.weighted(self.logps, inputs)

    def weighted(self, logps: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """What the answers' log-probs ``(g, L)`` add to the loss."""
        trainer = self._trainer
        # `answer_items` spans the generation, of which a step takes a part.
        steps = trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation
        items = inputs["answer_items"].clamp(min=1) / trainer.accelerator.num_processes * steps
        loss: torch.Tensor = -self.args.sft_coef * logps.sum() / items
        return loss

    def _log(self, loss: torch.Tensor, tokens: torch.Tensor) -> None:
        total = self._trainer.accelerator.reduce(torch.stack([loss, tokens.to(loss)]), "sum")
        if total[1]:
            self._trainer.record({"sft/loss": (total[0] / total[1]).item()})


class _Answers(NamedTuple):
    """The `g` answers of a micro-batch with their prompts."""

    prompts: torch.Tensor  # (g, P), padded on the left
    prompt_mask: torch.Tensor  # (g, P)
    ids: torch.Tensor  # (g, L), padded on the right
    mask: torch.Tensor  # (g, L)
    temperatures: torch.Tensor  # (g,), or empty


def _with_answers(rows: Rows, inputs: Mapping[str, torch.Tensor]) -> Rows:
    ids, mask, length, temperatures = rows
    answers = _answers(inputs, ids[:, :-length], mask[:, :-length], temperatures)
    longest = max([length, *answers.mask.sum(1).tolist()])
    if temperatures is not None:
        temperatures = torch.cat([temperatures, answers.temperatures])
    return Rows(
        _below(ids, length, answers.prompts, answers.ids, longest),
        _below(mask, length, answers.prompt_mask, answers.mask, longest),
        longest,
        temperatures,
    )


def _answers(
    inputs: Mapping[str, torch.Tensor],
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    temperatures: torch.Tensor | None,
) -> _Answers:
    """The answers to some of the prompts ``(B, P)``, and to those that were not sampled."""
    heat = prompts.new_zeros(len(prompts)) if temperatures is None else temperatures
    columns = (prompts, prompt_mask, inputs["answer_ids"], inputs["answer_mask"], heat)
    rows = inputs["answer_mask"].any(1)
    answers = _Answers(*(column[rows] for column in columns))
    if "extra_ids" not in inputs:
        return answers
    names = (
        "extra_prompt_ids",
        "extra_prompt_mask",
        "extra_ids",
        "extra_mask",
        "extra_temperature",
    )
    kept = inputs["extra_mask"].any(2)  # (B, E)
    extra = _Answers(*(inputs[name][kept] if name in inputs else heat[:0] for name in names))
    return _Answers(
        _stacked(answers.prompts, extra.prompts, "left"),
        _stacked(answers.prompt_mask, extra.prompt_mask, "left"),
        _stacked(answers.ids, extra.ids, "right"),
        _stacked(answers.mask, extra.mask, "right"),
        torch.cat([answers.temperatures, extra.temperatures]),
    )


def _stacked(above: torch.Tensor, below: torch.Tensor, side: str) -> torch.Tensor:
    """Rows ``(a, W)`` and ``(b, V)`` as one tensor, the narrower ones padded with zeros."""
    width = max(above.size(1), below.size(1))
    return torch.cat([_width(above, width, side), _width(below, width, side)])


def _below(
    columns: torch.Tensor,
    length: int,
    prompts: torch.Tensor,
    answers: torch.Tensor,
    longest: int,
) -> torch.Tensor:
    """Rows ``(B, P + length)`` and below them prompts with answers, all with `longest` columns after."""
    before = _stacked(columns[:, :-length], prompts, "left")
    after = _stacked(_width(columns[:, -length:], longest), _width(answers, longest), "right")
    return torch.cat([before, after], dim=1)


def _width(columns: torch.Tensor, width: int, side: str = "right") -> torch.Tensor:
    """Columns ``(B, C)`` as ``(B, width)``, cut off or padded with zeros on a side."""
    missing = width - columns.size(1)
    return torch.nn.functional.pad(columns, (missing, 0) if side == "left" else (0, missing))
