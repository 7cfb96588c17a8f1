"""Plain TRL with a GPT-2: what our rewards say of it, by real steps of its trainer."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from rookworld_rlvr.data import load_rows
from rookworld_rlvr.models.gpt2 import number_positions_from_mask
from rookworld_rlvr.rewards import environment_exact, graduated, positions
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import NOT_KEPT, mixed_rows


@pytest.fixture(autouse=True)
def _not_said_yet() -> Iterator[None]:
    positions._warn.cache_clear()
    yield
    positions._warn.cache_clear()


def warnings_of(trainer: Any, caplog: Any) -> list[str]:
    """What is said of positions while a trainer takes two steps."""
    with caplog.at_level(logging.WARNING, logger=positions.__name__):
        trainer.train()
    return [one.message for one in caplog.records if one.name == positions.__name__]


@pytest.fixture
def options(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> dict[str, Any]:
    """Of a trainer that takes two steps on rows of two tasks, with two rewards."""
    limits = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 8}
    keys = {
        **NOT_KEPT,
        **limits,
        "max_steps": 2,
        "eval_strategy": "no",
        "output_dir": str(tmp_path / "run"),
    }
    rows = mixed_rows(load_rows(max_rows=300, synthetic_rows=40)["train"], each=4)
    return {"keys": keys, "train_dataset": rows, "processing_class": tokenizer}


def made(kind: Any, config: Any, model: Any, options: Any) -> Any:
    given = {key: value for key, value in options.items() if key != "keys"}
    keys = {k: v for k, v in options["keys"].items() if k in config.__dataclass_fields__}
    return kind(model, [environment_exact, graduated], config(**keys), **given)


def test_plain_trl_with_a_gpt2_is_warned_of_once(random_gpt2, options, caplog) -> None:
    (said,) = warnings_of(made(GRPOTrainer, GRPOConfig, random_gpt2, options), caplog)
    assert said.startswith("TRL's GRPOTrainer counts the padding of a GPT2LMHeadModel as positions")
    assert "RookWorldGRPOTrainer" in said and "number_positions_from_mask(trainer.model)" in said


def test_a_model_that_is_mended_is_not(random_gpt2, options, caplog) -> None:
    trainer = made(GRPOTrainer, GRPOConfig, random_gpt2, options)
    number_positions_from_mask(trainer.model)
    assert warnings_of(trainer, caplog) == []


def test_rotary_positions_are_not(tokenizer, options, caplog) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=2, **shape)
    trainer = made(GRPOTrainer, GRPOConfig, LlamaForCausalLM(config), options)
    assert warnings_of(trainer, caplog) == []


def test_our_trainer_is_not(random_gpt2, options, caplog) -> None:
    trainer = made(RookWorldGRPOTrainer, RookWorldGRPOConfig, random_gpt2, options)
    assert warnings_of(trainer, caplog) == []
