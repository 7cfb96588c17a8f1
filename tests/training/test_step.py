"""What a step logs and computes where an earlier one was wrong; each was first shown to fail."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rookworld_rlvr.models import loading
from rookworld_rlvr.models.choices import choice_logps
from rookworld_rlvr.training.losses import SOFT_TEMPERATURE
from rookworld_rlvr.training.scoring import ATTENTION

from ..support import loss_of, sampled


def test_lengths_are_those_of_what_is_trained_on(made: Any) -> None:
    """Taught answers took the place of completions whose lengths were logged."""
    trainer = made(zero_variance="teach", max_completion_length=48, temperature=2.0)
    batch = sampled(trainer, [row for row in list(trainer.train_dataset)[:4] for _ in range(2)])
    lengths = batch["completion_mask"].sum(1)
    logged = trainer._metrics["train"]
    assert batch["taught"].any() and lengths.float().std() > 0
    assert logged["completions/mean_length"] == pytest.approx([lengths.float().mean().item()])
    assert logged["completions/max_length"] == [lengths.max().item()]
    prompts = batch["prompt_mask"].sum().item()
    assert logged["num_tokens"] == [prompts + lengths.sum().item()]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_moves_are_weighed_at_the_temperature_at_which_they_are_sampled(
    made: Any, temperature: float
) -> None:
    coefs = {"expected_score_coef": 2.0, "soft_moves_coef": 0.5}
    trainer = made(**coefs, task_sampling={"policy": {"temperature": temperature}})
    row = next(row for row in trainer.train_dataset if row["task"] == "policy")
    batch = sampled(trainer, [row, row])
    ((before, choices, worth, heat),) = batch["moves"][0]
    assert heat == temperature
    values, total, legal = torch.tensor(worth), [], 0.0
    for choice in choices:  # one move at a time, token by token
        ids = torch.tensor([[*before, *choice]])
        logits = trainer.model(input_ids=ids).logits[0, len(before) - 1 : -1] / temperature
        steps = logits.log_softmax(-1).gather(1, ids[0, len(before) :, None])
        total.append(steps.sum())
        legal += steps.sum().exp().item()
    logps = torch.stack(total)
    score = (logps.exp() * values).sum().log()
    soft = (logps * (values / SOFT_TEMPERATURE).softmax(0)).sum()
    term = loss_of(trainer, batch).terms["moves"]
    assert term.item() == pytest.approx((-2.0 * score - 0.5 * soft).item(), rel=1e-4)
    trainer.settle()
    assert trainer._metrics["train"]["moves/legal"] == pytest.approx([legal], rel=1e-4)


def test_choices_have_their_contexts_temperatures(made: Any) -> None:
    model = made().model
    contexts, choices = [[5, 6], [5, 6]], [[[7], [8]], [[7], [8]]]
    plain, heated = choice_logps(model, contexts, choices, [1.0, 2.0])
    logits = model(input_ids=torch.tensor([[5, 6]])).logits[0, -1]
    torch.testing.assert_close(plain, logits.log_softmax(-1)[[7, 8]])
    torch.testing.assert_close(heated, (logits / 2).log_softmax(-1)[[7, 8]])


def test_without_a_reference_the_preflight_has_no_kl(made: Any) -> None:
    trainer = made(beta=0.0, max_steps=1, preflight=True, eval_strategy="no")
    trainer.train()
    assert trainer.preflight.reference_kl is None
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert "preflight/sampler_gap" in logged and "preflight/reference_kl" not in logged
    trainer = made(beta=0.1, max_steps=1, preflight=True, eval_strategy="no")
    trainer.train()
    assert abs(trainer.preflight.reference_kl) < 1e-5


def test_trl_adds_no_kl_term_of_its_own(made: Any) -> None:
    trainer = made(beta=0.1)
    assert trainer.beta == 0.0 and trainer.kl_beta == 0.1 == trainer.args.beta
    assert trainer.ref_model is not None and trainer.kl.controller.beta == 0.1


def test_only_our_networks_share_prompts(made: Any) -> None:
    beside = loading.load_model(loading.PACKAGED_MODEL)
    trainer = made(beta=0.1)
    for network in trainer.networks():
        assert network.config._attn_implementation == ATTENTION
    assert beside.config._attn_implementation == "sdpa"
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward
