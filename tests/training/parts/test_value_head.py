"""Advantages by token from a value head, and the head's life beside the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.value_head import VALUE_HEAD_FILE, generalised_advantages

REWARDS = [{"name": "environment_exact"}]
GAE = {"advantage_estimator": "gae", "rewards": REWARDS}


def by_definition(
    reward: float, values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """The sum over later errors, term by term, as the paper's equation 16 has it."""
    steps = len(values)
    errors = [
        (reward if t == steps - 1 else 0.0)
        + gamma * (values[t + 1] if t + 1 < steps else 0.0)
        - values[t]
        for t in range(steps)
    ]
    advantages = [
        sum((gamma * lam) ** (later - t) * errors[later] for later in range(t, steps))
        for t in range(steps)
    ]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 0.95)])
def test_advantages_are_the_papers(gamma: float, lam: float) -> None:
    values = torch.tensor([[0.1, 0.5, -0.2, 0.4], [0.3, 0.2, 9.0, 9.0], [0.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    rewards = torch.tensor([1.0, -0.5, 2.0])
    advantages, returns = generalised_advantages(rewards, values.double(), mask, gamma, lam)
    for row, length in enumerate([4, 2, 1]):
        expected = by_definition(rewards[row].item(), values[row, :length].tolist(), gamma, lam)
        assert advantages[row, :length].tolist() == pytest.approx(expected[0], abs=1e-6)
        assert returns[row, :length].tolist() == pytest.approx(expected[1], abs=1e-6)
        assert not advantages[row, length:].any() and not returns[row, length:].any()


def last_rewards(trainer: Any) -> torch.Tensor:
    """Those of the only reward function, as they were logged, ``(N,)``."""
    (name,) = trainer.reward_func_names
    return torch.tensor(list(trainer.completion_log()["rewards", name]))


@pytest.fixture
def valued(make_trainer: Callable[..., Any], random_gpt2: Any, tokenizer: Any) -> Any:
    """A trainer by gae, and one batch as it trains on."""

    def build(reward: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        reward = reward or (lambda completions, **_: [float(len(text)) for text in completions])
        options = {**GAE, "max_completion_length": 8, **options}
        trainer = make_trainer(random_gpt2, tokenizer, reward_funcs=[reward], **options)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        return trainer, batch

    return build


def test_without_a_value_yet_every_token_has_its_completions_reward(valued: Any) -> None:
    trainer, batch = valued(scale_rewards="none", gae_lambda=1.0)
    rewards = last_rewards(trainer)
    mask = batch["completion_mask"]
    assert batch["advantages"].shape == mask.shape
    found = sorted(set(batch["advantages"][mask.bool()].tolist()))
    assert found == sorted(set(rewards.tolist())), "the head starts from 0"
    assert not batch["advantages"][~mask.bool()].any()


def test_advantages_are_whitened_over_all_tokens(valued: Any) -> None:
    _, batch = valued()
    kept = batch["advantages"][batch["completion_mask"].bool()]
    assert kept.mean().item() == pytest.approx(0, abs=1e-5)
    assert kept.std(correction=0).item() == pytest.approx(1, abs=1e-3)


def test_an_unscored_completion_moves_neither_policy_nor_head(valued: Any) -> None:
    scores = iter([1.0, None, 0.0, 3.0] * 100)
    trainer, batch = valued(lambda prompts, **_: [next(scores) for _ in prompts])
    unscored = batch["value_mask"].sum(1) == 0
    assert unscored.sum() == last_rewards(trainer).isnan().sum() == 2
    assert not batch["advantages"][unscored].any()
    assert batch["advantages"].isfinite().all()


def test_the_heads_loss_is_in_the_loss_and_reaches_head_and_policy(valued: Any) -> None:
    trainer, batch = valued(value_coef=0.5)
    whole = trainer.compute_loss(trainer.model, batch)
    whole.backward()
    head = trainer.model.value_head
    assert head.weight.grad.abs().max() > 0 and head.bias.grad.abs().max() > 0
    with_head = trainer.model.transformer.h[0].mlp.c_fc.weight.grad.clone()
    trainer.parts["value_head"].args.value_coef = 0.0
    trainer.model.zero_grad()
    bare = trainer.compute_loss(trainer.model, batch)
    bare.backward()
    logged = trainer._metrics["train"]["value/loss"][0]
    assert (whole - bare).item() == pytest.approx(0.5 * logged, rel=1e-4), "dapo: by token"
    mask = batch["value_mask"]
    assert logged == pytest.approx(
        (0.5 * batch["returns"].square() * mask).sum().item() / mask.sum().item(), rel=1e-5
    )
    torch.nn.init.normal_(head.weight)  # a head of zeros sends no gradient further down
    trainer.parts["value_head"].args.value_coef = 0.5
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, batch).backward()
    down = trainer.model.transformer.h[0].mlp.c_fc.weight.grad
    assert (down - with_head).abs().max() > 1e-6


def test_values_are_of_the_states_before_each_token_whatever_the_temperature(valued: Any) -> None:
    trainer, batch = valued(
        task_sampling={"policy": {"temperature": 0.5}, "environment": {"temperature": 2.0}}
    )
    torch.nn.init.normal_(trainer.model.value_head.weight, std=0.1)
    advantages = trainer.parts["value_head"].advantages(
        batch, torch.zeros(batch["prompt_ids"].size(0))
    )
    returns = advantages["returns"]
    trainer.parts[
        "value_head"
    ].args.gae_lambda = 0.0  # then an error and the value make the next value
    one = trainer.parts["value_head"].advantages(batch, torch.zeros(batch["prompt_ids"].size(0)))[
        "returns"
    ]
    assert not torch.equal(one, returns)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        states = trainer.model.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        values = trainer.model.value_head(states).squeeze(-1)
    length = batch["completion_ids"].size(1)
    following = values[:, -length:-1] * batch["completion_mask"][:, 1:]
    torch.testing.assert_close(one[:, :-1], following, rtol=1e-4, atol=1e-4)


def test_the_head_learns_and_its_explained_variance_is_logged(build: Callable[..., Any]) -> None:
    def environment_is_worth_two(prompts: list[str], **_: Any) -> list[float]:
        return [2.0 if prompt.startswith("A:") else 0.0 for prompt in prompts]

    trainer = build(
        reward_funcs=[environment_is_worth_two],
        **GAE,
        task_phases=[{"environment": 0.5, "policy": 0.5}],
        max_steps=40,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        value_learning_rate=3e-2,
        gae_lambda=1.0,
        per_device_train_batch_size=16,
        max_completion_length=4,
        logging_steps=1,
        eval_steps=100,
        save_strategy="no",
        load_best_model_at_end=False,
        preflight=False,
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "value/loss" in entry]
    explained = [entry["value/explained_variance"] for entry in logs]
    assert explained[0] == pytest.approx(0, abs=1e-6), "a head of zeros explains nothing"
    assert sum(explained[-10:]) / 10 > 0.2
    assert logs[-1]["value/loss"] < 0.7 * logs[0]["value/loss"]
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == pytest.approx([1e-6, 1e-6, 3e-2])


def test_the_head_is_in_checkpoints_and_goes_on_but_is_not_exported(
    build: Callable[..., Any], random_gpt2: Any, tmp_path: Path
) -> None:
    options = {
        **GAE,
        "reward_funcs": [lambda completions, **_: [float(len(text)) for text in completions]],
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "save_steps": 2,
        "eval_steps": 100,
        "load_best_model_at_end": False,
        "preflight": False,
    }
    random_gpt2.save_pretrained(tmp_path / "start")
    start = str(tmp_path / "start")
    trainer = build(loading.load_model(start), **options, max_steps=3)
    trainer.train()
    checkpoint = tmp_path / "run" / "checkpoint-2"
    kept = safetensors.torch.load_file(checkpoint / VALUE_HEAD_FILE)
    assert kept["weight"].abs().max() > 0
    for folder in (checkpoint, tmp_path / "run" / "checkpoint-3"):
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        assert not [name for name in weights if "value_head" in name]
    trainer.save_model(str(tmp_path / "final"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert not hasattr(plain, "value_head")
    assert not [
        n
        for n in safetensors.torch.load_file(tmp_path / "final" / "model.safetensors")
        if "value" in n
    ]

    again = build(loading.load_model(start), **options, max_steps=3)
    again.train(resume_from_checkpoint=str(checkpoint))
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_adapters_and_a_head_train_together(build: Callable[..., Any]) -> None:
    from peft import LoraConfig

    trainer = build(
        **GAE,
        reward_funcs=[lambda completions, **_: [float(len(text)) for text in completions]],
        peft_config=LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM"),
        max_completion_length=6,
        learning_rate=1e-2,
        eval_steps=100,
        save_strategy="no",
        load_best_model_at_end=False,
    )
    trainer.train()
    head = trainer.model.get_base_model().value_head
    assert head.weight.abs().max() > 0
