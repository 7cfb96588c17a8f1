"""What the loss is made of: KL estimators against sums over the vocabulary, means against hand's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.kl_control import KLControl
from rookworld_rlvr.training.losses import (
    ESTIMATORS,
    KLEstimator,
    Normaliser,
    importance_weighted,
    log_importance,
    per_token_kl,
)

from ..support import ON_CPU

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


@pytest.mark.parametrize(
    ("estimator", "value", "gradient", "weighted_gradient"),
    [
        ("k1", "reverse", "nought", "reverse"),
        ("k2", None, "reverse", "reverse"),
        ("k3", "reverse", "forward", "reverse"),
        ("reverse", "reverse", "reverse", "reverse"),
        ("forward", "forward", "forward", "forward"),
        ("symmetric", "symmetric", "symmetric", "symmetric"),
    ],
)
def test_an_estimators_mean_and_gradients_are_those_of_its_divergence(
    estimator: KLEstimator, value: str | None, gradient: str, weighted_gradient: str
) -> None:
    """With importance weights, the gradient is that of the value, or of k2's, which is biased."""
    logits = POLICY_LOGITS.clone().requires_grad_()
    logps = logits.log_softmax(-1)
    # The mean over tokens drawn from the policy; draws have no gradient.
    drawn = logps.exp().detach()
    kl, _ = per_token_kl(logps, REFERENCE, estimator)
    mean = (drawn * kl).sum()
    weighted = (drawn * importance_weighted(kl, logps - logps.detach(), estimator)).sum()
    if value is not None:
        assert mean.item() == pytest.approx(exact_kl(value, logits).item(), rel=1e-9)
    for ours, divergence in ((mean, gradient), (weighted, weighted_gradient)):
        (exact,) = torch.autograd.grad(exact_kl(divergence, logits), logits)
        (found,) = torch.autograd.grad(ours, logits, retain_graph=True)
        torch.testing.assert_close(found, exact)
        assert divergence == "nought" or exact.norm() > 0.1


POLICY = torch.tensor([0.5, -0.2, -1.0], dtype=torch.float64)  # logits
OLD = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)  # probabilities, as the next
THREE = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("is_old", [False, True], ids=["on policy", "sampled before"])
@pytest.mark.parametrize(
    ("estimator", "which"),
    [
        *((name, "reverse") for name in ("k1", "k2", "k3", "reverse")),
        ("forward", "forward"),
        ("symmetric", "both"),
    ],
)
def test_with_the_default_keys_the_gradient_is_that_of_a_divergence(
    estimator: KLEstimator, which: str, is_old: bool, level: str
) -> None:
    """The expected gradient of the term, which is exact: there are three tokens, each in a row."""
    args = RookWorldGRPOConfig(kl_estimator=estimator, beta=0.1, **ON_CPU)
    assert args.use_bias_correction_kl
    trainer: Any = SimpleNamespace(args=args, keys=args, kl_beta=args.beta)
    trainer.importance_sampling_level = level
    logits = POLICY.clone().requires_grad_()
    logps = logits.log_softmax(-1)
    batch = {
        "completion_mask": torch.ones(3, 1),
        "ref_per_token_logps": THREE.log().unsqueeze(1),
    }
    if is_old:
        batch["old_per_token_logps"] = OLD.log().unsqueeze(1)
    drawn = OLD if is_old else logps.exp().detach()
    kl, _ = KLControl(trainer).per_token(batch, logps.unsqueeze(1))
    (found,) = torch.autograd.grad((drawn * kl.squeeze(1)).sum(), logits)
    logps = logits.log_softmax(-1)
    reverse = (logps.exp() * (logps - THREE.log())).sum()
    forward = (THREE * (THREE.log() - logps)).sum()
    exact = {"reverse": reverse, "forward": forward, "both": (reverse + forward) / 2}[which]
    (expected,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(found, expected)
    assert expected.norm() > 0.1


def test_importance_weights_correct_for_tokens_of_an_older_policy() -> None:
    old = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    logps = POLICY_LOGITS.log_softmax(-1)
    kl, _ = per_token_kl(logps, REFERENCE, "k3")
    mean = (old.exp() * importance_weighted(kl, logps - old, "k3")).sum()
    assert mean.item() == pytest.approx(exact_kl("reverse", POLICY_LOGITS).item(), rel=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_log_ratios_out_of_bounds_are_clamped_and_counted(estimator: KLEstimator) -> None:
    logps = torch.tensor([[-1.0, -900.0, -1.0]], requires_grad=True)
    kl, clamped = per_token_kl(logps, torch.tensor([[-1.5, -1.0, -700.0]]), estimator)
    assert clamped.tolist() == [[False, True, True]]
    (gradient,) = torch.autograd.grad(kl.sum(), logps)
    assert kl.isfinite().all() and gradient.isfinite().all() and not gradient[0, 1:].any()
    kl, clamped = per_token_kl(logps, logps.clone(), estimator)
    assert not kl.any() and not clamped.any(), "to oneself"


@pytest.mark.parametrize(
    ("level", "expected"),
    [("token", [[0.5, -1.0, 7.0], [2.0, 7.0, 7.0]]), ("sequence", [[-0.25], [2.0]])],
)
def test_importance_is_of_tokens_or_the_mean_of_a_completion(
    level: str, expected: list[list[float]]
) -> None:
    logps = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, 0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.5, -1.0, -7.0], [-3.0, -7.0, -7.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert log_importance(logps, old, mask, level).tolist() == expected
    same = log_importance(logps, None, mask, level)
    assert not same.any(), "on policy"
    (gradient,) = torch.autograd.grad((same * mask if level == "token" else same).sum(), logps)
    share = torch.tensor([[1.0], [1.0]]) if level == "token" else torch.tensor([[0.5], [1.0]])
    torch.testing.assert_close(gradient, mask * share)


PER_TOKEN = torch.tensor([[1.0, 2.0, 9.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])  # sums 3 and 15, of 2 and 3 tokens


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", (3 / 2 + 15 / 3) / 2 / 2),
        ("sapo", (3 / 2 + 15 / 3) / 2 / 2),
        ("bnpo", 18 / 5 / 2),
        ("dr_grpo", 18 / (2 * 8) / 2),
        ("luspo", (3 + 15) / 2 / 2),
        *((name, 18 * 3 * 2 / 20) for name in ("dapo", "cispo", "vespo")),
    ],
)
def test_means_over_tokens_by_hand(loss_type: str, expected: float) -> None:
    """Two micro-batches a step, four a generation, three processes, at most eight tokens a row."""
    normaliser = Normaliser(loss_type, micro_batches=2, generation=4, processes=3, longest=8)
    found = normaliser.over_tokens(PER_TOKEN, MASK, torch.tensor(20))
    assert found.item() == pytest.approx(expected, rel=1e-6)
    over_items = normaliser.over_items(torch.tensor(18.0), torch.tensor(20))
    assert over_items.item() == pytest.approx(18 * 3 * 2 / 20), "whatever the loss type is"
    for nothing in (
        normaliser.over_tokens(PER_TOKEN, 0 * MASK, torch.tensor(0)),
        normaliser.over_items(torch.tensor(0.0), torch.tensor(0)),
    ):
        assert nothing.item() == 0


@pytest.mark.parametrize("loss_type", "grpo sapo bnpo dr_grpo luspo dapo cispo vespo".split())
@pytest.mark.parametrize("generation", [1, 2, 4, 8], ids="{} micro-batches a generation".format)
def test_shares_of_a_step_add_up_to_its_mean(loss_type: str, generation: int) -> None:
    """Of two processes, which are averaged, each has two equal micro-batches a step."""
    normaliser = Normaliser(loss_type, 2, generation, processes=2, longest=3)
    items = 2 * generation * MASK.sum()
    step = 2 * normaliser.over_tokens(PER_TOKEN, MASK, items)
    by_row = {"grpo": (3 / 2 + 15 / 3) / 2, "sapo": (3 / 2 + 15 / 3) / 2}
    means = {**by_row, "luspo": 18 / 2, "dr_grpo": 18 / 6}
    assert step.item() == pytest.approx(means.get(loss_type, 18 / 5), rel=1e-6)
