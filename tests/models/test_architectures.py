"""Models that are no GPT-2: Llama, Qwen2 and GPT-Neo train; what cannot is refused with its reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedTokenizerBase

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.models.choices import choice_logps
from rookworld_rlvr.models.loading import check_lengths

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
SCALES = {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}
ROTARY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
ROTARY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 256}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2 of other scales": {**GPT2, **SCALES},
    "gpt2 upcast": {**GPT2, "reorder_and_upcast_attn": True},
    "llama": ROTARY,
    "qwen2": ROTARY,
    "gpt_neo": {**NEO, "attention_types": [[["global", "local"], 1]]},
    "mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
}


def network(kind: str, vocabulary: int, end: int, spread: float = 0.3, **shape: Any) -> Any:
    """A model with random weights, whose distributions are far from uniform."""
    torch.manual_seed(0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    shape = {"vocab_size": vocabulary, "initializer_range": spread, **KINDS[kind], **shape, **ids}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind.split()[0], **shape))


def tiny(kind: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    return network(kind, len(tokenizer), tokenizer.eos_token_id, spread=0.2)


def length(completions: list[str], **columns: Any) -> list[float]:
    """Something that random weights answer differently."""
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt_neo"])
@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.1, "task_sampling": {"policy": {"temperature": 0.7}}},
        {"advantage_estimator": "gae"},
    ],
    ids=["kl and temperatures", "gae"],
)
def test_it_trains_and_the_preflight_finds_nothing(
    kind: str, options: dict[str, Any], tokenizer: Any, build: Callable[..., Any], tmp_path: Path
) -> None:
    tiny(kind, tokenizer).save_pretrained(tmp_path / "model")  # TRL loads the reference from there
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    trainer = build(model, reward_funcs=[length], max_steps=2, max_completion_length=8, **options)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    trainer.train()
    assert trainer.preflight is not None and not trainer.preflight.faults(1e-3)
    assert not torch.equal(trainer.model.get_input_embeddings().weight, before)


@pytest.mark.parametrize(
    ("prompt", "length", "said"),
    [
        ("P: 8", 300, r"300 .* give at most 254"),
        ("8" * 400, 10, r"^((?!give at most).)*leave out rows with such long prompts"),
    ],
)
def test_a_table_of_positions_by_another_name_is_seen(
    tokenizer: PreTrainedTokenizerBase, prompt: str, length: int, said: str
) -> None:
    with pytest.raises(RookWorldError, match=said):
        check_lengths(tiny("llama", tokenizer).config, tokenizer, [prompt], length)


CONTEXTS = [[5, 9, 2, 7], [3], [8, 8, 1, 4, 4, 6]]
CHOICES = [[[1], [2, 3], [2, 4], [2, 4, 5]], [[7]], [[9, 9, 9, 1], [9, 9, 9, 2], [9, 1], [0]]]


def alone(network: Any, context: list[int], choice: list[int]) -> torch.Tensor:
    logps = network(input_ids=torch.tensor([[*context, *choice]])).logits[0].log_softmax(-1)
    return logps[len(context) - 1 : -1].gather(1, torch.tensor(choice)[:, None]).sum()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_choice_has_the_log_prob_of_its_own_row(
    family: str, random_gpt2: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    network = random_gpt2 if family == "gpt2" else tiny(family, tokenizer)
    network.eval()
    ours = torch.cat(choice_logps(network, CONTEXTS, CHOICES, [1.0] * len(CONTEXTS)))
    rows = zip(CONTEXTS, CHOICES, strict=True)
    theirs = torch.stack([alone(network, context, one) for context, many in rows for one in many])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    gradients = []
    for logps in (ours, theirs):
        network.zero_grad()
        (logps * torch.arange(1.0, len(logps) + 1)).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


def test_the_exact_gradient_is_the_mean_of_sampled_ones(random_gpt2: GPT2LMHeadModel) -> None:
    """REINFORCE over a move of one token, 10,000 samples, with respect to the last hidden layer."""
    torch.manual_seed(0)
    moves, worth = [[token] for token in range(12)], torch.rand(12)
    weight = random_gpt2.transformer.ln_f.weight
    random_gpt2.eval()
    (logps,) = choice_logps(random_gpt2, [CONTEXTS[0]], [moves], [1.0])
    (exact,) = torch.autograd.grad((logps.exp() * worth).sum(), weight, retain_graph=True)
    scores = torch.stack([torch.autograd.grad(p, weight, retain_graph=True)[0] for p in logps])
    illegal = 1 - logps.exp().sum().detach()  # it gets 0, so that its samples add nothing
    chances = torch.cat([logps.exp().detach(), illegal.view(1)])
    drawn = torch.multinomial(chances, 10_000, replacement=True)
    samples = torch.cat([scores * worth.unsqueeze(1), torch.zeros(1, weight.numel())])[drawn]
    assert ((samples.mean(0) - exact).abs() < 5 * samples.std(0) / 100 + 1e-7).all()
    assert samples.var(0).sum() > 0, "the exact one has no variance"


def test_adapters_on_a_llama(tokenizer: Any, build: Callable[..., Any]) -> None:
    adapters = LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    options = {"beta": 0.1, "max_steps": 1, "max_completion_length": 8, "reward_funcs": [length]}
    trainer = build(tiny("llama", tokenizer), peft_config=adapters, **options)
    trainer.train()
    assert trainer.preflight is not None and not trainer.preflight.faults(1e-3)
