"""Models that are no GPT-2: Llama, Qwen2 and GPT-Neo train; what cannot is refused with its reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.models.loading import check_lengths

ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
NEO = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "max_position_embeddings": 256,
    "attention_types": [[["global", "local"], 1]],
    "initializer_range": 0.2,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, ROTARY),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, ROTARY),
    "gpt_neo": (GPTNeoForCausalLM, GPTNeoConfig, NEO),
}


def tiny(kind: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    model, config, shape = KINDS[kind]
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    found: PreTrainedModel = model(config(vocab_size=len(tokenizer), **shape, **ends))
    return found


def length(completions: list[str], **columns: Any) -> list[float]:
    """Something that random weights answer differently."""
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("kind", KINDS)
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
    trainer = build(model, reward_funcs=[length], max_steps=3, **options)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    trainer.train()
    assert trainer.state.global_step == 3
    assert trainer.preflight is not None and not trainer.preflight.faults(1e-3)
    assert not torch.equal(trainer.model.get_input_embeddings().weight, before)


def test_adapters_on_a_llama(tokenizer: Any, build: Callable[..., Any]) -> None:
    adapters = LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    trainer = build(tiny("llama", tokenizer), peft_config=adapters, beta=0.1, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2 and not trainer.preflight.faults(1e-3)


def test_a_table_of_positions_by_another_name_is_seen(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(RookWorldError, match=r"300 .* give at most 254"):
        check_lengths(tiny("llama", tokenizer).config, tokenizer, ["P: 8"], 300)


def test_a_prompt_that_fills_all_positions_is_named(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(RookWorldError, match="leave out rows with such long prompts") as caught:
        check_lengths(tiny("llama", tokenizer).config, tokenizer, ["8" * 400], 10)
    assert "give at most" not in str(caught.value)
