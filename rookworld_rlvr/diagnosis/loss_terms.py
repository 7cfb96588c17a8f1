"""The terms of a GRPO loss, token by token, and gradients by layer.

The terms are computed from the log-probs of the trainer's own forward, with its own estimators and
aggregation. Their sum is compared with the loss that the trainer computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..training.parts.aggregation import log_importance
from ..training.parts.value_head import value_error

_BLOCK = re.compile(r"(?:^|\.)(h|layers)\.(\d+)\.(\w+)")


_ABSENT = ("original_module", "modules_to_save", "base_layer", "default", "weight", "bias")


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Terms that add up to the loss of `B` completions, by token ``(B, T)`` or as one number."""

    policy: torch.Tensor  # after the ratio's clip
    policy_unclipped: torch.Tensor
    kl: torch.Tensor  # times the coefficient
    log_ratio: torch.Tensor  # log-prob now less when sampled, nats
    value: torch.Tensor  # of the value head, times its coefficient; 0 without one
    entropy: torch.Tensor  # the bonus in the loss, a number; 0 without one
    teach: torch.Tensor | None  # of the answers that were put in; None if nothing is taught
    supervised: torch.Tensor | None  # times its coefficient, a number; None without one

    @property
    def of_answers(self) -> Mapping[str, torch.Tensor]:
        """The terms of right answers that there are, by name."""
        terms = {"teach": self.teach, "supervised": self.supervised}
        return {name: term for name, term in terms.items() if term is not None}


def loss_terms(
    trainer: Any,
    logps: torch.Tensor,
    entropies: torch.Tensor | None,
    inputs: Mapping[str, Any],
    coefficient: float,
    values: torch.Tensor | None = None,
    answer_logps: torch.Tensor | None = None,
) -> LossTerms:
    """Take a batch's loss apart.

    Args:
        trainer: A `RookWorldGRPOTrainer`.
        logps: Of the policy, ``(B, T)``, with graph where gradients are wanted.
        entropies: Of the policy, ``(B, T)``.
        inputs: The batch as the trainer's `_compute_loss` takes it.
        coefficient: Of the KL term.
        values: Of the value head, ``(B, T)``, if the trainer has one.
        answer_logps: Of the supervised term's answers, ``(g, L)``, if the trainer has the term.
    """
    log_weights = log_importance(trainer, logps, inputs)  # (B, T) or (B, 1)
    policy, unclipped = _policy_terms(trainer, logps, log_weights, inputs)
    extra = _token_weights(trainer, entropies, inputs)
    kl = torch.zeros_like(logps)
    if "ref_per_token_logps" in inputs and coefficient:
        kl = coefficient * trainer.parts.kl.per_token(trainer, logps, inputs)[0]
    value = torch.zeros_like(logps)
    if values is not None and "returns" in inputs:
        value = trainer.args.value_coef * value_error(values, inputs)
    return LossTerms(
        (policy * extra).expand_as(logps),
        (unclipped * extra).expand_as(logps),
        kl,
        log_weights.expand_as(logps),
        value,
        _entropy_term(trainer, logps, entropies, inputs),
        _teach_term(trainer, logps, inputs),
        None if answer_logps is None else trainer.parts.supervised.weighted(answer_logps, inputs),
    )


def _policy_terms(
    trainer: Any, logps: torch.Tensor, log_weights: torch.Tensor, inputs: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The policy-gradient term, and the same without a bound on the ratio."""
    advantages = inputs["advantages"]
    advantages = advantages if advantages.dim() > 1 else advantages.unsqueeze(1)
    ratio = log_weights.exp()
    unclipped = -ratio * advantages
    if trainer.loss_type == "cispo":
        bounded = ratio.clamp(max=trainer.epsilon_high).detach()
        return -bounded * advantages * logps, -ratio.detach() * advantages * logps
    if trainer.loss_type == "sapo":
        args = trainer.args
        heat = torch.where(advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg)
        return -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantages, unclipped
    if trainer.loss_type == "vespo":
        phi = _vespo_weights(trainer, logps, advantages, inputs)
        return -phi * advantages * logps, unclipped
    clipped = ratio.clamp(1 - trainer.epsilon_low, 1 + trainer.epsilon_high)
    if trainer.args.delta is not None:
        ratio = ratio.clamp(max=trainer.args.delta)
    return -torch.min(ratio * advantages, clipped * advantages), unclipped


def _vespo_weights(
    trainer: Any, logps: torch.Tensor, advantages: torch.Tensor, inputs: Mapping[str, Any]
) -> torch.Tensor:
    old = inputs.get("old_per_token_logps")
    weights: torch.Tensor = trainer.get_gamma_weights(
        advantages=advantages,
        log_ratio_per_token=logps - (logps.detach() if old is None else old),
        mask=inputs["completion_mask"],
        importance_sampling_ratio=inputs.get("importance_sampling_ratio"),
        k_pos=trainer.args.vespo_k_pos,
        lambda_pos=trainer.args.vespo_lambda_pos,
        k_neg=trainer.args.vespo_k_neg,
        lambda_neg=trainer.args.vespo_lambda_neg,
    )
    return weights


def _token_weights(
    trainer: Any, entropies: torch.Tensor | None, inputs: Mapping[str, Any]
) -> torch.Tensor | float:
    """What else multiplies a token's policy term: the entropy quantile, a sampler's correction."""
    weights: torch.Tensor | float = 1.0
    mask = inputs["completion_mask"]
    if trainer.top_entropy_quantile < 1.0 and entropies is not None:
        weights = trainer.get_high_entropy_mask(entropies, mask, 1 - trainer.top_entropy_quantile)
    if "importance_sampling_ratio" in inputs and trainer.loss_type != "vespo":
        weights = weights * inputs["importance_sampling_ratio"]
    return weights


def _entropy_term(
    trainer: Any, logps: torch.Tensor, entropies: torch.Tensor | None, inputs: Mapping[str, Any]
) -> torch.Tensor:
    if trainer.entropy_bonus is None or entropies is None:
        return logps.new_zeros(())
    mask = inputs["completion_mask"]
    if trainer.top_entropy_quantile < 1.0:
        mask = mask * trainer.get_high_entropy_mask(
            entropies, mask, 1 - trainer.top_entropy_quantile
        )
    mean = (entropies * mask).sum() / mask.sum().clamp(min=1.0)
    bonus: torch.Tensor = trainer.entropy_bonus * mean / trainer.current_gradient_accumulation_steps
    return -bonus


def _teach_term(
    trainer: Any, logps: torch.Tensor, inputs: Mapping[str, Any]
) -> torch.Tensor | None:
    if "taught_advantages" not in inputs:
        return None
    term: torch.Tensor = trainer.parts.teaching.per_token(logps, inputs["taught_advantages"])
    return term


# --------------------------------------------------------------------------------------------------
# Gradients
# --------------------------------------------------------------------------------------------------
def gradient_of(term: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradient of a term by all parameters, flattened, on the CPU; the graph is kept."""
    if not term.requires_grad:
        return torch.zeros(sum(parameter.numel() for parameter in parameters))
    found = torch.autograd.grad(term, list(parameters), retain_graph=True, materialize_grads=True)
    return torch.cat([gradient.float().cpu().flatten() for gradient in found])


def full(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in one piece, gathered if it is spread over processes."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def norm(vectors: Iterable[torch.Tensor | None]) -> float:
    """Euclidean norm of all of them together; nan or inf if one of their numbers is."""
    squares = [v.double().square().sum().item() for v in vectors if v is not None]
    return math.sqrt(sum(squares))


def layer_of(name: str) -> str:
    """The block and kind that a parameter belongs to.

    >>> layer_of("base_model.model.transformer.h.0.attn.c_attn.lora_A.default.weight")
    'h.0.attn'
    >>> layer_of("transformer.wte.weight")
    'wte'
    """
    block = _BLOCK.search(name)
    if block:
        return f"{block[1]}.{block[2]}.{block[3]}"
    return next((part for part in reversed(name.split(".")) if part not in _ABSENT), name)


def layer_table(
    named: Iterable[tuple[str, torch.nn.Parameter]],
    copies: Iterable[tuple[torch.Tensor, torch.Tensor | None]],
) -> list[dict[str, Any]]:
    """Gradient norm, and update against weight, by layer.

    Args:
        named: Parameters after the update.
        copies: Weight before the update, and gradient before clipping; None without a gradient.
    """
    members: dict[str, list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor | None]]] = {}
    for (name, parameter), (before, slope) in zip(named, copies, strict=True):
        members.setdefault(layer_of(name), []).append((parameter, before, slope))
    rows = []
    for layer, group in members.items():
        gradient = norm(slope for _, _, slope in group)
        weight = norm(before for _, before, _ in group)
        update = norm(full(p.detach()).float().cpu() - before for p, before, _ in group)
        rows.append(
            {
                "layer": layer,
                "parameters": sum(before.numel() for _, before, _ in group),
                "frozen_parameters": sum(
                    before.numel() for p, before, _ in group if not p.requires_grad
                ),
                "gradient_norm": gradient,
                "weight_norm": weight,
                "update_norm": update,
                "update_to_weight": update / weight if weight else None,
                "zero": gradient == 0,
                "non_finite": not gradient < float("inf"),
            }
        )
    return rows
