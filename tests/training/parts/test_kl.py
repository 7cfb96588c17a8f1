"""KL estimators and controllers against worked numbers; baselines; each control acts."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.advantages import Baseline
from rookworld_rlvr.training.parts.kl import (
    ESTIMATORS,
    KLController,
    KLTerm,
    importance_weighted,
    per_token_kl,
)
from rookworld_rlvr.training.parts.registry import PartArguments
from rookworld_rlvr.training.trainer import PARTS_STATE

from ...support import NOT_KEPT, ON_CPU, first_batch

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
    logps = logits.log_softmax(-1)
    # The mean over tokens drawn from the policy; draws have no gradient.
    drawn = logps.exp().detach()
    kl, _ = per_token_kl(logps, REFERENCE, estimator)
    mean = (drawn * kl).sum()
    weighted = (drawn * importance_weighted(kl, logps - logps.detach(), estimator)).sum()
    if value is not None:
        assert mean.item() == pytest.approx(exact_kl(value, logits).item(), rel=1e-9)
    for ours, divergence in ((mean, gradient), (weighted, weighted_gradient)):
        if divergence is not None:
            (exact,) = torch.autograd.grad(exact_kl(divergence, logits), logits)
            (found,) = torch.autograd.grad(ours, logits, retain_graph=True)
            torch.testing.assert_close(found, exact)
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
    kl, clamped = per_token_kl(logps, torch.tensor([[-1.5, -1.0, -700.0]]), estimator)
    assert clamped.tolist() == [[False, True, True]]
    (gradient,) = torch.autograd.grad(kl.sum(), logps)
    assert kl.isfinite().all() and gradient.isfinite().all() and not gradient[0, 1:].any()
    kl, clamped = per_token_kl(logps, logps.clone(), estimator)
    assert not kl.any() and not clamped.any(), "to oneself"


def adaptive(beta: float, target: float, **keys: Any) -> KLController:
    return KLController(beta, PartArguments(kl_control="adaptive", kl_target=target, **keys))


def test_coefficients_by_hand() -> None:
    """Ziegler et al.'s controller, and PPO's penalty."""
    for way, kl, factor in (
        ("proportional", 0.15, 1 + 0.2 * 128 / 10_000),  # error 0.5, clamped to 0.2
        ("proportional", 0.09, 1 - 0.1 * 128 / 10_000),
        ("multiplicative", 0.151, 1.5),
        ("multiplicative", 0.149, 1.0),
        ("multiplicative", 0.067, 1.0),
        ("multiplicative", 0.066, 1 / 1.5),
    ):
        controller = adaptive(0.02, 0.1, kl_adaptation=way, kl_horizon=10_000)
        for step in (5, 6):
            controller.update(kl, completions=64, step=step)
        assert controller.beta == pytest.approx(0.02 * factor, rel=1e-9)


def test_warming_up_rises_from_nought_and_does_not_adapt() -> None:
    controller = adaptive(0.08, 0.1, kl_adaptation="multiplicative", kl_warmup_steps=4)
    rising = pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.08])
    assert [controller.coefficient(step) for step in range(6)] == rising
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


def baseline_of(kind: Any) -> Baseline:
    return Baseline(SimpleNamespace(args=PartArguments(baseline=kind)))


def test_the_running_mean_is_of_the_task_and_of_before() -> None:
    baselines = baseline_of("ema")
    first = torch.tensor([[0.2, 0.4], [1.0, 1.0]], dtype=torch.float64)
    found = baselines.advantages(first, ["policy", "environment"], "none")
    assert found.flatten().tolist() == pytest.approx([-0.1, 0.1, 0, 0]), "nothing before: the batch"
    second = torch.tensor([[0.5, 0.7], [0.0, 1.0]], dtype=torch.float64)
    found = baselines.advantages(second, ["policy", "environment"], "none")
    assert found.flatten().tolist() == pytest.approx([0.2, 0.4, -1.0, 0.0])
    assert baselines.running == pytest.approx({"policy": 0.33, "environment": 0.95})


def test_a_reward_that_could_not_be_had_moves_nothing() -> None:
    rewards = torch.tensor([[0.0, 1.0, torch.nan, 0.5]], dtype=torch.float64)
    for kind in ("leave_one_out", "ema", "adaptive"):
        found = baseline_of(kind).advantages(rewards, ["policy"])
        assert found[0, 2] == 0 and found.isfinite().all(), kind
    found = baseline_of("leave_one_out").advantages(rewards, ["policy"], "none")
    assert found[0].tolist() == pytest.approx([-0.75, 0.75, 0, 0])
    alone = torch.tensor([[0.7, torch.nan, torch.nan, torch.nan]], dtype=torch.float64)
    assert not baseline_of("leave_one_out").advantages(alone, ["policy"]).any()


@pytest.fixture
def controlled(build: Callable[..., Any], start: str) -> Callable[..., Any]:
    """A trainer whose policy has left its reference, and one batch as it trains on."""

    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        options = {"beta": 0.1, "max_completion_length": 12, **options}
        trainer = build(loading.load_model(start), **options)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return trainer, first_batch(trainer)

    return make


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [
        *((name, "token") for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")),
        *((name, "sequence") for name in ("grpo", "luspo")),
    ],
)
def test_k3_is_trls_own_loss(controlled: Callable[..., Any], loss_type: str, level: str) -> None:
    trainer, inputs = controlled(loss_type=loss_type, importance_sampling_level=level)
    ours = trainer.compute_loss(trainer.model, inputs)
    assert trainer.beta == trainer.args.beta > 0
    trls = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    assert ours.item() == pytest.approx(trls.item(), rel=1e-5)
    weight = trainer.model.transformer.h[0].attn.c_attn.weight
    gradients = [torch.autograd.grad(loss, weight)[0] for loss in (ours, trls)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)
    trainer.settle()
    assert trainer._metrics["train"]["kl"][0] == pytest.approx(trainer._metrics["train"]["kl"][1])
    trainer.parts["kl"].controller.beta = 5.0
    more = trainer.compute_loss(trainer.model, inputs).item()
    assert trainer.beta == 5.0
    assert abs(more - trls.item()) > 1e-3, "the coefficient in use is the controller's"
    trainer.parts["kl"].args.kl_estimator = "k2"
    assert trainer.compute_loss(trainer.model, inputs).item() != pytest.approx(more, rel=1e-6)


@pytest.mark.parametrize(
    ("baseline", "mean", "expected"),
    [
        ("leave_one_out", 0.75, [-1.0, 3.0]),
        ("ema", 0.75, [-0.75, 2.25]),
        ("adaptive", 0.0, [0.0, 3.0]),
    ],
)
def test_a_baseline_changes_the_advantages_that_are_trained_on(
    controlled: Callable[..., Any], baseline: str, mean: float, expected: list[float]
) -> None:
    rewards = iter([0.0, 0.0, 0.0, 3.0] * 1_000)
    options = {"reward_funcs": [lambda prompts, **_: [next(rewards) for _ in prompts]]}
    _, inputs = controlled(scale_rewards="none", **options)
    assert sorted(set(inputs["advantages"].tolist())) == pytest.approx([-0.75, 2.25])
    spread = {"baseline_spread": 0.5} if baseline == "adaptive" else {}
    trainer, inputs = controlled(scale_rewards="none", baseline=baseline, **options, **spread)
    assert trainer._metrics["train"]["baseline/mean"][0] == pytest.approx(mean)
    assert sorted(set(inputs["advantages"].tolist())) == pytest.approx(expected)
    if baseline == "ema":
        running = trainer.parts["advantages"].running
        trainer.parts["advantages"].running = dict.fromkeys(running, 0.25)
        inputs = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
        assert sorted(set(inputs["advantages"].tolist())) == pytest.approx([-0.25, 2.75])
    assert sorted(set(trainer._logs["advantages"])) == sorted(set(inputs["advantages"].tolist()))


def test_adaptive_kl_moves_the_coefficient_and_goes_on_after_a_resume(
    build: Callable[..., Any], start: str, tmp_path: Path
) -> None:
    reward = [lambda completions, **_: [float(len(set(text))) for text in completions]]
    options: dict[str, Any] = {"reward_funcs": reward, **NOT_KEPT, "save_strategy": "steps"}
    options |= {"beta": 0.1, "kl_control": "adaptive", "kl_adaptation": "multiplicative"}
    options |= {"kl_target": 1e-9, "learning_rate": 1e-3, "lr_scheduler_type": "constant"}
    options |= {"baseline": "ema", "scale_rewards": "batch", "max_completion_length": 8}
    options |= {"max_steps": 3, "save_steps": 2, "preflight": False}
    trainer = build(loading.load_model(start), **options)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "kl" in entry]
    kls, used = ([entry[key] for entry in logged] for key in ("kl", "kl/coefficient"))
    assert kls[0] == pytest.approx(0, abs=1e-6) and kls[1] > 1e-6
    assert used == pytest.approx([0.1, 0.1, 0.15]), "two steps are judged together"
    assert "kl/window" not in logged[0]
    assert logged[1]["kl/window"] == pytest.approx(sum(kls[:2]) / 2, rel=1e-4)
    assert [entry["kl/verdict"] for entry in logged[:2]] == [0, 1], "raised for the third step"
    checkpoint = tmp_path / "run" / "checkpoint-2"
    kept = json.loads((checkpoint / PARTS_STATE).read_text())
    assert kept["kl"]["beta"] == pytest.approx(used[2]) and kept["baseline_running"]
    again = build(loading.load_model(start), **options)
    again.train(resume_from_checkpoint=str(checkpoint))
    (resumed,) = [log["kl/coefficient"] for log in again.state.log_history[-3:] if "kl" in log]
    assert resumed == pytest.approx(used[2])
