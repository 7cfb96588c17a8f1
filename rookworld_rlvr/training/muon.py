"""Muon for the matrices of the network's layers, AdamW for all other weights.

AdamW scales each weight's step by that weight's own gradients; Muon makes the step of a whole matrix
orthogonal, so that no direction of it is favoured, at a rate scaled to AdamW's.

Source: K. Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon/; for the rates: J. Liu
et al., "Muon is scalable for LLM training", 2025, arXiv 2502.16982.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import AdamW
from transformers import Trainer
from transformers.pytorch_utils import Conv1D

from ..common.errors import RookWorldError
from .sampling import is_sharded

MOMENTUM = 0.95

# The other weights' rate, as a share of Muon's. At the same rate, embeddings, biases and norms alone
# cost the environment half of what it loses.
OTHERS = 0.2


def use_muon(trainer: Trainer) -> None:
    """Let a trainer's optimiser take its steps of the layers' matrices by Muon.

    Raises:
        RookWorldError: The weights are sharded, or adapters; or `optim` is not torch's AdamW.
    """
    network = trainer.accelerator.unwrap_model(trainer.model)
    is_cut = is_sharded(trainer) or trainer.is_deepspeed_enabled
    if is_cut or hasattr(network, "peft_config"):
        raise RookWorldError(
            "muon: it needs whole matrices, but the weights are sharded or adapters; leave it out, "
            "or use DDP without use_peft"
        )
    if trainer.optimizer is not None:
        raise RookWorldError("muon: it makes the optimiser, but one was given; leave either out")
    kind, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, network)
    if kind is not AdamW:
        raise RookWorldError(
            f"muon: optim is {trainer.args.optim.value}, but the other weights take AdamW's steps; "
            "leave either out"
        )
    head = network.get_output_embeddings()  # type: ignore[operator]
    matrices = {
        id(module.weight)
        for module in network.modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    }
    trainer.optimizer_cls_and_kwargs = MuonWithAdamW, {"matrices": matrices, **options}


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for some weights and AdamW for the others, as one optimiser with one state.

    Args:
        groups: Groups of weights, as for AdamW.
        matrices: The `id` of each weight that is Muon's; it takes the first group's weight decay.
        options: Of AdamW; the learning rate is Muon's, and `OTHERS` of it AdamW's.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], matrices: set[int], **options: Any
    ) -> None:
        first = groups[0]
        by_muon = [weight for weight in first["params"] if id(weight) in matrices]
        rest = [
            {
                **group,
                "params": [w for w in group["params"] if id(w) not in matrices],
                "lr": OTHERS * options["lr"],
            }
            for group in groups
        ]
        self._adamw = AdamW(rest, **options)
        super().__init__(
            [{**first, "params": by_muon}, *self._adamw.param_groups], self._adamw.defaults
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take both optimisers' steps."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        muon, *self._adamw.param_groups = self.param_groups
        self._adamw.state = self.state
        self._adamw.step()
        for matrix in muon["params"]:
            if matrix.grad is not None:
                state = self.state[matrix]
                momentum = state["momentum"] if state else torch.zeros_like(matrix)
                state["momentum"] = momentum
                momentum.lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                matrix.mul_(1 - muon["lr"] * muon["weight_decay"])
                matrix.add_(update, alpha=-muon["lr"] * 0.2 * max(matrix.shape) ** 0.5)
        return loss


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix with the same singular vectors, and singular values near 1.

    torch's Muon does this in bfloat16, which many CPUs compute a hundred times slower.
    """
    scaled = matrix.float() if matrix.device.type == "cpu" else matrix.bfloat16()
    scaled = scaled.T if (tall := len(matrix) > matrix.size(1)) else scaled
    scaled = scaled / scaled.norm().clamp(min=1e-7)
    for _ in range(5):  # Newton-Schulz
        gram = scaled @ scaled.T
        scaled = 3.4445 * scaled + (-4.7750 * gram + 2.0315 * gram @ gram) @ scaled
    return (scaled.T if tall else scaled).to(matrix.dtype)
