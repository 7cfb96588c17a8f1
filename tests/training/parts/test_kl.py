"""KL estimators against exact KL on a small vocabulary, controllers against worked numbers."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.kl import (
    ESTIMATORS,
    KLController,
    KLTerm,
    importance_weighted,
    per_token_kl,
)
from rookworld_rlvr.training.parts.registry import PartArguments

from ...conftest import ON_CPU

torch.manual_seed(0)
POLICY_LOGITS = torch.randn(7, dtype=torch.float64)
REFERENCE = torch.randn(7, dtype=torch.float64).log_softmax(-1)


def exact_kl(name: str, logits: torch.Tensor) -> torch.Tensor:
    """KL(p‖r) or KL(r‖p) by summing over the vocabulary, their mean, or nought."""
    logps = logits.log_softmax(-1)
    reverse = (logps.exp() * (logps - REFERENCE)).sum()
    forward = (REFERENCE.exp() * (REFERENCE - logps)).sum()
    both = {"reverse": reverse, "forward": forward, "symmetric": (reverse + forward) / 2}
    return both.get(name, 0 * reverse)


def expected(estimator: str, logits: torch.Tensor) -> torch.Tensor:
    """The mean of an estimator over tokens drawn from the policy, exactly; draws have no gradient."""
    logps = logits.log_softmax(-1)
    kl, _ = per_token_kl(logps, REFERENCE, estimator)
    return (logps.exp().detach() * kl).sum()


@pytest.mark.parametrize(
    ("estimator", "value", "gradient", "weighted_gradient"),
    [
        ("k1", "reverse", "nought", "reverse"),
        ("k2", None, "reverse", None),
        ("k3", "reverse", "forward", "reverse"),
        ("reverse", "reverse", "reverse", "reverse"),
        ("forward", "forward", "forward", "forward"),
        ("symmetric", "symmetric", "symmetric", None),
    ],
)
def test_an_estimators_mean_and_gradients_are_those_of_its_divergence(
    estimator: str, value: str | None, gradient: str, weighted_gradient: str | None
) -> None:
    """With importance weights, the gradient is that of the value."""
    logits = POLICY_LOGITS.clone().requires_grad_()
    mean, logps = expected(estimator, logits), logits.log_softmax(-1)
    if value is not None:
        assert mean.item() == pytest.approx(exact_kl(value, logits).item(), rel=1e-9)
    kl, _ = per_token_kl(logps, REFERENCE, estimator)
    weighted = logps.exp().detach() * importance_weighted(kl, logps - logps.detach(), estimator)
    for ours, divergence in ((mean, gradient), (weighted.sum(), weighted_gradient)):
        if divergence is not None:
            exact = torch.autograd.grad(exact_kl(divergence, logits), logits)[0]
            gradients = torch.autograd.grad(ours, logits, retain_graph=True)[0]
            torch.testing.assert_close(gradients, exact)
            assert divergence == "nought" or exact.norm() > 0.1


def test_importance_weights_correct_for_tokens_of_an_older_policy() -> None:
    old = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    logps = POLICY_LOGITS.log_softmax(-1)
    kl, _ = per_token_kl(logps, REFERENCE, "k3")
    mean = (old.exp() * importance_weighted(kl, logps - old, "k3")).sum()
    assert mean.item() == pytest.approx(exact_kl("reverse", POLICY_LOGITS).item(), rel=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_log_ratios_out_of_bounds_are_clamped_and_counted(estimator: str) -> None:
    logps = torch.tensor([[-1.0, -900.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, -700.0]])
    kl, clamped = per_token_kl(logps, reference, estimator)
    assert clamped.tolist() == [[False, True, True]]
    assert torch.isfinite(kl).all()
    (gradient,) = torch.autograd.grad(kl.sum(), logps)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 1:].abs().max() == 0
    kl, clamped = per_token_kl(logps, logps.clone(), estimator)
    assert not kl.any() and not clamped.any(), "to oneself"


def adaptive(beta: float, target: float, **keys: Any) -> KLController:
    return KLController(beta, PartArguments(kl_control="adaptive", kl_target=target, **keys))


@pytest.mark.parametrize(
    ("way", "kl", "factor"),
    [
        ("proportional", 0.15, 1 + 0.2 * 128 / 10_000),  # error 0.5, clamped to 0.2
        ("proportional", 0.09, 1 - 0.1 * 128 / 10_000),
        ("multiplicative", 0.151, 1.5),
        ("multiplicative", 0.149, 1.0),
        ("multiplicative", 0.067, 1.0),
        ("multiplicative", 0.066, 1 / 1.5),
    ],
)
def test_coefficients_by_hand(way: str, kl: float, factor: float) -> None:
    """Ziegler et al.'s controller, and PPO's penalty."""
    controller = adaptive(0.02, 0.1, kl_adaptation=way, kl_horizon=10_000)
    for step in (5, 6):
        controller.update(kl, completions=64, step=step)
    assert controller.beta == pytest.approx(0.02 * factor, rel=1e-9)


def test_warming_up_rises_from_nought_and_does_not_adapt() -> None:
    controller = adaptive(0.08, 0.1, kl_adaptation="multiplicative", kl_warmup_steps=4)
    assert [controller.coefficient(step) for step in range(6)] == pytest.approx(
        [0, 0.02, 0.04, 0.06, 0.08, 0.08]
    )
    controller.update(10.0, completions=64, step=3)
    assert controller.beta == 0.08
    for step in (4, 5):
        controller.update(10.0, completions=64, step=step)
    assert controller.beta == pytest.approx(0.12)


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_a_step_that_is_skipped_leaves_the_coefficient_alone(kl: float) -> None:
    args = RookWorldGRPOConfig(kl_control="adaptive", kl_target=0.1, beta=0.5, **ON_CPU)
    settled = {"kl": [kl, 10.0], "kl/coefficient": [4.0, 8.0]}
    part = KLTerm(SimpleNamespace(args=args, settled=settled))
    part.on_step_end(None, SimpleNamespace(global_step=5), None)
    assert part.controller.beta == 0.5 and part.controller.before is None
    for step in (6, 7):
        settled["kl"] = [10.0, 10.0]
        part.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert part.controller.beta > 0.5, "the next ones count again"


def test_the_coefficient_waits_only_while_the_kl_returns() -> None:
    controller = adaptive(1.0, 0.1, kl_adaptation="multiplicative")

    def after(*kls: float) -> float:
        for kl in kls:
            controller.update(kl, completions=64, step=0)
        return controller.beta

    assert after(0.01) == 1, "one step is not judged alone"
    assert after(0.01) == pytest.approx(1 / 1.5), "nothing to compare with"
    assert after(0.02, 0.02, 0.03, 0.03) == pytest.approx(1 / 1.5), "too low, but rising"
    assert after(0.03, 0.03) == pytest.approx(1 / 1.5**2), "too low, and standing"
    assert after(0.3, 0.3) == pytest.approx(1 / 1.5), "too high, and rising"
    assert after(0.2, 0.2) == pytest.approx(1 / 1.5), "too high, but falling"
    assert after(0.12, 0.08) == pytest.approx(1 / 1.5), "0.1"
    after(0.2)
    assert controller.numbers() == {"kl/target": 0.1, "kl/window": 0.1, "kl/verdict": 0}
    again = adaptive(1.0, 0.1, kl_adaptation="multiplicative")
    again.load(json.loads(json.dumps(controller.state())))
    assert again == controller
