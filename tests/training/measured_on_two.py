"""Run by two processes: what is measured at a run's end, of a policy and of another starting model.

It finds the held-out results, and how many of the sampled answers are right.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.measurements import measure_others, sample_heldout

from ..support import ON_CPU, mixed_rows, packaged_trainer

REWARDS = [{"name": "environment_exact"}]


def other_start() -> GPT2LMHeadModel:
    """The packaged model with other weights."""
    model: GPT2LMHeadModel = loading.load_model(loading.PACKAGED_MODEL)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.mul_(1.5)
    return model


def main(folder: Path) -> dict[str, Any]:
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "run"),
        rewards=REWARDS,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=48,
        other_task_rows=7,
        pass_samples=16,
        **ON_CPU,
    )
    few: dict[str, Any] = {"max_rows": 400, "synthetic_rows": 80, "heldout_rows": 6}
    few["synthetic_shares"] = {"openings": 1.0}
    data = load_data(DataArguments(tasks=["environment"], **few), other_task_rows=7)
    rows = mixed_rows(data.train, tasks=["environment"])
    trainer = packaged_trainer(args, get_reward_funcs(REWARDS), data, rows)
    measure_others(trainer, data.others, other_start)
    heldout = trainer.heldout
    counts = sample_heldout(trainer, data.heldout, [""] * len(data.heldout))
    return {
        "before": {name: result.value for name, result in (heldout.before or {}).items()},
        "after": {name: result.value for name, result in heldout.results.items()},
        "right": {task: found.right for task, found in counts.items()},
    }
