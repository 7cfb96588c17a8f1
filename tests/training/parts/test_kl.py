"""KL estimators against exact KL on a small vocabulary, controllers against worked numbers."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.training.parts.arguments import KLArguments
from rookworld_rlvr.training.parts.kl import (
    ESTIMATORS,
    KLController,
    KLTerm,
    importance_weighted,
    per_token_kl,
)

torch.manual_seed(0)
POLICY_LOGITS = torch.randn(7, dtype=torch.float64)
REFERENCE = torch.randn(7, dtype=torch.float64).log_softmax(-1)


def exact_kl(name: str, logits: torch.Tensor) -> torch.Tensor:
    """KL(p‖r) or KL(r‖p) by summing over the vocabulary."""
    logps = logits.log_softmax(-1)
    if name == "reverse":
        return (logps.exp() * (logps - REFERENCE)).sum()
    return (REFERENCE.exp() * (REFERENCE - logps)).sum()


def expected(estimator: str, logits: torch.Tensor) -> torch.Tensor:
    """The mean of an estimator over tokens drawn from the policy, exactly; draws have no gradient."""
    logps = logits.log_softmax(-1)
    kl, _ = per_token_kl(logps.unsqueeze(0), REFERENCE.unsqueeze(0), estimator)
    return (logps.exp().detach() * kl[0]).sum()


def gradient_of(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits)[0]


VALUES = {"k1": "reverse", "k3": "reverse", "reverse": "reverse", "forward": "forward"}
GRADIENTS = {"k2": "reverse", "k3": "forward", "reverse": "reverse", "forward": "forward"}


@pytest.mark.parametrize(("estimator", "divergence"), VALUES.items())
def test_an_unbiased_estimators_mean_is_the_exact_kl(estimator: str, divergence: str) -> None:
    mean = expected(estimator, POLICY_LOGITS)
    assert mean.item() == pytest.approx(exact_kl(divergence, POLICY_LOGITS).item(), rel=1e-9)


@pytest.mark.parametrize(("estimator", "divergence"), GRADIENTS.items())
def test_an_estimators_mean_gradient_is_that_of_its_divergence(
    estimator: str, divergence: str
) -> None:
    logits = POLICY_LOGITS.clone().requires_grad_()
    mine = gradient_of(expected(estimator, logits), logits)
    exact = gradient_of(exact_kl(divergence, logits), logits)
    torch.testing.assert_close(mine, exact)
    assert exact.norm() > 0.1


@pytest.mark.parametrize(
    ("estimator", "divergence"),
    {"k1": "reverse", "k3": "reverse", "reverse": "reverse", "forward": "forward"}.items(),
)
def test_importance_weights_give_each_estimator_the_gradient_of_its_value(
    estimator: str, divergence: str
) -> None:
    logits = POLICY_LOGITS.clone().requires_grad_()
    logps = logits.log_softmax(-1).unsqueeze(0)
    kl, _ = per_token_kl(logps, REFERENCE.unsqueeze(0), estimator)
    mean = (logps.exp().detach() * importance_weighted(kl, logps - logps.detach(), estimator)).sum()
    torch.testing.assert_close(
        gradient_of(mean, logits), gradient_of(exact_kl(divergence, logits), logits)
    )


def test_importance_weights_correct_for_tokens_of_an_older_policy() -> None:
    old = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    logps = POLICY_LOGITS.log_softmax(-1)
    kl, _ = per_token_kl(logps, REFERENCE, "k3")
    mean = (old.exp() * importance_weighted(kl, logps - old, "k3")).sum()
    assert mean.item() == pytest.approx(exact_kl("reverse", POLICY_LOGITS).item(), rel=1e-9)


def test_k1_has_no_gradient_in_expectation() -> None:
    logits = POLICY_LOGITS.clone().requires_grad_()
    torch.testing.assert_close(
        gradient_of(expected("k1", logits), logits), torch.zeros(7, dtype=torch.float64)
    )


def test_symmetric_is_the_mean_of_both() -> None:
    logits = POLICY_LOGITS.clone().requires_grad_()
    both = (exact_kl("reverse", logits) + exact_kl("forward", logits)) / 2
    mean = expected("symmetric", logits)
    assert mean.item() == pytest.approx(both.item(), rel=1e-9)
    torch.testing.assert_close(gradient_of(mean, logits), gradient_of(both, logits))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_to_oneself_is_nought(estimator: str) -> None:
    logps = POLICY_LOGITS.log_softmax(-1).unsqueeze(0)
    kl, clamped = per_token_kl(logps, logps.clone(), estimator)
    assert kl.abs().max() == 0
    assert not clamped.any()


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


def adaptive(beta: float, target: float, **keys: Any) -> KLController:
    return KLController(beta, KLArguments(kl_control="adaptive", kl_target=target, **keys))


def test_ziegler_by_hand() -> None:
    controller = adaptive(0.1, 6.0, kl_horizon=10_000)
    for step in range(2):
        controller.update(9.0, completions=128, step=step)  # error 0.5, clamped to 0.2
    assert controller.beta == pytest.approx(0.1 * (1 + 0.2 * 256 / 10_000))
    controller = adaptive(0.1, 6.0, kl_horizon=10_000)
    for step in range(2):
        controller.update(5.4, completions=128, step=step)  # error -0.1
    assert controller.beta == pytest.approx(0.1 * (1 - 0.1 * 256 / 10_000))


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.151, 1.5), (0.149, 1.0), (0.1, 1.0), (0.067, 1.0), (0.066, 1 / 1.5)]
)
def test_multiplicative_by_hand(kl: float, factor: float) -> None:
    controller = adaptive(0.02, 0.1, kl_adaptation="multiplicative")
    for step in (5, 6):
        controller.update(kl, completions=64, step=step)
    assert controller.beta == pytest.approx(0.02 * factor)


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
    part = KLTerm(KLArguments(kl_control="adaptive", kl_target=0.1), beta=0.5)
    part._sums += torch.tensor([kl, 10.0])
    part._completions = 8
    part.on_step_end(None, SimpleNamespace(global_step=5), None)
    assert part.controller.beta == 0.5 and part.controller.before is None
    for step in (6, 7):
        part._sums += torch.tensor([10.0, 10.0])
        part._completions = 8
        part.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert part.controller.beta > 0.5, "the next ones count again"


def test_fixed_stays() -> None:
    controller = KLController(0.05, KLArguments())
    controller.update(math.inf, completions=64, step=3)
    assert controller.coefficient(3) == 0.05


def slow_policy(controller: KLController, steps: int) -> list[float]:
    """KL of a policy that moves a little with each step; a coefficient of 0.5 would hold it at 0.01."""
    distance, kls = 0.0, []
    for step in range(steps):
        goal = 0.5 / max(controller.coefficient(step), 1e-3)
        distance += max(-0.1, min(0.05, 0.5 * (goal - distance)))
        kls.append(0.01 * distance**2)
        controller.update(kls[-1], completions=128, step=step)
    return kls


def test_the_kl_of_a_slow_policy_settles() -> None:
    controller = adaptive(0.001, 0.01, kl_adaptation="multiplicative")
    kls = slow_policy(controller, 150)
    assert all(0.01 / 1.5 <= kl <= 0.01 * 1.5 for kl in kls[100:])


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
