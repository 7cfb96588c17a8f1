"""The step, in the order in which it runs: sampling, signal, advantages, scores, the terms of the loss.

`Step` is TRL's `GRPOTrainer` with these of its methods overridden:

- `_generate_and_score_completions`: a round of completions becomes a batch to train on;
- `_generate_single_turn`: completions from our decoder, and right answers put among them;
- `_calculate_rewards`: rewards that fail leave their rows out;
- `_compute_loss`: the sum of the terms, of which TRL's loss is one;
- `_get_per_token_logps_and_entropies`: the scores that TRL's loss is computed from.

TRL adds no KL term and computes no reference, because its `beta` is 0; `kl_beta` is the recipe's. How a
trainer is put together is in `trainer.py`, what acts between steps in the callbacks that it lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from ..models.decoding import on_device
from ..rewards.guard import RewardGuard
from ..tasks.registry import NO_TASK, asked, row_task
from ..tasks.text import shown_text
from . import losses
from .advantages import Baseline, compared
from .arguments import StepArguments
from .exchanged import by_row
from .rollouts import (
    Batch,
    Rollouts,
    in_rows,
    in_units,
    loss_mask,
    of_images,
    on_host,
    resampled,
    rollout_metrics,
    skipped,
    task_rewards,
    trained_advantages,
    was_sampled,
    whole,
)
from .sampling import Samplings, draw, draws_itself, starting_model
from .scoring import Scorer, Scores, Sequences
from .step_log import StepLog
from .terms.right_answers import ask_ahead

if TYPE_CHECKING:
    from .terms.kept import Kept
    from .terms.moves import AllMoves
    from .terms.values import ValueHead


class Step(Samplings, StepLog, GRPOTrainer):
    """TRL's trainer with our step; `trainer.RookWorldGRPOTrainer` puts it together.

    Attributes:
        keys: The keys of the step beside TRL's.
        rollouts: What is known of the completions that are being sampled, or were last.
        sampled: This process's rows of the last batch, by prompt.
        keeps_logps: Whether a batch has the sampler's log-probs, ``sampling_per_token_logps``.
        scores_all_rows: Whether rows that cannot change the weights are scored nevertheless.
        baseline: What completions are compared with.
        value_head: Its advantages by token take the place of the baseline's; None if it is off.
        moves: The terms over all legal moves; None if they are off.
        kept: The term that keeps what the start knew; None if it is off.
    """

    keys: StepArguments
    prompt_sampler: Any
    rollouts: Rollouts
    sampled: Mapping[str, Mapping[str, Any]]
    keeps_logps: bool
    scores_all_rows: bool
    reward_guard: RewardGuard
    scorer: Scorer
    baseline: Baseline
    value_head: ValueHead | None
    moves: AllMoves | None
    kept: Kept | None
    kl_beta: float
    _scores: Scores | None = None  # what TRL's loss is computed from, while it is

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """A batch of units of rows that TRL shuffles and splits; TRL's own for one to evaluate."""
        if not self.model.training:
            self.rollouts = Rollouts(inputs, self.temperatures(inputs))
            return super()._generate_and_score_completions(inputs)
        batch = self.batch_of(self.with_signal(self.rollouts_of(inputs)))
        if of_images(batch):  # which TRL splits row by row
            return batch
        rows = len(batch["completion_ids"]) // self.args.steps_per_generation
        return in_units(batch, math.gcd(self.num_generations, rows))

    # --------------------------------------------------------------------------------------------
    # Sampling: a round of completions
    # --------------------------------------------------------------------------------------------
    def rollouts_of(self, inputs: Sequence[Mapping[str, Any]]) -> Rollouts:
        """One round: TRL samples, through the two methods below, and computes rewards and logs."""
        sampled = self.rollouts = Rollouts(inputs, self.temperatures(inputs))
        ask_ahead(self.reward_funcs, inputs)
        sampled.batch = super()._generate_and_score_completions(inputs)
        sampled.tasks = gather_object([row_task(row) or NO_TASK for row in inputs])
        sampled.tasks = sampled.drawn_tasks = sampled.tasks[:: self.num_generations]
        sampled.values = sampled.drawn = compared(
            sampled.rewards,
            self.reward_weights,
            self.num_generations,
            self.multi_objective_aggregation,
        )
        sampled.log = self.completion_log(len(sampled.values))
        self.record(task_rewards(self.total_rewards(sampled), sampled.tasks))
        self.record({"health/unscored": sampled.values.isnan().cpu().double().mean().item()})
        return sampled

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], list[list[Any]] | None]:
        """Sample each row in its own way, and put right answers into hopeless groups."""
        samplings = [self.sampling_of(row_task(row)) for row in self.rollouts.rows]
        if is_later := len(prompt_ids) != len(samplings):  # a turn of some rows that called tools
            samplings = [self.sampling] * len(prompt_ids)
        logps: list[list[Any]] | None
        if images is None and not is_later and draws_itself(self):
            drawn = draw(self, prompt_ids, samplings, self.keeps_logps)
            ids, logps = drawn.ids, drawn.logps
        else:
            with by_row(self, samplings):
                ids, logps = super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, has_tool_images
                )
        if self.model.training and self.keys.zero_variance == "teach":
            from .terms.right_answers import teach

            return teach(self, self.rollouts, ids, logps)
        return ids, logps

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        """Leave rows out that a reward failed on, and keep texts and rewards for the round.

        They are in double precision: in single, the mean of equal rewards is not quite that reward, and
        their deviation not quite 0.
        """
        with self.clock.phase("rewards"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            rewards = self.reward_guard.settle(rewards, self.record)
        if rewards.device.type != "mps":  # Apple's GPUs have no double precision
            rewards = rewards.double()
        self.rollouts.texts = [shown_text(completion) for completion in completions]
        self.rollouts.rewards = rewards
        return rewards

    # --------------------------------------------------------------------------------------------
    # A batch to train on: groups with signal, advantages, what the terms need
    # --------------------------------------------------------------------------------------------
    def with_signal(self, sampled: Rollouts) -> Rollouts:
        """The round to train on: groups without signal are kept, replaced or masked."""
        if self.keys.zero_variance == "resample":
            return resampled(self, sampled)
        if self.keys.zero_variance == "skip":
            return skipped(self, sampled)
        return sampled

    def batch_of(self, trained: Rollouts) -> Batch:
        """The columns of a batch of `B` rows: TRL's, with our advantages, and those of the terms."""
        trained.batch |= on_host(trained.batch)
        batch = trained.batch | self.advantages_of(trained)
        batch["row"] = torch.arange(len(trained.rows), device=self.accelerator.device)
        if trained.temperatures is not None:
            batch["temperature"] = self.temperatures(trained.rows)
        if trained.taught is not None:
            batch["taught"] = trained.taught
        if self.has_reference:
            batch["ref_per_token_logps"] = self.reference(batch)
        if self.keys.sft_coef:
            from .terms.supervised import answer_columns

            batch |= answer_columns(self, trained)
        if self.moves is not None:
            batch |= self.moves.columns(trained)
        self.rollouts = replace(trained, batch={})  # which is kept shuffled until it is used up
        self.sampled = {asked(row): row for row in trained.rows}
        values, are_trained = trained_advantages(batch)
        kept = values.masked_fill(~are_trained, torch.nan).cpu()
        kept = gather_object(kept[~kept.isnan()].tolist())
        masks = self.keys.zero_variance == "skip"
        self.record(rollout_metrics(trained, kept, masks))
        return batch

    def advantages_of(self, trained: Rollouts) -> Batch:
        """Advantages of a round, ``(B,)`` or by token ``(B, C)``; the log of completions follows."""
        if self.value_head is not None:
            totals = self.local_rows(self.total_rewards(trained).float())
            columns = self.value_head.columns(trained, totals)
            lengths = trained.batch["completion_mask"].sum(1).clamp(min=1)
            logged = self.accelerator.gather(columns["advantages"].sum(1) / lengths)
        else:
            values = trained.values.view(len(trained.tasks), -1)
            logged = self.baseline.advantages(values, trained.tasks).flatten()
            self.baseline.note(trained.drawn.view(-1, trained.size), trained.drawn_tasks)
            if self.keys.baseline != "group_mean":
                self.record({"baseline/mean": self.baseline.last})
            # What rounding leaves of equal rewards is 0, so that nothing is computed for such groups.
            columns = {"advantages": torch.hardshrink(self.local_rows(logged), 1e-6).float()}
        trained.log = {**trained.log, ("advantages", ""): logged.tolist()}
        self.log_completions_of(trained.log)
        return columns

    def reference(self, batch: Batch) -> torch.Tensor:
        """The starting model's log-probs ``(B, C)``, once for all groups that are trained on."""
        rows = Sequences(*whole(batch), batch.get("temperature"))
        size = self.args.per_device_train_batch_size
        with self.clock.phase("reference"), torch.no_grad(), starting_model(self) as network:
            return self.score(network, rows, size, **of_images(batch)).logps

    # --------------------------------------------------------------------------------------------
    # Scores: one forward for the loss
    # --------------------------------------------------------------------------------------------
    def score(
        self,
        network: torch.nn.Module,
        rows: Sequences,
        batch_size: int | None = None,
        head: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Scores:
        """Log-probs and entropies ``(B, length)`` of the last tokens of rows ``(B, T)``, as in the loss.

        `batch_size`: rows per forward; None takes all. `head` is a value head to read. `kwargs` are what
        TRL's method takes.
        """
        by_trl = super()._get_per_token_logps_and_entropies
        return self.scorer(network, rows, by_trl, batch_size, head, **kwargs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """What the loss has scored already; else, for TRL's ratios and evaluations, score now."""
        if self._scores is not None:
            return self._scores[:3]
        rows = Sequences(input_ids, attention_mask, logits_to_keep, self.rollouts.temperatures)
        phase = nullcontext() if torch.is_grad_enabled() else self.clock.phase("reference")
        with phase:
            return self.score(model, rows, batch_size, **kwargs)[:3]

    def scores_of(self, model: torch.nn.Module, batch: Batch) -> Scores:
        """The scores of a micro-batch, with those of right answers, from one forward."""
        counted = self.counted(batch)
        ids, mask, length = whole(batch)
        kept = mask[:, -length:] * counted.to(mask.device).unsqueeze(1)
        mask = torch.cat([mask[:, :-length], kept], dim=1)
        rows = Sequences(ids, mask, length, batch.get("temperature"))
        head = None if self.value_head is None else self.value_head.head
        more = {"compute_aux_loss": self.aux_loss_enabled, **of_images(batch)}

        def score(rows: Sequences) -> Scores:
            return self.score(model, rows, head=head, compute_entropy=True, **more)

        if "answers" in batch:
            from .terms.supervised import with_answers

            scores = with_answers(score, rows, batch["answers"])
        else:
            scores = score(rows)
        counted = on_device(counted, scores.logps.device)
        old = batch.get("old_per_token_logps")
        if old is not None:  # rows that are left out have a ratio of 1
            known = torch.where(counted.unsqueeze(1), scores.logps, old.to(scores.logps.dtype))
            scores = scores._replace(logps=known)
        return scores._replace(counted=counted)

    def counted(self, batch: Batch) -> torch.Tensor:
        """Which rows ``(B,)`` of a micro-batch can change the weights, on the host; others are left out.

        With a term that takes tokens of rows without advantages, all count. If none can, the shortest is
        scored nevertheless: the loss needs a graph on every process.
        """
        advantages = batch["advantages"]
        all_count = (
            self.scores_all_rows
            or "ref_per_token_logps" in batch
            or self.value_head is not None
            or self.use_adaptive_entropy
            or self.entropy_coef != 0
            or self.top_entropy_quantile < 1  # all rows decide which tokens count
            or not self.scorer.shares_prompts
        )
        if all_count:
            return torch.ones(len(advantages), dtype=torch.bool)
        counted = (advantages.view(len(advantages), -1) != 0).any(1).cpu()
        if not counted.any():
            lengths = batch["completion_mask"].sum(1).cpu()
            counted[lengths.where(lengths > 0, lengths.max() + 1).argmin()] = True
        return counted

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The sum of a micro-batch's terms."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        batch = in_rows(inputs)
        with self.clock.phase("loss"):
            scores = self.scores_of(model, batch)
            terms = self.terms(model, batch, scores)
        self.log_terms(terms, batch, scores)
        return losses.propagate_nonfinite(torch.stack([*terms.values()]).sum())

    def terms(
        self, model: torch.nn.Module, batch: Batch, scores: Scores
    ) -> dict[str, torch.Tensor]:
        """The terms of a micro-batch by name, each of them its share of the step's loss."""
        return {"policy": self.policy_term(model, batch, scores), **self.loss_terms(batch, scores)}

    def policy_term(self, model: torch.nn.Module, batch: Batch, scores: Scores) -> torch.Tensor:
        """TRL's loss, with its entropy bonus and the routers' loss if they are on, from our scores.

        TRL sees the rows that were sampled and are counted. What it divides by is recounted here.
        """
        assert scores.counted is not None
        seen = batch["completion_mask"] * scores.counted.unsqueeze(1) * was_sampled(batch)
        scale = batch.get("row_scale", 1.0)
        if self.loss_type == "bnpo":
            # A mean over the tokens of the micro-batch, also those of rows that TRL does not see.
            left = loss_mask({**batch, "completion_mask": seen}).sum()
            scale = scale * left.clamp(min=1) / loss_mask(batch).sum().clamp(min=1)
        self._scores = scores
        try:
            theirs = {"completion_mask": seen, "advantages": batch["advantages"] * scale}
            return super()._compute_loss(model, {**batch, **theirs})
        finally:
            self._scores = None

    def loss_terms(self, batch: Batch, scores: Scores) -> dict[str, torch.Tensor]:
        """The terms beside TRL's, by name; a subclass may add its own, see `mean`.

        Args:
            batch: Columns of `B` rows, see `batch_of`; ``completion_mask`` ``(B, C)`` has the tokens.
            scores: Of these rows: ``logps`` ``(B, C)`` with their graph, 0 for rows left out.
        """
        terms = {}
        if self.kl is not None:
            terms["kl"] = self.kl.term(batch, scores)
        if "taught" in batch:
            advantages = torch.where(batch["taught"], batch["advantages"], 0.0)
            terms["taught"] = self.mean(losses.taught(scores.logps, advantages), batch)
        if scores.values is not None:
            error = losses.value_error(scores.values, batch["returns"], batch["value_mask"])
            self.tally("value/loss", error.detach().sum(), batch["value_mask"].sum())
            terms["value"] = self.keys.value_coef * self.mean(error, batch)
        if scores.answers is not None:
            total = -scores.answers.sum()
            self.tally("sft/loss", total.detach(), batch["answer_tokens"].sum())
            total = self.keys.sft_coef * total
            terms["supervised"] = self.normaliser.over_items(total, batch["answer_items"])
        if self.moves is not None:
            terms["moves"] = self.moves.term(batch)
        if self.kept is not None:
            terms["keep"] = self.kept.term()
        return terms

    def mean(self, per_token: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The mean of a term ``(B, C)`` over tokens, as TRL takes it for the trainer's `loss_type`.

        A mean over rows is one over those that are not left out.
        """
        total = self.normaliser.over_tokens(
            per_token, loss_mask(batch), batch["num_items_in_batch"]
        )
        return batch.get("row_scale", 1.0) * total

    @property
    def normaliser(self) -> losses.Normaliser:
        """What sums over a micro-batch are divided by."""
        return losses.Normaliser(
            self.loss_type,
            self.current_gradient_accumulation_steps,
            self.args.steps_per_generation,
            self.accelerator.num_processes,
            self.max_completion_length,
        )
