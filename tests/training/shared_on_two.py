"""Run by two processes, by DDP or FSDP: two steps with shared prompts and two without.

The second process has advantages of 0 alone.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.distributed.fsdp import FSDPModule

from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..support import NOT_KEPT, mixed_rows, packaged_trainer
from .sharded import configure
from .test_scoring import ROWS


def trained(folder: Path, data: LoadedData, beta: float, shares: bool) -> Any:
    """A trainer after two steps on the same completions, the second with old log-probs."""
    options: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    options |= {"num_iterations": 2, "num_generations": 4, "max_completion_length": 8}
    options |= {"beta": beta, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1}
    options |= {"max_grad_norm": 0.0, **NOT_KEPT, "eval_strategy": "no"}
    options |= {"gradient_checkpointing": True, "rewards": ["graduated"]}
    args = RookWorldGRPOConfig(str(folder / f"run_{shares}"), **options)
    state = PartialState()

    def letters(completions: list[str], **_: Any) -> list[float]:
        return [0.0 if state.process_index else float(len(text)) for text in completions]

    trainer = packaged_trainer(args, [letters], data, mixed_rows(data.train))
    trainer.scorer.shares_prompts = shares
    trainer.train()
    assert isinstance(trainer.model_wrapped, FSDPModule) is trainer.is_fsdp_enabled
    return trainer


def weights(trainer: Any) -> list[torch.Tensor]:
    whole = trainer.networks()[0].parameters()
    return [getattr(one, "full_tensor", one.detach().clone)() for one in whole]


def log_probs(trainer: Any) -> list[torch.Tensor]:
    return [trainer.score(trainer.model_wrapped, rows).logps for rows in ROWS.values()]


def gap(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference; of numbers above 1, relative to the largest of them."""
    pairs = zip(ours, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)


def main(folder: Path, layout: str, beta: str) -> dict[str, Any]:
    if layout == "fsdp2":
        configure(layout)
    data = load_data(DataArguments(max_rows=1_000, synthetic_rows=50, heldout_rows=8))
    both = ours, theirs = [trained(folder, data, float(beta), shares) for shares in (True, False)]
    logs = [trainer.state.log_history for trainer in both]
    found: dict[str, Any] = {"losses": [[e["loss"] for e in log if "loss" in e] for log in logs]}
    with torch.no_grad():
        ends, start = weights(ours), loading.load_model(loading.PACKAGED_MODEL).parameters()
        by_prompt = log_probs(ours)
        ours.scorer.shares_prompts = False
        found["log_probs"] = gap(by_prompt, log_probs(ours))
        return found | {"weights": gap(ends, weights(theirs)), "moved": gap(ends, [*start])}
