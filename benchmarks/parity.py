"""Log-prob gaps of plain TRL and of this package's trainer, on the same model and prompts.

    python benchmarks/parity.py

It exits with 1 if our gaps are not smaller, or are above 1e-4 nats.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from typing import Any

from trl import GRPOTrainer

from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.preflight import Parity, measure_parity, mixed_length_prompts
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

REWARDS = [{"name": "environment_exact"}, {"name": "policy_best_move"}]


def main() -> int:
    rows = load_data(DataArguments(task_shares={"environment": 0.5, "policy": 0.5})).train
    results = {}
    for kind in (GRPOTrainer, RookWorldGRPOTrainer):
        with tempfile.TemporaryDirectory() as folder:
            results[kind] = measure(kind, rows, folder)
    plain, ours = results[GRPOTrainer], results[RookWorldGRPOTrainer]
    print(f"{'largest gap, nats':<24}{'plain TRL':>12}{'ours':>12}")
    for name in asdict(ours):
        print(f"{name:<24}{getattr(plain, name):>12.2e}{getattr(ours, name):>12.2e}")
    smaller = ours.alone_gap < plain.alone_gap and ours.sampler_gap < plain.sampler_gap
    print("ours are smaller" if smaller else "ours are NOT smaller")
    return 0 if smaller and not ours.faults(1e-4) else 1


def measure(kind: type[GRPOTrainer], rows: object, folder: str) -> Parity:
    """The gaps of the packaged model with one trainer class."""
    args = RookWorldGRPOConfig(
        output_dir=folder,
        rewards=REWARDS,
        report_to=[],
        bf16=False,
        use_cpu=True,
        num_generations=8,
        max_completion_length=64,
        beta=0.02,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
    )
    trainer = kind(
        model=loading.load_model(loading.PACKAGED_MODEL),
        reward_funcs=get_reward_funcs(REWARDS),
        args=args,
        train_dataset=rows,
        processing_class=loading.load_tokenizer(loading.PACKAGED_MODEL),
    )

    def score(network: Any, rows: Any) -> Any:
        return trainer._get_per_token_logps_and_entropies(network, *rows[:3])

    return measure_parity(trainer, mixed_length_prompts(trainer), score=score)


if __name__ == "__main__":
    sys.exit(main())
