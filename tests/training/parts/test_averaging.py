from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from rookworld_rlvr.common.errors import RookWorldError

Build = Callable[..., Any]
STEPS: dict[str, Any] = {
    "rewards": [{"name": "environment_exact"}],
    "max_steps": 2,
    "learning_rate": 1e-2,
    "eval_steps": 1,
    "save_steps": 1,
    "load_best_model_at_end": False,
}


def letters(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text))) for text in completions]


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.named_parameters()}


def test_what_is_evaluated_and_kept_lies_between_start_and_trained(
    build: Build, random_gpt2: GPT2LMHeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainer(**options: Any) -> Any:
        model = copy.deepcopy(random_gpt2)
        return build(model, reward_funcs=[letters], **{**STEPS, **options})

    plain = trainer()
    plain.train()
    trained = weights(plain)
    averaged = trainer(start_share=0.25)
    seen = []
    evaluate = averaged.heldout.evaluate

    def recorded(*arguments: Any) -> dict[str, float]:
        seen.append(weights(averaged))
        return evaluate(*arguments)

    monkeypatch.setattr(averaged.heldout, "evaluate", recorded)
    averaged.train()
    for name, start in random_gpt2.named_parameters():
        wanted = 0.25 * start + 0.75 * trained[name]
        torch.testing.assert_close(weights(averaged)[name], wanted)
        torch.testing.assert_close(seen[-1][name], wanted)
        assert torch.equal(seen[0][name], start)
    assert any(not torch.equal(trained[name], start) for name, start in seen[0].items())
    kept = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    assert all(torch.equal(trained[name], value) for name, value in kept.items())

    resumed = trainer(start_share=0.25)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert all(torch.equal(weights(averaged)[name], w) for name, w in weights(resumed).items())


def test_adapters_are_refused(build: Build, random_gpt2: GPT2LMHeadModel) -> None:
    with pytest.raises(RookWorldError, match="needs whole weights"):
        build(
            copy.deepcopy(random_gpt2),
            peft_config=LoraConfig(task_type="CAUSAL_LM"),
            start_share=0.5,
        )
