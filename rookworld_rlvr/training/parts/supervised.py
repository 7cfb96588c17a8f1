"""A supervised term: the likelihood of right answers, beside what is learnt from rewards.

The term is the mean negative log-likelihood of the answers' tokens, in nats, at the temperature of
sampling (CHORD: W. Zhang et al., "On-policy RL meets off-policy experts", 2025, arXiv 2508.11408,
weighs the two in one loss). The answers go through the network with the completions of their group, so
that they share its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from trl import GRPOConfig
from trl.trainer.utils import pad

from ...common.settings import setting
from .groups import row_scale, torn_groups
from .part import Call, Part, Scores, arguments_of
from .right import taught_answer


@dataclass
class SupervisedArguments:
    """The supervised term of the loss."""

    sft_coef: float = setting(
        0.0,
        "Coefficient of a supervised term: the mean negative log-likelihood of right answers, in nats a "
        "token. 0 leaves it out.",
        least=0,
    )
    sft_on: Literal["all", "hopeless"] = setting(
        "all",
        "The prompts whose right answers the supervised term takes: all, or those of groups without a "
        "right completion (hopeless).",
    )
    sft_warmup_steps: int = setting(
        0, "The number of optimiser steps over which sft_coef rises linearly from 0.", least=0
    )
    sft_decay_steps: int = setting(
        0,
        "The number of optimiser steps after the warm-up over which sft_coef falls linearly to 0; with "
        "0 it stays.",
        least=0,
    )

    def supervised_faults(self, args: GRPOConfig) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        if not self.sft_coef:
            return [
                f"{key.name}: sft_coef: 0 ignores it; set sft_coef, or leave {key.name} out"
                for key in fields(SupervisedArguments)
                if getattr(self, key.name) != key.default
            ]
        faults = []
        if args.advantage_estimator != "group":
            faults.append(
                "sft_coef: the value head of advantage_estimator: gae cannot judge right answers; set "
                "advantage_estimator: group, or leave sft_coef out"
            )
        if args.shape_buckets or (args.torch_compile and args.shape_buckets is None):
            faults.append(
                "sft_coef: right answers change the number of rows, which shape_buckets keeps constant; "
                "set shape_buckets: [], or leave sft_coef out"
            )
        return faults

    def supervised_group_faults(self, args: GRPOConfig, processes: int) -> list[str]:
        """Faults that show once TRL has computed the batch sizes, one sentence each."""
        return torn_groups("sft_coef", args, processes) if self.sft_coef else []


class Supervised(Part):
    """Adds the negative log-likelihood of right answers to the loss.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        args: The part's keys.
    """

    def __init__(self, trainer: Any, args: SupervisedArguments) -> None:
        self.args = args
        self._trainer = trainer

    @classmethod
    def of(cls, trainer: Any) -> Supervised | None:
        """The part, if the trainer's arguments ask for it."""
        args = arguments_of(trainer.args, SupervisedArguments)
        return cls(trainer, args) if args.sft_coef else None

    def coefficient(self, step: int) -> float:
        """The term's coefficient at an optimiser step, counted from 0."""
        warmup, decay = self.args.sft_warmup_steps, self.args.sft_decay_steps
        if step < warmup:
            return self.args.sft_coef * step / warmup
        if not decay:
            return self.args.sft_coef
        return self.args.sft_coef * max(0.0, 1 - (step - warmup) / decay)

    def choose(self, call: Call) -> None:
        """Choose a right answer of each of a round's `P` groups; empty if it is not to be learnt."""
        assert call.right is not None
        trainer, size = self._trainer, self._trainer.num_generations
        step = trainer.state.global_step
        if step >= self.args.sft_warmup_steps and not self.coefficient(step):
            return  # the decay is over
        call.answers = []
        for group, row in zip(call.right.view(-1, size), call.rows[::size], strict=True):
            wanted = self.args.sft_on == "all" or not group.any()
            found = taught_answer(trainer, row, "sft") if wanted else None
            call.answers.append(found[1] if found else [])

    def guide(self, batch: dict[str, torch.Tensor], call: Call) -> None:
        """Add the chosen answers to a batch, each in its group's first row.

        The columns are ``answer_ids`` and ``answer_mask`` ``(B, L)``, and ``answer_items``, the number
        of the answers' tokens on all processes.
        """
        if call.answers is None:
            return
        trainer, size = self._trainer, self._trainer.num_generations
        ids: list[torch.Tensor] = []
        for answer in call.answers:
            tokens = torch.tensor(answer, dtype=torch.long)
            ids += [tokens, *[tokens[:0]] * (size - 1)]
        device = batch["completion_ids"].device
        fill = trainer.processing_class.pad_token_id
        batch["answer_ids"] = pad(ids, fill, "right").to(device)
        batch["answer_mask"] = pad([torch.ones_like(row) for row in ids], 0, "right").to(device)
        batch["answer_items"] = trainer.accelerator.gather(batch["answer_mask"].sum()).sum()

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def score(
        self,
        call: Call,
        inputs: Mapping[str, torch.Tensor],
        score: Callable[..., Scores],
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        temperatures: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Scores:
        """Score the rows ``(B, T)`` of a micro-batch and its answers; keep the answers' log-probs."""
        rows = inputs["answer_mask"].any(1).nonzero().squeeze(1)  # (g,)
        answers, kept = inputs["answer_ids"][rows], inputs["answer_mask"][rows]
        longest = max([length, *kept.sum(1).tolist()])
        if temperatures is not None:
            temperatures = torch.cat([temperatures, temperatures[rows]])
        logps, entropies, aux_loss = score(
            _with_answers(ids, answers, rows, length, longest),
            _with_answers(mask, kept, rows, length, longest),
            longest,
            temperatures,
            **kwargs,
        )
        count = ids.size(0)
        call.answer_logps = logps[count:] * _width(kept, longest)
        entropies = None if entropies is None else entropies[:count, :length]
        return Scores(logps[:count, :length], entropies, aux_loss)

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """See `Part`: none of the batch's rows, because the answers are rows of their own."""
        return torch.zeros(len(inputs["advantages"]), dtype=torch.bool)

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The supervised term with the current coefficient."""
        if call.answer_logps is None:
            return None
        coefficient = self.coefficient(trainer.state.global_step)
        self._log(-call.answer_logps.detach().sum(), inputs["answer_mask"].sum(), coefficient)
        # The trainer multiplies all terms by this scale, but no answer was left out.
        return self.weighted(call.answer_logps, inputs) / row_scale(trainer.loss_type, inputs)

    def weighted(self, logps: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """What the answers' log-probs ``(g, L)`` add to the loss, with the current coefficient."""
        trainer = self._trainer
        # `answer_items` spans the generation, of which a step takes a part.
        steps = trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation
        items = inputs["answer_items"].clamp(min=1) / trainer.accelerator.num_processes * steps
        loss: torch.Tensor = -self.coefficient(trainer.state.global_step) * logps.sum() / items
        return loss

    def _log(self, loss: torch.Tensor, tokens: torch.Tensor, coefficient: float) -> None:
        total = self._trainer.accelerator.reduce(torch.stack([loss, tokens.to(loss)]), "sum")
        if total[1]:
            self._trainer.record({"sft/loss": (total[0] / total[1]).item()})
        self._trainer.record({"sft/coefficient": coefficient})


def _with_answers(
    columns: torch.Tensor, answers: torch.Tensor, rows: torch.Tensor, length: int, longest: int
) -> torch.Tensor:
    """Rows ``(B, P + length)`` and below them answers to `rows`, ``(B + g, P + longest)``."""
    prompts, completions = columns[:, :-length], columns[:, -length:]
    below = torch.cat([prompts[rows], _width(answers, longest)], dim=1)
    return torch.cat([torch.cat([prompts, _width(completions, longest)], dim=1), below])


def _width(columns: torch.Tensor, longest: int) -> torch.Tensor:
    """Columns ``(B, C)`` as ``(B, longest)``, cut off or padded with zeros on the right."""
    return torch.nn.functional.pad(columns, (0, longest - columns.size(1)))
