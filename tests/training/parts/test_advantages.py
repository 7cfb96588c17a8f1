"""Controls act: each test fails where its control is disconnected."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.advantages import Baseline
from rookworld_rlvr.training.parts.registry import PartArguments
from rookworld_rlvr.training.trainer import PARTS_STATE

from ...conftest import NOT_KEPT, first_batch

STEPS = {**NOT_KEPT, "preflight": False}


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


def loss_and_gradient(
    trainer: Any, compute: Callable[[], torch.Tensor]
) -> tuple[float, torch.Tensor]:
    trainer.model.zero_grad()
    loss = compute()
    loss.backward()
    return loss.item(), trainer.model.transformer.h[0].attn.c_attn.weight.grad.clone()


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [
        *((name, "token") for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")),
        *((name, "sequence") for name in ("grpo", "luspo")),
    ],
)
def test_k3_is_trls_own_loss(controlled: Callable[..., Any], loss_type: str, level: str) -> None:
    trainer, inputs = controlled(loss_type=loss_type, importance_sampling_level=level)
    ours = loss_and_gradient(trainer, lambda: trainer.compute_loss(trainer.model, inputs))
    assert trainer.beta == trainer.args.beta > 0
    trls = loss_and_gradient(
        trainer, lambda: GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    )
    assert ours[0] == pytest.approx(trls[0], rel=1e-5)
    torch.testing.assert_close(ours[1], trls[1], rtol=1e-4, atol=1e-7)
    trainer.settle()
    assert trainer._metrics["train"]["kl"][0] == pytest.approx(trainer._metrics["train"]["kl"][1])
    trainer.parts["kl"].controller.beta = 5.0
    more = trainer.compute_loss(trainer.model, inputs).item()
    assert trainer.beta == 5.0
    assert abs(more - trls[0]) > 1e-3, "the coefficient in use is the controller's"
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
    options = {
        "reward_funcs": [lambda prompts, **_: [next(rewards) for _ in prompts]],
        "scale_rewards": "none",
    }
    _, inputs = controlled(**options)
    assert sorted(set(inputs["advantages"].tolist())) == pytest.approx([-0.75, 2.25])
    spread = {"baseline_spread": 0.5} if baseline == "adaptive" else {}
    trainer, inputs = controlled(**options, **spread, baseline=baseline)
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
    options = {
        "reward_funcs": [lambda completions, **_: [float(len(set(text))) for text in completions]],
        "beta": 0.1,
        "kl_control": "adaptive",
        "kl_adaptation": "multiplicative",
        "kl_target": 1e-9,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "baseline": "ema",
        "scale_rewards": "batch",
        "max_completion_length": 8,
        "max_steps": 3,
        **STEPS,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    trainer = build(loading.load_model(start), **options)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "kl" in entry]
    kls = [entry["kl"] for entry in logged]
    used = [entry["kl/coefficient"] for entry in logged]
    assert kls[0] == pytest.approx(0, abs=1e-6) and kls[1] > 1e-6
    assert used == pytest.approx([0.1, 0.1, 0.15]), "two steps are judged together"
    assert "kl/window" not in logged[0]
    assert logged[1]["kl/window"] == pytest.approx(sum(kls[:2]) / 2, rel=1e-4)
    assert [entry["kl/verdict"] for entry in logged[:2]] == [0, 1], "raised for the third step"
    assert logged[1]["kl/target"] == 1e-9
    kept = json.loads((tmp_path / "run" / "checkpoint-2" / PARTS_STATE).read_text())
    assert kept["kl"]["beta"] == pytest.approx(used[2])
    assert kept["baseline_running"]

    again = build(loading.load_model(start), **options)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    (resumed,) = [
        entry["kl/coefficient"] for entry in again.state.log_history[-3:] if "kl" in entry
    ]
    assert resumed == pytest.approx(used[2])
