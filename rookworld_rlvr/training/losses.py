"""What the loss is made of: functions of log-probs, without a trainer.

Shapes: `B` completions of at most `C` tokens; a mask is 1 for the tokens that count. Log-probs are in
nats. How the terms are put together is in `step.py`.

The KL to the reference
-----------------------
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
(DeepSeek-V3.2, 2025). The others have the right gradient by themselves, so no gradient flows through
their weights.

Sources: J. Schulman, "Approximating KL divergence" (2020), for k1 to k3. Y. Tang and R. Munos, "On a few
pitfalls in KL divergence gradient estimation for RL" (2025), show that the value and the gradient of one
estimator may belong to different divergences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

KLEstimator = Literal["k1", "k2", "k3", "reverse", "forward", "symmetric"]
Estimator = Callable[[torch.Tensor], torch.Tensor]

LOG_RATIO_BOUND = 20.0  # nats; log-ratios are clamped to it, so that `exp` stays finite
MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
"""TRL's losses that are a mean over completions, masked ones included."""

# Of the soft targets, in win probability: a move that keeps so much less than the best has 1 / e of its
# share.
SOFT_TEMPERATURE = 0.03


# --------------------------------------------------------------------------------------------------
# Sums over tokens
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Normaliser:
    """What sums over a micro-batch are divided by, so that its loss is its share of a step's mean.

    Args:
        loss_type: TRL's.
        micro_batches: Of an optimiser step, on one process.
        generation: Micro-batches of a generation, on one process.
        processes: The number of processes, whose gradients are averaged.
        longest: Tokens that a completion may have.
    """

    loss_type: str
    micro_batches: int
    generation: int
    processes: int
    longest: int

    def over_tokens(
        self, per_token: torch.Tensor, mask: torch.Tensor, items: torch.Tensor
    ) -> torch.Tensor:
        """The mean of a term over tokens, as TRL takes it for the loss type.

        Args:
            per_token: ``(B, C)``.
            mask: ``(B, C)``.
            items: Tokens of the generation on all processes, which some loss types divide by.
        """
        total = (per_token * mask).sum()
        if self.loss_type in ("grpo", "sapo"):
            by_row = (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
            return by_row.mean() / self.micro_batches
        if self.loss_type == "bnpo":
            return total / mask.sum().clamp(min=1.0) / self.micro_batches
        if self.loss_type == "dr_grpo":
            return total / (per_token.size(0) * self.longest) / self.micro_batches
        if self.loss_type == "luspo":
            return (per_token * mask).sum(-1).mean() / self.micro_batches
        return self.over_items(total, items)

    def over_items(self, total: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """A micro-batch's share of a mean over items, such as tokens or positions.

        Args:
            total: The sum over the items of this process's micro-batch.
            items: The number of items of the generation on all processes.
        """
        steps = self.generation / self.micro_batches  # optimiser steps a generation
        return total * self.processes * steps / items.clamp(min=1.0)


def log_importance(
    logps: torch.Tensor, old: torch.Tensor | None, mask: torch.Tensor, level: str
) -> torch.Tensor:
    """Log-prob now minus log-prob when sampled, for tokens ``(B, C)`` or completions ``(B, 1)``.

    Args:
        logps: ``(B, C)``, now.
        old: ``(B, C)``, when sampled; None on policy, where they are the same.
        mask: ``(B, C)``.
        level: TRL's `importance_sampling_level`: ``token`` or ``sequence``.
    """
    log_ratio = logps - (logps.detach() if old is None else old)
    if level == "token":
        return log_ratio
    return ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)


# --------------------------------------------------------------------------------------------------
# The KL to the reference
# --------------------------------------------------------------------------------------------------
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
    return kl * (weights if estimator in ("k1", "k3") else weights.detach())


# --------------------------------------------------------------------------------------------------
# Terms over what was not sampled
# --------------------------------------------------------------------------------------------------
def taught(logps: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """``-A log p`` by token ``(B, C)``: a taught answer was not sampled, so it has no ratio.

    Args:
        logps: ``(B, C)``.
        advantages: ``(B,)``, 0 for completions that were sampled.
    """
    return -advantages.unsqueeze(1) * logps


def value_error(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Half the squared error of a value head, ``(B, C)``."""
    return 0.5 * (values - returns).square() * mask


def expected_score(logps: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
    """The sum of each choice's probability times what it is worth.

    Args:
        logps: ``(M,)``, of all choices.
        worth: ``(M,)``, in [0, 1].
    """
    return (logps.exp() * worth).sum()


def soft_targets(logps: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
    """The log-likelihood of choices ``(M,)``, weighted by a softmax of what they are worth ``(M,)``."""
    return (logps * (worth / SOFT_TEMPERATURE).softmax(-1)).sum()


def over_choices(
    logps: Sequence[torch.Tensor],
    worth: Sequence[torch.Tensor],
    score_coef: float,
    soft_coef: float,
) -> torch.Tensor:
    """Minus the sum over positions of the logarithm of the expected score, and of the soft targets.

    The gradient of the expected score is that of REINFORCE over the choice, without its variance. The
    logarithm divides it by the score: otherwise positions in which the policy is sure of an illegal move
    would hardly teach.
    """
    pairs = [*zip(logps, worth, strict=True)]
    scores = torch.stack([expected_score(*pair) for pair in pairs])
    soft = torch.stack([soft_targets(*pair) for pair in pairs])
    logs = scores.clamp(min=torch.finfo(scores.dtype).tiny).log()
    return -(score_coef * logs + soft_coef * soft).sum()


def distribution_kl(start: torch.Tensor, policy: torch.Tensor) -> torch.Tensor:
    """KL(start‖policy) over the whole vocabulary, ``(N,)``, from log-probs ``(N, V)``."""
    return (start.exp() * (start - policy)).sum(-1)


def propagate_nonfinite(loss: torch.Tensor) -> torch.Tensor:
    """The same loss, but if it is not finite, then neither is its gradient.

    So a step's gradient norm shows all that is not finite: on this process and, because processes add
    up their gradients, on the others.
    """
    return loss * (1 + 0 * loss.detach())
