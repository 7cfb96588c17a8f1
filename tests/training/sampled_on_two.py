"""Run by two processes that shard a model by FSDP2: one answers prompts near the end of its positions.

It finds each process's answers, and its share of a weight before and after.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, PartialState

from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.training.sampling import gathered

from .sharded import configure

# The first process's prompts leave room for 4, 8 and 12 tokens of 256: two tokens each.
PROMPTS = ([" 8" * count for count in (126, 124, 122)], ["P: 8", "P: 8/8", "A: 8"])


def answers(network: Any, rank: int) -> list[str]:
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    return complete(network, tokenizer, PROMPTS[rank], max_new_tokens=20)


def main(folder: Path) -> dict[str, Any]:
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
    return {"answers": found, "before": before, "after": held()}
