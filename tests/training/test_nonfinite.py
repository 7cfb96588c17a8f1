import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.training.losses import propagate_nonfinite
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import NOT_KEPT


def uneven(completions: list[str], **_: Any) -> list[float]:
    return [float(turn % 4) for turn, _ in enumerate(completions)]


@pytest.fixture
def failing_trainer(build: Callable[..., Any]) -> Callable[..., Any]:
    """A trainer whose loss is multiplied by `factor` in the micro-batches that are named, from 0."""

    def make(*places: int, factor: float = math.nan, **options: Any) -> Any:
        settings = {**NOT_KEPT, "max_steps": 4, "preflight": False, "max_completion_length": 4}
        trainer = build(**{**settings, "reward_funcs": [uneven], **options})
        loss, calls = trainer.compute_loss, itertools.count()

        def planted(model: Any, inputs: Any, **_: Any) -> Any:
            return loss(model, inputs) * (factor if next(calls) in places else 1)

        trainer.compute_loss = planted
        return trainer

    return make


def watch(trainer: Any) -> list[list[torch.Tensor]]:
    """Weights and the optimiser's state before and after every step."""
    seen: list[list[torch.Tensor]] = []

    def keep() -> bool:
        states = trainer.optimizer.optimizer.state_dict()["state"].values()
        numbers = [*trainer.model.parameters(), *(one for of in states for one in of.values())]
        seen.append([one.detach().clone() for one in numbers])
        return True

    callback = trainer.nonfinite
    before, after = callback.on_pre_optimizer_step, callback.on_step_end
    callback.on_pre_optimizer_step = lambda *a, **k: keep() and before(*a, **k)
    callback.on_step_end = lambda *a, **k: keep() and after(*a, **k)
    return seen


@pytest.mark.parametrize(
    ("factor", "max_grad_norm"), [(math.nan, 1.0), (math.inf, 0.0), (math.inf, 1.0)]
)
def test_a_step_is_skipped_with_nothing_touched(
    failing_trainer: Callable[..., Any], factor: float, max_grad_norm: float
) -> None:
    options = {"max_grad_norm": max_grad_norm, "gradient_accumulation_steps": 2}
    trainer = failing_trainer(2, factor=factor, **options)  # the first half of the second step
    seen = watch(trainer)
    trainer.train()
    are_same = [
        len(before) == len(after) and all(map(torch.equal, before, after))
        for before, after in zip(seen[::2], seen[1::2], strict=True)
    ]
    assert are_same == [False, True, False, False]
    assert all(bool(one.isfinite().all()) for one in trainer.model.parameters())
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["health/skipped_steps"] for entry in logs] == [0, 1, 1, 1]
    assert len({entry["learning_rate"] for entry in logs}) == 4, "the schedule goes on"


def test_too_many_in_a_row_end_the_run_and_name_its_checkpoint(failing_trainer: Any) -> None:
    trainer = failing_trainer(1, 3, 4, 5, max_steps=8, save_strategy="steps", save_steps=1)
    said = r"in 3 steps in a row up to step 6.*checkpoint-5; lower"
    with pytest.raises(RookWorldError, match=said):
        trainer.train()
    assert trainer.state.global_step == 5, "of the sixth"
    assert trainer.nonfinite.state()["nonfinite_skipped"] == 4


def test_a_loss_that_is_not_finite_shows_in_the_gradient() -> None:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(propagate_nonfinite(weight[0] + torch.tensor(math.nan)), weight)
    assert grad.isnan().any(), "although nan is a constant here"
    loss = (weight.sin() * torch.tensor([0.3, 0.7])).sum()
    (plain,) = torch.autograd.grad(loss, weight, retain_graph=True)
    (same,) = torch.autograd.grad(propagate_nonfinite(loss), weight)
    assert torch.equal(plain, same) and propagate_nonfinite(loss) == loss


class OfNaN(RookWorldGRPOTrainer):
    def loss_terms(self, *given: Any) -> dict[str, torch.Tensor]:
        return super().loss_terms(*given) | {"own": torch.tensor(math.nan, requires_grad=True)}


def test_the_term_that_is_not_finite_is_named(failing_trainer: Callable[..., Any]) -> None:
    trainer = failing_trainer(kind=OfNaN)
    said = r"up to step 3 \(loss/own\); the last good checkpoint is none"
    with pytest.raises(RookWorldError, match=said):
        trainer.train()
