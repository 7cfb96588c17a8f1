"""Faults of a recipe that show only when several dataclasses are compared.

A check takes the instances of its script's `GROUPS`; a dataclass with faults of its own is None.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from trl import ModelConfig

from ..common.errors import RookWorldError
from ..evaluation.registry import SUITE_HEADLINES
from ..models.loading import check_model_name
from ..rewards.registry import check_reward_specs, tasks_of
from ..tasks.registry import TASKS
from ..training.config import RookWorldGRPOConfig
from ..training.run_folder import foreign_faults


def check_sft_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for supervised fine-tuning, from several dataclasses together."""
    *_, model_args, training_args = groups
    faults = check_output(training_args)
    return faults if model_args is None else faults + check_model_arguments(model_args)


def check_output(args: TrainingArguments | None) -> list[str]:
    """A fault if the run's folder holds files that are not from a run."""
    return [] if args is None else foreign_faults(Path(args.output_dir))


def check_model_arguments(args: ModelConfig) -> list[str]:
    """Faults of the keys for loading a model; nothing is loaded."""
    faults = check_model_name(args.model_name_or_path)
    faults += [
        f"{key}: quantised models are not supported; leave it out"
        for key in ("load_in_8bit", "load_in_4bit")
        if getattr(args, key)
    ]
    faults += [
        f"{key}: {getattr(args, key)!r} does nothing without use_peft: true; give both or neither"
        for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
        if not args.use_peft and getattr(args, key) != getattr(ModelConfig, key)
    ]
    if args.use_peft and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        faults.append(
            "use_peft: adapters cannot be merged from FSDP shards; use another --accelerate_config"
        )
    return faults


def check_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for GRPO, from several dataclasses together.

    A diagnosis has no `RunArguments`, and may write over the report of an earlier one.
    """
    run_args, data_args, _, model_args, training_args, suite_args = groups
    faults = [] if run_args is None else check_output(training_args)
    if model_args is not None:
        faults += check_model_arguments(model_args)
    if training_args is None:
        return faults
    if training_args.rewards is None:  # a script gives functions instead
        return faults + check_reward_specs(None)
    if model_args is not None and model_args.lora_dropout not in (0, ModelConfig.lora_dropout):
        said = f"lora_dropout: {model_args.lora_dropout} has no effect, as dropout is off; leave it out"
        faults.append(said)
    judged = tasks_of(training_args.rewards)
    tasks = TASKS.keys() if data_args is None else data_args.tasks
    suites = SUITE_HEADLINES.keys() if suite_args is None else suite_args.suites
    faults += [
        f"rewards: there is no reward for the task {task!r}; add {task}_{TASKS[task].rewards[0]}, or "
        "leave the task out of `tasks`"
        for task in ([] if data_args is None else tasks)
        if task not in judged
    ]
    not_run = [SUITE_HEADLINES[name] for name in SUITE_HEADLINES.keys() - set(suites)]
    return faults + [
        f"{key}: {metric!r} is not measured; add its task to `tasks`, or its suite to `suites`"
        for key, metric in compared_metrics(training_args)
        if metric in not_run or metric.split("/")[0] in TASKS.keys() - set(tasks)
    ]


def require_suites(args: RookWorldGRPOConfig, left_out: Mapping[str, str]) -> None:
    """Refuse to go by the metric of a suite that cannot be run here: a guard would be off unnoticed.

    Args:
        args: The trainer's arguments.
        left_out: Why each of the suites that cannot be run cannot.

    Raises:
        RookWorldError: A key names such a metric.
    """
    for key, metric in compared_metrics(args):
        for name, reason in left_out.items():
            if SUITE_HEADLINES[name] == metric:
                raise RookWorldError(
                    f"{key}: {metric!r} cannot be measured, as the suite {name} is left out: {reason}"
                )


def compared_metrics(args: RookWorldGRPOConfig) -> list[tuple[str, str]]:
    """The metrics by which checkpoints are judged, each with the key that names it."""
    guard = args.guard if isinstance(args.guard, dict) else {}
    guarded = [("guard", str(metric)) for metric in guard]
    return [("metric_for_best_model", str(args.metric_for_best_model)), *guarded]
