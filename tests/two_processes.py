"""Run by two processes: three steps with every control on, and one on a batch of three tasks."""

from pathlib import Path
from typing import Any

from accelerate import PartialState

from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from .killed import untimed
from .support import NOT_KEPT, mixed_rows, packaged_trainer, tiny_judge

TEMPERATURES = {"environment": 0.7, "policy": 1.0, "fill_in": 1.3}
SIZES = {"per_device_train_batch_size": 8, "num_generations": 4}
JUDGE = {"name": "judge", "model": "none", "scale": "sigmoid"}


def main(folder: Path, *words: str) -> dict[str, Any]:
    fails = "fail" in words
    options: dict[str, Any] = {**SIZES, "max_completion_length": 8, "max_steps": 3, "beta": 0.1}
    options |= {"learning_rate": 1e-4, "kl_control": "adaptive", "kl_target": 1e-7}
    options |= {"kl_adaptation": "multiplicative", "zero_variance": "resample", "baseline": "ema"}
    options |= {"task_phases": [{"environment": 0.5, "policy": 0.5}], "scale_rewards": "batch"}
    judges = extra("judge.reward")
    named = ["environment_exact", *([{**JUDGE, "weight": 0.0}] if judges else [])]
    options |= {"rewards": named, **NOT_KEPT}
    options |= {"task_sampling": {"environment": {}, "policy": {}}, "eval_strategy": "no"}
    args = RookWorldGRPOConfig(str(folder / "run"), **options)
    rank = PartialState().process_index  # known once the arguments have set the processes up

    def uneven(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """Groups without signal on the second process only; there it can fail, too."""
        if fails and rank == 1:
            raise KeyError("planted")
        return [float(i % 2) if rank == 0 else 0.5 for i, _ in enumerate(completions)]

    few: dict[str, Any] = {"max_rows": 400, "synthetic_fill_in_rows": 60, "heldout_rows": 8}
    few |= {"synthetic_rows": 60, "synthetic_shares": {"openings": 1.0}}
    data = load_data(DataArguments(tasks=[*TEMPERATURES], **few))
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    funcs: list[Any] = [uneven]
    if judges:
        judge = judges.Judge(tiny_judge(tokenizer), tokenizer)
        funcs.append(judges.JudgeReward(judges.JudgeSpec(**JUDGE), judge))
    trainer = packaged_trainer(args, funcs, data, mixed_rows(data.train))
    trainer.train()
    logs = untimed(trainer.state.log_history)
    weights = next(trainer.model.parameters()).double().sum().item()
    run = {"state": trainer.kl.controller.state(), "logs": logs, "weights": weights}
    return {"run": run, "tasks": three_tasks(folder, data)}


def three_tasks(folder: Path, data: LoadedData) -> dict[str, Any]:
    """What a step on a mixed batch logs, each of this process's rows, and what is right of all rows."""
    rewards: Any = ["environment_state", "policy_format", "fill_in_exact"]
    rewards.append({"name": "fill_in_similarity", "weight": 0.5})
    options: dict[str, Any] = {**SIZES, "rewards": rewards, "max_completion_length": 64}
    options["task_phases"] = [{"environment": 0.25, "policy": 0.25, "fill_in": 0.5}]
    ways = {task: {"temperature": heat, "top_p": 1.0} for task, heat in TEMPERATURES.items()}
    options |= {"task_sampling": ways, "max_steps": 1, **NOT_KEPT, "eval_strategy": "no"}
    args = RookWorldGRPOConfig(str(folder / "tasks"), **options)
    funcs = get_reward_funcs(rewards)
    trainer = packaged_trainer(args, funcs, data, mixed_rows(data.train, tasks=[*TEMPERATURES]))
    trainer.keeps_logps = True
    rows = watch_rows(trainer)
    trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "reward" in entry)
    return {"logged": logged, "rows": rows}


def watch_rows(trainer: Any) -> list[dict[str, Any]]:
    """The rows of every loss to come: texts, temperature, gap to the sampler's log-probs in nats."""
    rows: list[dict[str, Any]] = []
    scores_of = trainer.scores_of
    trainer.scores_all_rows = True  # every row's log-probs are looked at

    def watch(model: Any, batch: dict[str, Any]) -> Any:
        scores = scores_of(model, batch)
        gaps = (scores.logps.detach() - batch["sampling_per_token_logps"]).abs()
        for index, gap in enumerate(gaps * batch["completion_mask"]):
            row = {"gap": gap.max().item(), "temperature": batch["temperature"][index].item()}
            for name in ("prompt", "completion"):
                ids = batch[f"{name}_ids"][index][batch[f"{name}_mask"][index].bool()]
                row[name] = trainer.processing_class.decode(ids, skip_special_tokens=True)
            rows.append(row)
        return scores

    trainer.scores_of = watch
    return rows
