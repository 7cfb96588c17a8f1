"""KL to the reference: estimators from sampled log-probs, and controllers of the coefficient.

Every estimator takes the log-probs of the tokens that were sampled, the policy's `p` and the
reference's `r`, so none needs logits or a second forward pass. With ``x = log r - log p``:

=============  ==================================  ========================================
estimator      value a token                       what its gradient descends, on policy
=============  ==================================  ========================================
``k1``         ``-x``, unbiased for KL(p‖r)        nothing: it is 0 in expectation
``k2``         ``x² / 2``, biased                  KL(p‖r)
``k3``         ``exp(x) - x - 1``, unbiased        KL(r‖p), as TRL has it
``reverse``    of ``k3``                           KL(p‖r), by ``k2``'s
``forward``    ``x exp(x) - exp(x) + 1``,          KL(r‖p), by ``k3``'s
               unbiased for KL(r‖p)
``symmetric``  mean of the last two                mean of both
=============  ==================================  ========================================

TRL's `use_bias_correction_kl`, on by default, weighs a token by its importance ratio. The ratio is 1 on
policy, but its gradient is not 0: with it k1 and k3 descend KL(p‖r), which their values estimate
(DeepSeek-V3.2, 2025). The last three have the right gradient as they stand and are weighed without it.

Sources: J. Schulman, "Approximating KL divergence" (2020), for k1 to k3; that the value and the
gradient of one estimator belong to different divergences is worked out in Y. Tang and R. Munos, "On a
few pitfalls in KL divergence gradient estimation for RL" (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Estimator = Callable[[torch.Tensor], torch.Tensor]


def _k1(x: torch.Tensor) -> torch.Tensor:
    return -x


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


ESTIMATORS: Mapping[str, Estimator] = {
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "reverse": _reverse,
    "forward": _forward,
    "symmetric": _symmetric,
}


def per_token_kl(
    logps: torch.Tensor, reference_logps: torch.Tensor, estimator: str, bound: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL of each sampled token, and where its log-ratio was out of bounds.

    Args:
        logps: Of the policy, ``(B, T)``, with gradient.
        reference_logps: Of the reference, ``(B, T)``.
        estimator: A name of `ESTIMATORS`.
        bound: Log-ratios are held within ±bound nats, so that `exp` stays finite; a token held there
            has no gradient.

    Returns:
        KL ``(B, T)`` in nats, and a mask ``(B, T)`` of the tokens that were held.
    """
    ratio = reference_logps - logps
    held = ratio.abs() > bound
    return ESTIMATORS[estimator](ratio.clamp(-bound, bound)), held


def importance_weighted(
    kl: torch.Tensor, log_weights: torch.Tensor, estimator: str
) -> torch.Tensor:
    """KL ``(B, T)`` weighed by how much likelier a token is now than when it was sampled.

    Args:
        kl: Of `per_token_kl`.
        log_weights: Log-probs of the policy less those when it sampled, ``(B, T)`` or ``(B, 1)``.
        estimator: A name of `ESTIMATORS`.
    """
    weights = log_weights.exp()
    return kl * (weights if estimator in ("k1", "k2", "k3") else weights.detach())


# --------------------------------------------------------------------------------------------------
# Controllers of the coefficient
# --------------------------------------------------------------------------------------------------
KL_CONTROLS = ("fixed", "adaptive")


KL_ADAPTATIONS = ("proportional", "multiplicative")


@dataclass
class KLController:
    """The coefficient of the KL term, step by step.

    - ``proportional``: ``beta *= 1 + clip(kl / target - 1, ±0.2) * completions / horizon`` (D. Ziegler
      et al., "Fine-tuning language models from human preferences", 2019).
    - ``multiplicative``: times 1.5 above 1.5 targets, divided by 1.5 below target / 1.5 (as PPO's
      adaptive penalty, J. Schulman et al., 2017, has it with 2).

    A policy moves a little with every step, so its KL answers a coefficient tens of steps later, and
    both forms alone wind up: they lower the coefficient to nothing while a young policy is still on its
    way to the target, and then take as long to raise it again. With `waits` they judge two steps at a
    time, and leave the coefficient alone where these have come nearer to the target than the two before.

    Args:
        beta: Where the coefficient starts.
        control: One of `KL_CONTROLS`; ``fixed`` leaves it there.
        adaptation: One of `KL_ADAPTATIONS`.
        target: KL to hold, in nats a token.
        horizon: Completions after which a proportional correction is made in full.
        warmup_steps: The coefficient in use rises from 0 over so many steps.
        waits: See above; False takes both forms as they were published.

    Attributes:
        measured: ``(KL, completions)`` of the steps since the last judgement.
        before: The KL that was judged last; None before the first.
    """

    beta: float
    control: str = "fixed"
    adaptation: str = "proportional"
    target: float | None = None
    horizon: int = 10_000
    warmup_steps: int = 0
    waits: bool = True
    measured: list[tuple[float, int]] = field(default_factory=list)
    before: float | None = None

    def coefficient(self, step: int) -> float:
        """What the loss of an optimiser step multiplies KL by; steps count from 0."""
        if step >= self.warmup_steps:
            return self.beta
        return self.beta * step / self.warmup_steps

    def update(self, kl: float, completions: int, step: int) -> None:
        """Adapt to what was measured; not while warming up, when the coefficient is not itself yet.

        Args:
            kl: Mean over the tokens of an optimiser step, all processes, in nats.
            completions: How many the step was made of.
            step: The step's number, from 0.
        """
        if self.control == "fixed" or self.target is None or step < self.warmup_steps:
            return
        self.measured.append((kl, completions))
        if len(self.measured) < (_WAIT if self.waits else 1):
            return
        kl = sum(kl for kl, _ in self.measured) / len(self.measured)
        completions = sum(count for _, count in self.measured)
        returns = self.waits and self._is_returning(kl, self.target)
        self.measured, self.before = [], kl
        if not returns:
            self._adapt(kl, completions, self.target)

    def state(self) -> dict[str, Any]:
        """What a run that goes on later needs."""
        return {"beta": self.beta, "measured": self.measured, "before": self.before}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.beta, self.before = state["beta"], state["before"]
        self.measured = [(kl, completions) for kl, completions in state["measured"]]

    def _is_returning(self, kl: float, target: float) -> bool:
        if self.before is None:
            return False
        if kl < target:
            return kl > (1 + _MOVED) * self.before
        return kl < (1 - _MOVED) * self.before

    def _adapt(self, kl: float, completions: int, target: float) -> None:
        if self.adaptation == "proportional":
            error = min(0.2, max(-0.2, kl / target - 1))
            self.beta *= 1 + error * completions / self.horizon
        elif kl > 1.5 * target:
            self.beta *= 1.5
        elif kl < target / 1.5:
            self.beta /= 1.5


_WAIT = 2  # steps that are judged as one


_MOVED = 0.05  # share by which a KL has moved, and is not only noisy
