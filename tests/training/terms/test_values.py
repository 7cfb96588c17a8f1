from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from rookworld_rlvr.training.advantages import generalised_advantages
from rookworld_rlvr.training.rollouts import whole
from rookworld_rlvr.training.terms.values import VALUE_HEAD_FILE

from ...models.test_architectures import length
from ...support import NOT_KEPT, first_batch, loss_of

GAE = {"advantage_estimator": "gae", "reward_funcs": [length], "max_completion_length": 6}


def by_definition(reward: float, values: torch.Tensor, gamma: float, lam: float) -> Any:
    """The sum over later errors, term by term, as the paper's equation 16 has it."""
    errors = gamma * torch.cat([values[1:], torch.tensor([0.0])]) - values
    errors[-1] += reward
    places = torch.arange(len(values), dtype=values.dtype)
    powers = (gamma * lam) ** (places - places[:, None])
    return (powers.triu() * errors).sum(1)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 0.95)])
def test_advantages_are_the_papers(gamma: float, lam: float) -> None:
    values = torch.tensor([[0.1, 0.5, -0.2, 0.4], [0.3, 0.2, 9.0, 9.0], [0.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    rewards = torch.tensor([1.0, -0.5, 2.0])
    advantages, returns = generalised_advantages(rewards, values.double(), mask, gamma, lam)
    for row, size in enumerate([4, 2, 1]):
        own = values[row, :size].double()
        expected = by_definition(rewards[row].item(), own, gamma, lam)
        torch.testing.assert_close(advantages[row, :size], expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(returns[row, :size], expected + own, atol=1e-6, rtol=1e-6)
        assert not advantages[row, size:].any() and not returns[row, size:].any()


@pytest.fixture
def valued(build: Callable[..., Any]) -> Any:
    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        trainer = build(**{**GAE, **options})
        return trainer, first_batch(trainer)

    return make


def test_without_a_value_yet_every_token_has_its_completions_reward(valued: Any) -> None:
    trainer, batch = valued(scale_rewards="none", gae_lambda=1.0)
    (name,) = trainer.reward_func_names
    rewards = trainer.completion_log()["rewards", name]
    mask = batch["completion_mask"].bool()
    assert set(batch["advantages"][mask].tolist()) == set(rewards), "the head starts from 0"
    assert batch["advantages"].shape == mask.shape and not batch["advantages"][~mask].any()


def test_advantages_are_whitened_over_scored_tokens_and_others_move_nothing(valued: Any) -> None:
    scores = iter([1.0, None, 0.0, 3.0] * 100)
    _, batch = valued(reward_funcs=[lambda prompts, **_: [next(scores) for _ in prompts]])
    unscored = batch["value_mask"].sum(1) == 0
    assert unscored.sum() == 2 and not batch["advantages"][unscored].any()
    kept = batch["advantages"][batch["value_mask"].bool()]
    assert kept.mean().item() == pytest.approx(0, abs=1e-5)
    assert kept.std(correction=0).item() == pytest.approx(1, abs=1e-3)


def test_the_heads_loss_is_in_the_loss_and_reaches_head_and_policy(valued: Any) -> None:
    trainer, batch = valued(value_coef=0.5)
    head, weight = trainer.model.value_head, trainer.model.transformer.h[0].mlp.c_fc.weight

    def loss_and_gradient(value_coef: float) -> tuple[float, torch.Tensor]:
        trainer.keys.value_coef = value_coef
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        return loss.item(), weight.grad.clone()

    bare, _ = loss_and_gradient(0.0)
    trainer.settle()
    with_head, gradient = loss_and_gradient(0.5)
    assert head.weight.grad.any() and head.bias.grad.any()
    logged = trainer._metrics["train"]["value/loss"][0]
    assert with_head - bare == pytest.approx(0.5 * logged, rel=1e-4), "dapo: by token"
    mask = batch["value_mask"]
    squares = (0.5 * batch["returns"].square() * mask).sum() / mask.sum()
    assert logged == pytest.approx(squares.item(), rel=1e-5)
    torch.nn.init.normal_(head.weight)  # a head of zeros sends no gradient further down
    assert (loss_and_gradient(0.5)[1] - gradient).abs().max() > 1e-6


def test_right_answers_in_the_same_forward_have_no_values(valued: Any) -> None:
    """Those of the completions are what they are without the supervised term."""
    trainer, batch = valued(sft_coef=0.5, max_completion_length=96)
    torch.nn.init.normal_(trainer.model.value_head.weight, std=0.1)
    both = loss_of(trainer, batch)
    assert both.terms.keys() == {"policy", "value", "supervised"}
    without = {name: column for name, column in batch.items() if not name.startswith("answer")}
    alone = loss_of(trainer, without)
    assert batch["answer_items"] > 0 and both.terms["supervised"].item() > 0
    for name in ("policy", "value"):
        assert both.terms[name].item() == pytest.approx(alone.terms[name].item(), rel=1e-4)
    torch.testing.assert_close(both.scores.values, alone.scores.values, atol=1e-5, rtol=1e-4)


def test_values_are_of_the_states_before_each_token_whatever_the_temperature(valued: Any) -> None:
    heats = {"policy": {"temperature": 0.5}, "environment": {"temperature": 2.0}}
    trainer, _ = valued(task_sampling=heats)
    sampled = trainer.rollouts_of(trainer.rollouts.rows)
    batch, nothing = sampled.batch, torch.zeros(len(sampled.rows))
    assert {*sampled.temperatures.tolist()} == {0.5, 2.0}
    torch.nn.init.normal_(trainer.model.value_head.weight, std=0.1)
    returns = trainer.value_head.columns(sampled, nothing)["returns"]
    trainer.keys.gae_lambda = 0.0  # then an error and the value make the next value
    one = trainer.value_head.columns(sampled, nothing)["returns"]
    assert not torch.equal(one, returns)
    ids, mask, size = whole(batch)
    with torch.no_grad():
        states = trainer.model.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        values = trainer.model.value_head(states).squeeze(-1)
    following = values[:, -size:-1] * batch["completion_mask"][:, 1:]
    torch.testing.assert_close(one[:, :-1], following, rtol=1e-4, atol=1e-4)


def test_the_head_is_in_checkpoints_and_goes_on_but_is_not_exported(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    options = {**NOT_KEPT, **GAE, "preflight": False, "learning_rate": 1e-3, "max_steps": 3}
    options |= {"lr_scheduler_type": "constant", "value_learning_rate": 3e-2}
    options |= {"save_strategy": "steps", "save_steps": 2}
    trainer = build(**options)
    trainer.train()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == pytest.approx([1e-3, 1e-3, 3e-2])
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert load_file(checkpoint / VALUE_HEAD_FILE)["weight"].abs().max() > 0
    trainer.save_model(str(tmp_path / "final"))
    for folder in (checkpoint, tmp_path / "run" / "checkpoint-3", tmp_path / "final"):
        assert not [name for name in load_file(folder / "model.safetensors") if "value" in name]

    again = build(**options)
    again.train(resume_from_checkpoint=str(checkpoint))
    ours, theirs = ({**one.model.state_dict()} for one in (again, trainer))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_adapters_and_a_head_train_together(build: Callable[..., Any]) -> None:
    adapters = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    trainer = build(**{**NOT_KEPT, **GAE}, peft_config=adapters, learning_rate=1e-2)
    trainer.train()
    assert trainer.model.get_base_model().value_head.weight.abs().max() > 0
