"""Run by two processes: gradients with shared prompts against those of whole rows.

``process<rank>.json`` holds the largest gap and the largest gradient. The second process has advantages
of 0 alone.

accelerate launch --cpu --num_processes 2 --module tests.training.parts.shared_on_two FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ...conftest import ON_CPU
from .test_shared_prompts import ROWS, micro_batch


def main(argv: Sequence[str]) -> None:
    folder = Path(argv[0])
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "run"),
        rewards=[{"name": "graduated"}],
        per_device_train_batch_size=4,
        num_generations=4,
        **ON_CPU,
    )
    torch.manual_seed(0)
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "initializer_range": 0.2}
    data = Dataset.from_list([{"prompt": "P: 8", "task": "policy"}] * 8)
    trainer = RookWorldGRPOTrainer(
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)),
        [lambda completions, **_: [0.0] * len(completions)],
        args,
        train_dataset=data,
        eval_dataset=data,
        processing_class=tokenizer,
    )
    trainer.model_wrapped = wrapped = trainer.accelerator.prepare_model(trainer.model)
    wrapped.train()
    trainer.current_gradient_accumulation_steps = 1
    rank = trainer.accelerator.process_index
    inputs = micro_batch(ROWS["groups"], [0.0] * 12 if rank else [1.0, -1.0, 0.5, -0.5] * 3)

    def gradients() -> list[Any]:
        wrapped.zero_grad()
        for _ in range(2):  # the second, because wrappers trip over what the first left behind
            trainer.accelerator.backward(trainer.loss(wrapped, inputs).total)
        return [weight.grad.clone() for weight in trainer.model.parameters()]

    ours = gradients()
    assert "shared_prompts" in trainer.parts
    del trainer.parts["shared_prompts"]
    theirs = gradients()
    gap = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    size = max(gradient.abs().max().item() for gradient in theirs)
    (folder / f"process{rank}.json").write_text(json.dumps([gap, size]))


if __name__ == "__main__":
    run_cli(main)
