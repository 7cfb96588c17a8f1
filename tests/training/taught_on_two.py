"""Run by two processes: three steps with taught answers and the supervised term, on three tasks."""

from pathlib import Path
from typing import Any

from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..support import NOT_KEPT, mixed_rows, packaged_trainer

REWARDS = ["environment_exact", "policy_best_move", "fill_in_exact"]
TASKS = ["environment", "policy", "fill_in"]


def main(folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"per_device_train_batch_size": 12, "num_generations": 4}
    options |= {"max_completion_length": 64, "max_steps": 3, "learning_rate": 1e-4}
    options |= {"zero_variance": "teach", "sft_coef": 0.1, "rewards": REWARDS, **NOT_KEPT}
    options["task_phases"] = [{"environment": 0.34, "policy": 0.33, "fill_in": 0.33}]
    args = RookWorldGRPOConfig(str(folder / "run"), **options)
    few: dict[str, Any] = {"max_rows": 1_000, "synthetic_rows": 40, "heldout_rows": 4}
    data = load_data(DataArguments(tasks=TASKS, synthetic_fill_in_rows=40, **few))
    rows = mixed_rows(data.train, tasks=TASKS)
    trainer: Any = packaged_trainer(args, get_reward_funcs(REWARDS), data, rows)
    taught: list[int] = []
    scores_of = trainer.scores_of

    def watch(model: Any, batch: dict[str, Any]) -> Any:
        taught.append(int(batch["taught"].sum()))
        return scores_of(model, batch)

    trainer.scores_of = watch
    trainer.train()
    weights = next(trainer.model.parameters()).double().sum().item()
    return {"weights": weights, "taught": sum(taught)}
