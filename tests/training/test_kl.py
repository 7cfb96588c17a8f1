"""The KL's controllers against worked numbers, its term against TRL's; each control acts."""

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
from rookworld_rlvr.training.arguments import StepArguments
from rookworld_rlvr.training.kl_control import KLControl, KLController
from rookworld_rlvr.training.trainer import CONTROL_STATE

from ..support import NOT_KEPT, first_batch, loss_of, sampled


def adaptive(beta: float, target: float, **keys: Any) -> KLController:
    return KLController(beta, StepArguments(kl_control="adaptive", kl_target=target, **keys))


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
    settled = {"kl": [kl, 10.0]}
    trainer: Any = SimpleNamespace(kl_beta=0.5, settled=settled)
    trainer.keys = StepArguments(kl_control="adaptive", kl_target=0.1)
    trainer.current_gradient_accumulation_steps = 2
    args = SimpleNamespace(per_device_train_batch_size=8, world_size=1)
    callback = KLControl(trainer)
    callback.on_step_end(args, SimpleNamespace(global_step=5), None)
    assert callback.controller.beta == 0.5 and callback.controller.before is None
    assert not callback.controller.measured
    for step in (6, 7):
        settled["kl"] = [10.0, 10.0]
        callback.on_step_end(args, SimpleNamespace(global_step=step), None)
    assert callback.controller.beta == pytest.approx(0.5 * (1 + 0.2 * 32 / 10_000))
    assert callback.controller.before == 1, "the next ones count again"


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
def test_k3_is_trls_own_loss(
    controlled: Callable[..., Any], loss_type: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, inputs = controlled(loss_type=loss_type, importance_sampling_level=level)
    ours = trainer.compute_loss(trainer.model, inputs)
    assert trainer.beta == 0, "TRL adds no term"
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "beta", trainer.args.beta)
        trls = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    assert ours.item() == pytest.approx(trls.item(), rel=1e-5)
    weight = trainer.model.transformer.h[0].attn.c_attn.weight
    gradients = [torch.autograd.grad(loss, weight)[0] for loss in (ours, trls)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)
    trainer.settle()
    logged = trainer._metrics["train"]
    assert logged["kl"][0] == pytest.approx(logged["kl"][1]) and logged["kl"][0] > 0
    trainer.kl.controller.beta = 5.0
    more = trainer.compute_loss(trainer.model, inputs).item()
    trainer.settle()
    assert logged["kl/coefficient"] == [pytest.approx(0.1), 5.0]
    assert abs(more - trls.item()) > 1e-3, "the coefficient in use is the controller's"
    trainer.keys.kl_estimator = "k2"
    assert trainer.compute_loss(trainer.model, inputs).item() != pytest.approx(more, rel=1e-6)


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo"])
def test_the_term_is_the_mean_kl_of_sampled_tokens_times_the_coefficient(
    controlled: Callable[..., Any], loss_type: str
) -> None:
    """Advantages of 0 leave nothing else in the loss, but no row may be left out of it."""
    trainer, inputs = controlled(loss_type=loss_type, kl_estimator="k2")
    inputs["advantages"].zero_()
    loss: Any = loss_of(trainer, inputs)
    assert loss.scores.counted.all() and loss.terms["policy"].item() == 0
    mask = inputs["completion_mask"]
    kl = (inputs["ref_per_token_logps"] - loss.scores.logps).square() / 2 * mask
    means = {"grpo": (kl.sum(1) / mask.sum(1)).mean()}
    mean = means.get(loss_type, kl.sum() / mask.sum())
    assert loss.total.item() == pytest.approx(0.1 * mean.item(), rel=1e-4)
    weight = trainer.model.transformer.ln_f.weight
    both = (loss.total, 0.1 * mean)
    gradients = [torch.autograd.grad(one, weight, retain_graph=True)[0] for one in both]
    assert gradients[1].abs().max() > 1e-4
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-7)


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
        trainer.baseline.running = dict.fromkeys(trainer.baseline.running, 0.25)
        inputs = sampled(trainer, next(iter(trainer.get_train_dataloader())))
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
    kept = json.loads((checkpoint / CONTROL_STATE).read_text())
    assert kept["kl"]["beta"] == pytest.approx(used[2]) and kept["baseline_running"]
    again = build(loading.load_model(start), **options)
    again.train(resume_from_checkpoint=str(checkpoint))
    (resumed,) = [log["kl/coefficient"] for log in again.state.log_history[-3:] if "kl" in log]
    assert resumed == pytest.approx(used[2])
