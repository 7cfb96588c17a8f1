"""Speed and memory of a forward and backward with transformers' `gelu_new` and with our fused kernel.

    python benchmarks/gelu.py                # the packaged model, and the real shape with random weights

It prints the seconds (median of alternating runs), and the memory that a forward keeps for the backward
pass, ours divided by plain. On a GPU it uses bf16 autocast, else fp32 on this machine's CPU. The reason
for the kernel is in `fuse_gelu` in `rookworld_rlvr/models/gpt2.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from rookworld_rlvr.models.gpt2 import disable_dropout, fuse_gelu
from rookworld_rlvr.models.loading import PACKAGED_MODEL, resolve_model_path

TOKENS = 96
SHAPES = {PACKAGED_MODEL: 128, "RookWorld-LM's": 4}  # rows in a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{device}, {torch.get_num_threads()} threads, rows of {TOKENS} tokens")
    print(f"{'shape':<16}{'rows':>6}{'plain, s':>10}{'ours, s':>10}{'ratio':>8}{'kept':>8}")
    for name, rows in SHAPES.items():
        models = [network(name, fused).to(device) for fused in (False, True)]
        ids = torch.randint(1, 1000, (rows, TOKENS), device=device)
        for model in models:
            step(model, ids)
        seconds = [[step(model, ids) for model in models] for _ in range(args.repeats)]
        plain, ours = (statistics.median(column) for column in zip(*seconds, strict=True))
        kept = kept_bytes(models[1], ids) / kept_bytes(models[0], ids)
        print(f"{name:<16}{rows:>6}{plain:>10.3f}{ours:>10.3f}{ours / plain:>8.2f}{kept:>8.2f}")


def network(name: str, fused: bool) -> PreTrainedModel:
    """The packaged model, or the real shape with random weights; with `gelu_new` if not fused."""
    plain = {"activation_function": "gelu_new"}
    if name == PACKAGED_MODEL:
        model = AutoModelForCausalLM.from_pretrained(resolve_model_path(name), **plain)
    else:
        model = GPT2LMHeadModel(GPT2Config(**plain))
    disable_dropout(model)
    if fused:
        fuse_gelu(model)
    return model.train()


def step(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """The seconds of one forward and backward of the transformer's body."""
    started = time.perf_counter()
    with autocast(ids):
        loss = model.transformer(ids).last_hidden_state.float().square().mean()
    loss.backward()
    model.zero_grad()
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def kept_bytes(model: PreTrainedModel, ids: torch.Tensor) -> int:
    """The bytes that a forward keeps for the backward pass, without weights; views count once."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with autocast(ids), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.transformer(ids)
    return sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in weights)


def autocast(ids: torch.Tensor) -> torch.autocast:
    return torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda)


if __name__ == "__main__":
    main()
