"""Run by two processes: 200 small steps with an engine, undisturbed or with faults; writes JSON.

accelerate launch --cpu --num_processes 2 --module tests.training.soak_on_two FOLDER [faults]

Faults: one reward fails on about 5% of its calls, the engines are killed every 20 steps, and the
second process is slowed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil
from accelerate import PartialState

from rookworld_rlvr.cli.parser import run_cli
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

STEPS = 200
ROWS = 16  # of each process and step: two prompts
ONE_IN = 40  # prompts on which the reward fails; of calls for two prompts, one in 20
SLOWED_S = 0.03
REWARDS = [
    {"name": "environment_exact"},
    {"name": "environment_state"},
    {"name": "policy_best_move"},
    {"name": "policy_candidates", "weight": 0.5},
]


class Faults:
    """Plants faults around a reward, and counts them."""

    def __init__(self, reward: Callable[..., Any], rank: int) -> None:
        self.__name__ = "planted"
        self.reward = reward
        self.rank = rank
        self.calls = self.failed = self.lost = self.kills = 0
        self.killed_at = 0

    def __call__(self, prompts: list[str], trainer_state: Any, **columns: Any) -> Any:
        whole = len(prompts) == ROWS
        if whole:
            self.calls += 1
            self.kill_engine(trainer_state.global_step)
            time.sleep(SLOWED_S * self.rank)
        if any(crc32(prompt.encode()) % ONE_IN == 0 for prompt in prompts):
            self.failed += whole
            self.lost += 0 if whole else len(prompts)
            raise ConnectionError("planted")
        return self.reward(prompts=prompts, **columns)

    def kill_engine(self, step: int) -> None:
        if step % 20 or step == self.killed_at:
            return
        self.killed_at = step
        for child in psutil.Process().children(recursive=True):
            if "stockfish" in child.name():
                child.kill()
                self.kills += 1


def main(argv: Sequence[str]) -> None:
    folder, disturbed = Path(argv[0]), "faults" in argv
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "run"),
        rewards=REWARDS,
        per_device_train_batch_size=ROWS,
        num_generations=8,
        max_completion_length=64,
        max_steps=STEPS,
        learning_rate=1e-4,
        warmup_steps=5,
        beta=0.0,
        unscored_limit=0.5,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        eval_steps=STEPS,
        save_strategy="no",
        load_best_model_at_end=False,
        log_completions=False,
        report_to=[],
        disable_tqdm=True,
    )
    rank = PartialState().process_index
    data = load_data(DataArguments(heldout_rows=100, environment_share=0.5))
    engine: dict[str, Any] = {"engine_depth": 2, "engine_cache": ":memory:"}
    truth = PolicyTruth.open(LabelArguments(labels="engine", **engine), 1, 1)
    rewards: list[Any] = get_reward_funcs(REWARDS, truth)
    planted = Faults(rewards[0], rank)
    if disturbed:
        rewards[0] = planted
    trainer = RookWorldGRPOTrainer(
        loading.load_model(loading.PACKAGED_MODEL),
        rewards,
        args,
        train_dataset=data.train,
        eval_dataset=data.heldout,
        processing_class=loading.load_tokenizer(loading.PACKAGED_MODEL),
    )
    trainer.train()
    assert trainer.heldout.before is not None
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "steps": len(steps),
        "unscored": sum(entry["rewards/unscored"] for entry in steps) * 2 * ROWS,
        "given_up": max(entry["engine/given_up"] for entry in steps if "engine/given_up" in entry),
        "searched": truth.labeller.searched if truth.labeller else 0,
        "planted": {name: getattr(planted, name) for name in ("calls", "failed", "lost", "kills")},
        "before": {name: [r.successes, r.n] for name, r in trainer.heldout.before.items()},
        "after": {name: [r.successes, r.n] for name, r in trainer.heldout.results.items()},
    }
    (folder / f"soak{rank}.json").write_text(json.dumps(result))
    truth.close()


if __name__ == "__main__":
    run_cli(main)
