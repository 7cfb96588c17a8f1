"""Run by two processes: what each of them decided and sampled.

That is in a few steps with every control on, and in one on a batch of three tasks, each at a
temperature of its own.
"""

from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState

from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.judge import Judge, JudgeReward, JudgeSpec
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.sampling import rollout
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from .conftest import NOT_KEPT, mixed_rows, packaged_trainer, tiny_judge

TEMPERATURES = {"environment": 0.7, "policy": 1.0, "fill_in": 1.3}
JUDGE = {"name": "judge", "model": "none", "scale": "sigmoid"}


def main(folder: Path, *words: str) -> dict[str, Any]:
    fails = "fail" in words
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "run"),
        rewards=[{"name": "environment_exact"}, {**JUDGE, "weight": 0.0}],
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        max_steps=3,
        learning_rate=1e-4,
        beta=0.1,
        kl_control="adaptive",
        kl_adaptation="multiplicative",
        kl_target=1e-7,
        zero_variance="resample",
        task_phases=[{"environment": 0.5, "policy": 0.5}],
        task_sampling={"environment": {}, "policy": {}},
        baseline="ema",
        scale_rewards="batch",
        **NOT_KEPT,
    )
    rank = PartialState().process_index  # known once the arguments have set the processes up

    def uneven(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """Groups without signal on the second process only; there it can fail, too."""
        if fails and rank == 1:
            raise KeyError("planted")
        return [float(i % 2) if rank == 0 else 0.5 for i, _ in enumerate(completions)]

    fewer: dict[str, Any] = {"max_rows": 2_000, "synthetic_rows": 100} if fails else {}
    data = load_data(
        DataArguments(tasks=[*TEMPERATURES], **fewer, heldout_rows=8, synthetic_fill_in_rows=60)
    )
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    judge = JudgeReward(JudgeSpec(**JUDGE), Judge(tiny_judge(tokenizer), tokenizer))
    trainer = packaged_trainer(args, [uneven, judge], data, mixed_rows(data.train))
    trainer.train()
    # what differs between processes, beside `time/`
    own = ("step_time", "runtime", "per_second", "peak_memory")
    logs = [
        {key: value for key, value in entry.items() if not (key.endswith(own) or "time/" in key)}
        for entry in trainer.state.log_history
    ]
    weights = next(trainer.model.parameters()).double().sum().item()
    run = {"state": trainer.parts["kl"].state(), "logs": logs, "weights": weights}
    return {"run": run, "tasks": three_tasks(folder, data)}


def letters(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """A reward of fill-in rows alone that differs from one completion to the next."""
    return [
        float(len(text)) if task_of(prompt) == "fill_in" else None
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def three_tasks(folder: Path, data: LoadedData) -> dict[str, Any]:
    """What a step on a mixed batch logs, each of this process's rows, and what is right of all rows."""
    names = ("environment_state", "policy_format", "fill_in_exact")
    rewards = [{"name": name} for name in names]
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "tasks"),
        rewards=[*rewards, {"name": "fill_in_similarity", "weight": 0.5}],  # in letters' place
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=64,
        max_steps=1,
        task_phases=[{"environment": 0.25, "policy": 0.25, "fill_in": 0.5}],
        task_sampling={
            task: {"temperature": temperature, "top_p": 1.0}
            for task, temperature in TEMPERATURES.items()
        },
        **NOT_KEPT,
    )
    funcs = [*get_reward_funcs(rewards), letters]
    trainer = packaged_trainer(args, funcs, data, mixed_rows(data.train, tasks=[*TEMPERATURES]))
    trainer.rollout_func = partial(rollout, keep_logps=True)
    rows = watch_rows(trainer)
    trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "reward" in entry)
    return {"logged": logged, "rows": rows}


def watch_rows(trainer: RookWorldGRPOTrainer) -> list[dict[str, Any]]:
    """The rows of every loss to come: texts, temperature, gap to the sampler's log-probs in nats."""
    rows: list[dict[str, Any]] = []
    loss = trainer.loss
    assert "shared_prompts" in trainer.parts
    trainer.parts["shared_prompts"].leaves_out_idle = False  # every row's log-probs are looked at

    def watch(model: Any, batch: dict[str, Any]) -> Any:
        found = loss(model, batch)
        assert found.call.scores is not None
        gaps = (found.call.scores.logps.detach() - batch["sampling_per_token_logps"]).abs()
        for index, gap in enumerate(gaps * batch["completion_mask"]):
            texts = {
                name: trainer.processing_class.decode(
                    batch[f"{name}_ids"][index][batch[f"{name}_mask"][index].bool()],
                    skip_special_tokens=True,
                )
                for name in ("prompt", "completion")
            }
            numbers = {"gap": gap.max().item(), "temperature": batch["temperature"][index].item()}
            rows.append({**texts, **numbers})
        return found

    watched: Any = trainer
    watched.loss = watch
    return rows
