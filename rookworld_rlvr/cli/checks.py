"""Faults of a recipe that no dataclass sees alone.

A check is given the instances of its script's `GROUPS`, None for one that is faulty itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from trl import ModelConfig

from ..common.errors import EngineError
from ..data.prepare.arguments import PrepareArguments, PrepareLabelArguments
from ..engine.pool import find_engine
from ..engine.truth import LabelArguments
from ..evaluation.registry import SUITE_HEADLINES
from ..models.loading import check_model_name, hub_faults
from ..rewards.registry import tasks_of
from ..tasks.registry import TASKS
from ..training.config import RunArguments
from ..training.run_folder import foreign_faults


def check_sft_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for supervised fine-tuning that no dataclass sees alone."""
    run_args, _, new_args, model_args, sft_args = groups
    faults = check_output(sft_args) + check_merged(sft_args, model_args)
    if model_args is None or new_args is None:
        return faults
    if new_args.new_model is None:
        return faults + check_model_arguments(model_args, run_args)
    if model_args.model_name_or_path is not None:
        faults.append("new_model and model_name_or_path exclude each other; leave one out")
    return faults


def check_judge_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for training a judge that no dataclass sees alone."""
    run_args, data_args, judge_args, model_args, reward_args = groups
    faults = check_output(reward_args) + check_merged(reward_args, model_args)
    if model_args is not None:
        faults += check_model_arguments(model_args, run_args)
        if model_args.use_peft:
            faults.append("use_peft: a judge's new score head is trained in full; leave it out")
    if judge_args is not None:
        faults += check_model_name(judge_args.generator, key="generator")
    if data_args is not None:
        faults += [
            f"{key}: pairs are mixed by pair_shares and made of right answers; leave it out"
            for key in _NOT_OF_PAIRS
            if getattr(data_args, key)
        ]
        faults += [
            f"pair_shares: some are of the task {task!r}, which `tasks` leaves out"
            for task in (judge_args.tasks() if judge_args is not None else ())
            if task not in data_args.tasks
        ]
    return faults


_NOT_OF_PAIRS = (
    "environment_share",
    "task_shares",
    "en_passant_fault_share",
    "black_best_move_fault_share",
)


def check_output(args: TrainingArguments | None) -> list[str]:
    """Whether the folder that a run is to write to is another's."""
    return [] if args is None else foreign_faults(Path(args.output_dir))


def check_merged(args: Any, model_args: ModelConfig | None) -> list[str]:
    """Whether a merged model is to be pushed where nothing is merged."""
    if args is None or model_args is None or not args.hub_merged or model_args.use_peft:
        return []
    return ["hub_merged: there are no adapters; give use_peft: true, or leave it out"]


def check_model_arguments(args: ModelConfig, run_args: RunArguments | None) -> list[str]:
    """Faults of a model's name and of how it is to be loaded; nothing is loaded.

    Args:
        args: The model's.
        run_args: A dry run needs no Hub.
    """
    name, offline = args.model_name_or_path, run_args is not None and run_args.dry_run
    faults = check_model_name(name)
    faults += hub_faults(name, args.model_revision, offline) if name else []
    faults += [
        f"{key}: RookWorld models are trained without quantisation; leave it out"
        for key in ("load_in_8bit", "load_in_4bit")
        if getattr(args, key)
    ]
    if args.use_peft and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        faults.append(
            "use_peft: adapters cannot be merged from FSDP shards; take another accelerate config"
        )
    return faults


def check_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for GRPO that no dataclass sees alone."""
    run_args, data_args, label_args, model_args, _, training_args, suite_args = groups
    faults = check_output(training_args) + check_merged(training_args, model_args)
    if suite_args is not None and training_args is not None:
        faults += [
            f"metric_for_best_model: {metric!r} is of a suite that `suites` leaves out; add it there"
            for name, metric in SUITE_HEADLINES.items()
            if metric == training_args.metric_for_best_model and name not in suite_args.suites
        ]
    if model_args is not None:
        faults += check_model_arguments(model_args, run_args)
    if label_args is not None and data_args is not None:
        faults += check_labels(label_args, data_args.tasks)
    if data_args is not None and training_args is not None:
        faults += training_args.prompt_faults(data_args.tasks)
        judged = tasks_of(training_args.rewards or ())
        faults += [
            f"rewards: none judges the task {task!r}; add one, or leave the task out of `tasks`"
            for task in data_args.tasks
            if task not in judged
        ]
        task = str(training_args.metric_for_best_model).split("/")[0]
        if task in TASKS and task not in data_args.tasks:
            faults.append(
                f"metric_for_best_model: {training_args.metric_for_best_model!r} is of a task that "
                f"`tasks` leaves out: {data_args.tasks}"
            )
    return faults


def check_labels(args: LabelArguments, tasks: Iterable[str]) -> list[str]:
    """The engine's absence, where it is certain to be asked."""
    if args.labels == "engine" and any(TASKS[task].needs_values for task in tasks):
        try:
            find_engine(args.engine_path)
        except EngineError as error:
            return [f"labels: engine: {error}"]
    return []


def check_prepare_recipe(
    args: PrepareArguments | None, label_args: PrepareLabelArguments | None
) -> list[str]:
    """Faults of a recipe of `recipes/prepare_data.py` that no dataclass sees alone."""
    if args is None or label_args is None:
        return []
    if label_args.labels == "stored" and args.synthetic_policy_rows:
        return ["labels: 'stored' leaves synthetic_policy_rows without answers; ask the engine"]
    return check_labels(label_args, TASKS)
