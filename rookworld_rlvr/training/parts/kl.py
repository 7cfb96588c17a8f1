"""KL to the reference: estimators from sampled log-probs, and controllers of the coefficient.

Every estimator uses only the log-probs of the sampled tokens, the policy's `p` and the reference's `r`,
so none needs logits or another forward pass. With ``x = log r - log p``:

=============  ==================================  ========================================
estimator      value per token                     what its gradient descends, on policy
=============  ==================================  ========================================
``k1``         ``-x``, unbiased for KL(p‖r)        nothing: it is 0 in expectation
``k2``         ``x² / 2``, biased                  KL(p‖r)
``k3``         ``exp(x) - x - 1``, unbiased        KL(r‖p), as TRL has it
``reverse``    of ``k3``                           KL(p‖r), by ``k2``'s
``forward``    ``x exp(x) - exp(x) + 1``,          KL(r‖p), by ``k3``'s
               unbiased for KL(r‖p)
``symmetric``  mean of the last two                mean of both
=============  ==================================  ========================================

TRL's `use_bias_correction_kl`, on by default, weights a token by its importance ratio. The ratio is 1 on
policy, but its gradient is not 0: with it, k1 and k3 descend KL(p‖r), which their values estimate
(DeepSeek-V3.2, 2025). The last three have the right gradient by themselves, so no gradient flows through
their weights.

Sources: J. Schulman, "Approximating KL divergence" (2020), for k1 to k3. Y. Tang and R. Munos, "On a few
pitfalls in KL divergence gradient estimation for RL" (2025), show that the value and the gradient of one
estimator may belong to different divergences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .aggregation import aggregate, log_importance
from .groups import sampled_rows
from .part import Call, Part
from .registry import KLEstimator, PartArguments, arguments_of

Estimator = Callable[[torch.Tensor], torch.Tensor]

LOG_RATIO_BOUND = 20.0  # nats; log-ratios are clamped to it, so that `exp` stays finite
_WAIT = 2  # steps that are judged together
_MOVED = 0.05  # share by which the KL must change to count as more than noise


def _k2(x: torch.Tensor) -> torch.Tensor:
    return x.square() / 2


def _k3(x: torch.Tensor) -> torch.Tensor:
    return x.exp() - x - 1


def _value_and_gradient(value: torch.Tensor, surrogate: torch.Tensor) -> torch.Tensor:
    """A tensor with the value of the first and the gradient of the second."""
    return value.detach() + surrogate - surrogate.detach()


def _reverse(x: torch.Tensor) -> torch.Tensor:
    return _value_and_gradient(_k3(x), _k2(x))


def _forward(x: torch.Tensor) -> torch.Tensor:
    return _value_and_gradient(x * x.exp() - x.exp() + 1, _k3(x))


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    return (_reverse(x) + _forward(x)) / 2


ESTIMATORS: Mapping[KLEstimator, Estimator] = {
    "k1": torch.neg,
    "k2": _k2,
    "k3": _k3,
    "reverse": _reverse,
    "forward": _forward,
    "symmetric": _symmetric,
}


def per_token_kl(
    logps: torch.Tensor, reference_logps: torch.Tensor, estimator: KLEstimator
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL of each sampled token, and which log-ratios were clamped.

    Args:
        logps: The policy's log-probs ``(B, T)``, with gradient.
        reference_logps: The reference's log-probs ``(B, T)``.
        estimator: A key of `ESTIMATORS`.

    Returns:
        KL ``(B, T)`` in nats, and a mask ``(B, T)`` of the clamped tokens, which have no gradient.
    """
    ratio = reference_logps - logps
    clamped = ratio.abs() > LOG_RATIO_BOUND
    return ESTIMATORS[estimator](ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)), clamped


def importance_weighted(
    kl: torch.Tensor, log_weights: torch.Tensor, estimator: KLEstimator
) -> torch.Tensor:
    """KL ``(B, T)`` weighted by how much likelier a token is now than when it was sampled.

    Args:
        kl: The result of `per_token_kl`.
        log_weights: The policy's log-probs now minus those when sampled, ``(B, T)`` or ``(B, 1)``.
        estimator: A key of `ESTIMATORS`.
    """
    weights = log_weights.exp()
    return kl * (weights if estimator in ("k1", "k2", "k3") else weights.detach())


# --------------------------------------------------------------------------------------------------
# The coefficient
# --------------------------------------------------------------------------------------------------
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
        args: The part's keys.

    Attributes:
        start: The first coefficient; `beta` moves on.
        measured: KL and completions of each of the steps since the last judgement.
        before: The KL at the last judgement; None before the first.
        verdict: What the last judgement did to the coefficient: 1 raised it, -1 lowered it, 0 left it.
    """

    beta: float
    args: PartArguments
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
        returns = before is not None and (
            kl > (1 + _MOVED) * before if kl < target else kl < (1 - _MOVED) * before
        )
        self.measured, self.before = [], kl
        beta = self.beta
        if not returns:
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


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class KLTerm(Part):
    """Adds the KL to the reference to the loss, controls its coefficient, and logs both."""

    loss_term = "kl"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.args = arguments_of(trainer.args)
        self.controller = KLController(trainer.args.beta, self.args)

    def per_token(
        self, logps: torch.Tensor, inputs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """KL by token as used in the loss, and which log-ratios were clamped, ``(B, T)`` each."""
        estimator = self.args.kl_estimator
        kl, clamped = per_token_kl(logps, inputs["ref_per_token_logps"], estimator)
        if self._trainer.args.use_bias_correction_kl:
            kl = importance_weighted(kl, log_importance(self._trainer, logps, inputs), estimator)
        sampled = sampled_rows(inputs)  # which the estimators need
        return kl * sampled, clamped & sampled

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The KL term with the current coefficient."""
        if inputs.get("ref_per_token_logps") is None:
            return None
        assert call.scores is not None
        kl, clamped = self.per_token(call.scores.logps, inputs)
        trainer.beta = self.controller.coefficient(trainer.state.global_step)
        self._count(kl.detach(), clamped, inputs)
        return trainer.beta * aggregate(trainer, kl, inputs)

    @torch.no_grad()
    def _count(self, kl: torch.Tensor, clamped: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        trainer, mask = self._trainer, inputs["completion_mask"] * sampled_rows(inputs)
        advantages = (inputs["advantages"] + inputs.get("taught_advantages", 0)).abs()
        pulls = advantages if advantages.dim() > 1 else advantages.unsqueeze(1)
        # The advantages have the scale already.
        ours = trainer.beta * inputs.get("row_scale", 1) * (kl.abs() * mask).sum()
        theirs = (pulls * inputs["completion_mask"]).sum()
        trainer.tally("kl", (kl * mask).sum(), mask.sum())
        trainer.tally("kl/coefficient", trainer.beta * len(kl), len(kl))
        trainer.tally("kl/clamped_share", (clamped * mask).sum(), mask.sum())
        trainer.tally("kl/share_of_loss", ours, ours + theirs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adapt the coefficient; all processes have the same sums, so they get the same result.

        A KL that is not finite says nothing about the policy: `parts.steps` has skipped its step.
        """
        settled = self._trainer.settled
        total, tokens = settled.get("kl", (0.0, 0.0))
        if tokens and math.isfinite(total):  # `global_step` already counts the step that has ended
            completions = int(settled["kl/coefficient"][1])
            self.controller.update(total / tokens, completions, state.global_step - 1)

    def numbers(self) -> dict[str, float]:
        return self.controller.numbers()

    def state(self) -> dict[str, Any]:
        return {"kl": self.controller.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        if "kl" in state:
            self.controller.load(state["kl"])
