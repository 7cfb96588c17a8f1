"""The KL term, its coefficient, and how this is adapted after each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from .arguments import StepArguments
from .losses import importance_weighted, log_importance, per_token_kl
from .rollouts import Batch, loss_mask, was_sampled
from .scoring import Scores

if TYPE_CHECKING:
    from .step import Step

_WAIT = 2  # steps that are judged together
_MOVED = 0.05  # share by which the KL must change to count as more than noise


@dataclass
class KLController:
    """The coefficient of the KL term, step by step.

    - ``proportional``: ``beta *= 1 + clip(kl / target - 1, ±0.2) * completions / horizon`` (D. Ziegler
      et al., "Fine-tuning language models from human preferences", 2019).
    - ``multiplicative``: times 1.5 if the KL is above 1.5 * target, divided by 1.5 if it is below
      target / 1.5 (PPO's adaptive penalty, J. Schulman et al., 2017, with 1.5 in place of 2).

    A policy moves a little with every step, so its KL reacts to the coefficient only tens of steps
    later. Both forms overshoot for that reason: while a new policy is still on its way to the target,
    they lower the coefficient to almost 0, and then take as long to raise it again. So here two steps
    are judged together, and the coefficient is left alone while the KL, on one side of the target, moves
    towards it by over 5% from judgement to judgement.

    Args:
        beta: The first coefficient.
        args: The keys that begin with ``kl_``.

    Attributes:
        start: The first coefficient; `beta` moves on.
        measured: KL and completions of each of the steps since the last judgement.
        before: The KL at the last judgement; None before the first.
        verdict: What the last judgement did to the coefficient: 1 raised it, -1 lowered it, 0 left it.
    """

    beta: float
    args: StepArguments
    measured: list[list[float]] = field(default_factory=list)
    before: float | None = None
    verdict: int = 0

    def __post_init__(self) -> None:
        self.start = self.beta

    def coefficient(self, step: int) -> float:
        """The coefficient of the KL term at an optimiser step, counted from 0."""
        warmup = self.args.kl_warmup_steps
        return self.beta * step / warmup if step < warmup else self.beta

    def update(self, kl: float, completions: int, step: int) -> None:
        """Adapt the coefficient to a measured KL, except during the warm-up.

        Args:
            kl: Mean over the tokens of an optimiser step on all processes, in nats.
            completions: The number of completions in the step.
            step: The step's number, from 0.
        """
        target = self.args.kl_target
        if self.args.kl_control == "fixed" or target is None or step < self.args.kl_warmup_steps:
            return
        self.measured.append([kl, completions])
        if len(self.measured) < _WAIT:
            return
        kl = sum(kl for kl, _ in self.measured) / len(self.measured)
        completions = int(sum(count for _, count in self.measured))
        before = self.before
        is_returning = before is not None and (
            kl > (1 + _MOVED) * before if kl < target else kl < (1 - _MOVED) * before
        )
        self.measured, self.before = [], kl
        beta = self.beta
        if not is_returning:
            self._adapt(kl, completions, target)
        self.verdict = (self.beta > beta) - (self.beta < beta)

    def numbers(self) -> dict[str, float]:
        """What the latest judgement went by, for the log of its step; empty for a fixed coefficient."""
        if self.args.kl_target is None:
            return {}
        judged = {} if self.before is None else {"kl/window": self.before}
        return {"kl/target": self.args.kl_target, **judged, "kl/verdict": float(self.verdict)}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {name: value for name, value in vars(self).items() if name != "args"}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, unless the run goes on from another first coefficient."""
        if self.args.kl_control == "adaptive" and state["start"] == self.start:
            vars(self).update(state)

    def _adapt(self, kl: float, completions: int, target: float) -> None:
        if self.args.kl_adaptation == "proportional":
            error = min(0.2, max(-0.2, kl / target - 1))
            self.beta *= 1 + error * completions / self.args.kl_horizon
        elif kl > 1.5 * target:
            self.beta *= 1.5
        elif kl < target / 1.5:
            self.beta /= 1.5


class KLControl(TrainerCallback):
    """The KL term of the loss; its coefficient is adapted after each step.

    Args:
        trainer: One with a reference.

    Attributes:
        controller: The coefficient.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        self.controller = KLController(trainer.kl_beta, trainer.keys)

    def term(self, batch: Batch, scores: Scores) -> torch.Tensor:
        """The KL to the reference times the step's coefficient; the numbers that are logged."""
        trainer = self._trainer
        kl, clamped = self.per_token(batch, scores.logps)
        coefficient = self.controller.coefficient(trainer.state.global_step)
        found, mask = kl.detach(), loss_mask(batch) * was_sampled(batch)
        pulls = batch["advantages"].abs()
        pulls = pulls if pulls.dim() > 1 else pulls.unsqueeze(1)
        ours = coefficient * (found.abs() * mask).sum()
        trainer.tally("kl", (found * mask).sum(), mask.sum())
        trainer.tally("kl/coefficient", coefficient, 1)
        trainer.tally("kl/clamped_share", (clamped * mask).sum(), mask.sum())
        trainer.tally("kl/share_of_loss", ours, ours + (pulls * loss_mask(batch)).sum())
        return coefficient * trainer.mean(kl, batch)

    def per_token(self, batch: Batch, logps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """KL by token as used in the loss, and which log-ratios were clamped, ``(B, C)`` each."""
        trainer, estimator = self._trainer, self._trainer.keys.kl_estimator
        kl, clamped = per_token_kl(logps, batch["ref_per_token_logps"], estimator)
        if trainer.args.use_bias_correction_kl:
            old, level = batch.get("old_per_token_logps"), trainer.importance_sampling_level
            ratios = log_importance(logps, old, loss_mask(batch), level)
            kl = importance_weighted(kl, ratios, estimator)
        sampled = was_sampled(batch)  # which the estimators need
        return kl * sampled, clamped & sampled

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judge the step's KL; one that is not finite says nothing, and its step was skipped.

        All processes have the same sums, so they get the same coefficient.
        """
        total, tokens = self._trainer.settled.get("kl", (0.0, 0.0))
        if tokens and math.isfinite(total):  # `global_step` already counts the step that has ended
            completions = args.per_device_train_batch_size * args.world_size
            completions *= self._trainer.current_gradient_accumulation_steps
            self.controller.update(total / tokens, completions, state.global_step - 1)
