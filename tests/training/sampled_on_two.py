"""Run by two processes that shard a model by FSDP2: one answers prompts near the end of its positions.

``process<rank>.json`` holds each process's answers, and its share of a weight before and after.

accelerate launch --cpu --num_processes 2 --module tests.training.sampled_on_two FOLDER
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, PartialState

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.training.answering import gathered

from .sharded import configure


def prompts(rank: int) -> list[str]:
    """Three prompts: the first process's leave room for 4, 8 and 12 tokens of 256."""
    if rank:
        return ["P: 8", "P: 8/8", "A: 8"]
    return [" 8" * count for count in (126, 124, 122)]  # two tokens each


def answers(network: Any, rank: int) -> list[str]:
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    return complete(network, tokenizer, prompts(rank), max_new_tokens=20)


def main(argv: Sequence[str]) -> None:
    configure("fsdp2")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    PartialState(cpu=True)
    accelerator = Accelerator()
    rank = accelerator.process_index
    model: Any = loading.load_model(loading.PACKAGED_MODEL)
    network, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def held() -> list[int]:
        return list(network.transformer.h[0].mlp.c_fc.weight.to_local().shape)

    before = held()
    with gathered(SimpleNamespace(model_wrapped=network, accelerator=accelerator)):
        found = answers(network, rank)
    result = {"answers": found, "before": before, "after": held()}
    (Path(argv[0]) / f"process{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
