"""Run by two processes, by DDP or FSDP: two steps with shared prompts and two without.

It finds the losses of both ways, the largest gaps between the two, and how far the
steps moved a weight. The second process has advantages of 0 alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.distributed.fsdp import FSDPModule

from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ...conftest import NOT_KEPT, mixed_rows, packaged_trainer
from ..sharded import configure
from .test_shared_prompts import ROWS


def trained(folder: Path, data: LoadedData, beta: float, shares: bool) -> RookWorldGRPOTrainer:
    """A trainer after two steps on the same completions, the second with old log-probs."""
    args = RookWorldGRPOConfig(
        output_dir=str(folder / f"run_{shares}"),
        rewards=[{"name": "graduated"}],
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_iterations=2,
        num_generations=4,
        max_completion_length=8,
        beta=beta,
        max_steps=2,
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0.0,
        eval_strategy="no",
        **{**NOT_KEPT, "gradient_checkpointing": True},
    )
    state = PartialState()

    def letters(completions: list[str], **_: Any) -> list[float]:
        return [0.0 if state.process_index else float(len(text)) for text in completions]

    trainer = packaged_trainer(args, [letters], data, mixed_rows(data.train))
    if not shares:
        del trainer.parts["shared_prompts"]
    trainer.train()
    assert isinstance(trainer.model_wrapped, FSDPModule) is trainer.is_fsdp_enabled
    return trainer


def weights(trainer: Any) -> list[torch.Tensor]:
    """Copies of the whole weights."""
    whole = trainer.networks()[0].parameters()
    return [getattr(one, "full_tensor", one.detach().clone)() for one in whole]


def log_probs(trainer: Any) -> list[torch.Tensor]:
    return [trainer.log_probs(trainer.model_wrapped, *rows).logps for rows in ROWS.values()]


def gap(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest difference; of numbers above 1, relative to the largest of them."""
    return max(
        ((one - other).abs().max() / other.abs().max().clamp(min=1)).item()
        for one, other in zip(ours, theirs, strict=True)
    )


def main(folder: Path, layout: str, beta: str) -> dict[str, Any]:
    if layout == "fsdp2":
        configure(layout)
    data = load_data(DataArguments(max_rows=2_000, synthetic_rows=100, heldout_rows=8))
    ours, theirs = (trained(folder, data, float(beta), shares) for shares in (True, False))
    losses = [
        [log["loss"] for log in trainer.state.log_history if "loss" in log]
        for trainer in (ours, theirs)
    ]
    with torch.no_grad():
        ends = weights(ours), weights(theirs)
        start = list(loading.load_model(loading.PACKAGED_MODEL).parameters())
        by_prompt = log_probs(ours)
        del ours.parts["shared_prompts"]
        return {
            "losses": losses,
            "log_probs": gap(by_prompt, log_probs(ours)),
            "weights": gap(*ends),
            "moved": gap(ends[0], start),
        }
