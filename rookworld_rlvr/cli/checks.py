"""Faults of a recipe that show only when several dataclasses are compared.

A check takes the instances of its script's `GROUPS`; a dataclass with faults of its own is None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments
from trl import ModelConfig

from ..common.errors import EngineError, RookWorldError
from ..engine.arguments import find_engine
from ..engine.truth import LabelArguments
from ..evaluation.registry import SUITE_HEADLINES
from ..models.loading import check_model_name, hub_faults
from ..rewards.registry import check_reward_specs, tasks_of
from ..tasks.registry import TASKS
from ..training.config import RookWorldGRPOConfig, RunArguments
from ..training.run_folder import foreign_faults

if TYPE_CHECKING:
    from ..data.prepare import PrepareArguments, PrepareLabelArguments


def check_sft_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for supervised fine-tuning, from several dataclasses together."""
    run_args, _, new_args, model_args, sft_args = groups
    faults = check_output(sft_args)
    if model_args is None or new_args is None:
        return faults
    if new_args.new_model is None:
        return faults + check_model_arguments(model_args, run_args)
    if model_args.model_name_or_path is not None:
        faults.append("new_model and model_name_or_path cannot be combined; leave one out")
    return faults


def check_judge_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for training a judge, from several dataclasses together."""
    run_args, data_args, judge_args, model_args, reward_args = groups
    faults = check_output(reward_args)
    if model_args is not None:
        faults += check_model_arguments(model_args, run_args)
        if model_args.use_peft:
            faults.append("use_peft: a judge is trained without adapters; leave it out")
    if judge_args is not None:
        faults += check_model_name(judge_args.generator, key="generator")
    if data_args is not None:
        faults += [
            f"{key}: not used for a judge, whose pairs are mixed by pair_shares and built from right "
            "answers; leave it out"
            for key in _NOT_OF_PAIRS
            if getattr(data_args, key)
        ]
        faults += [
            f"pair_shares: some kinds are of the task {task!r}, which is not in `tasks`; add it there"
            for task in (judge_args.tasks() if judge_args is not None else ())
            if task not in data_args.tasks
        ]
    return faults


_NOT_OF_PAIRS = ("task_shares", "first_plies_share")


def check_output(args: TrainingArguments | None) -> list[str]:
    """A fault if the run's folder holds files that are not from a run."""
    return [] if args is None else foreign_faults(Path(args.output_dir))


def check_model_arguments(args: ModelConfig, run_args: RunArguments | None) -> list[str]:
    """Faults of the keys for loading a model; nothing is loaded.

    Args:
        args: The model's keys.
        run_args: A dry run does not ask the Hub.
    """
    name, offline = args.model_name_or_path, run_args is not None and run_args.dry_run
    faults = check_model_name(name)
    faults += hub_faults(name, args.model_revision, offline) if name else []
    faults += [
        f"{key}: quantised models are not supported; leave it out"
        for key in ("load_in_8bit", "load_in_4bit")
        if getattr(args, key)
    ]
    if args.use_peft and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        faults.append(
            "use_peft: adapters cannot be merged from FSDP shards; use another --accelerate_config"
        )
    return faults


def _unjudged(rewards: Any, tasks: Sequence[str]) -> list[str]:
    if rewards is None:  # a script gives functions instead
        return check_reward_specs(None)
    judged = tasks_of(rewards)
    return [
        f"rewards: there is no reward for the task {task!r}; add {task}_{TASKS[task].rewards[0]}, or "
        "leave the task out of `tasks`"
        for task in tasks
        if task not in judged
    ]


def check_recipe(*groups: Any) -> list[str]:
    """Faults of a recipe for GRPO, from several dataclasses together.

    A diagnosis has no `RunArguments`, and may write over the report of an earlier one.
    """
    run_args, data_args, label_args, model_args, _, training_args, suite_args = groups
    faults = [] if run_args is None else check_output(training_args)
    if suite_args is not None and training_args is not None:
        faults += [
            f"{key}: {metric!r} belongs to a suite that is not in `suites`; add {name} there"
            for key, metric in compared_metrics(training_args)
            for name, headline in SUITE_HEADLINES.items()
            if metric == headline and name not in suite_args.suites
        ]
    if model_args is not None:
        faults += check_model_arguments(model_args, run_args)
    if label_args is not None and data_args is not None:
        faults += check_labels(label_args, data_args.tasks)
    if data_args is not None and training_args is not None:
        faults += _unjudged(training_args.rewards, data_args.tasks)
        for key, metric in compared_metrics(training_args):
            task = metric.split("/")[0]
            if task in TASKS and task not in data_args.tasks:
                faults.append(
                    f"{key}: {metric!r} belongs to a task that is not in `tasks`: {data_args.tasks}; "
                    "add it there, or give the headline of a suite, such as suites/environment/exact"
                )
    return faults


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
    return [
        ("metric_for_best_model", str(args.metric_for_best_model)),
        *(("guard", str(metric)) for metric in guard),
    ]


def check_labels(args: LabelArguments, tasks: Iterable[str]) -> list[str]:
    """A fault if an engine is certain to be needed, but was not found."""
    if args.labels == "engine" and any(TASKS[task].needs_values for task in tasks):
        try:
            find_engine(args.engine_path)
        except EngineError as error:
            return [f"labels: engine: {error}"]
    return []


def check_cluster(args: PrepareArguments) -> list[str]:
    """Faults of `cluster` and `cluster_options`, and packages or programs that are missing for them."""
    if args.cluster is None:
        return []
    needed = ["datatrove", "ray"] if args.cluster == "ray" else ["datatrove"]
    if missing := [name for name in needed if find_spec(name) is None]:
        return [
            f"cluster: {args.cluster!r} needs {' and '.join(missing)}; install "
            f"'rookworld-rlvr[cluster]'{' and ray' if 'ray' in missing else ''}"
        ]
    from ..data.cluster import option_faults  # it imports datatrove

    assert not isinstance(args.cluster_options, str)  # it has been read as JSON
    return option_faults(args.cluster, args.cluster_options or {})


def check_prepare_recipe(
    args: PrepareArguments | None, label_args: PrepareLabelArguments | None
) -> list[str]:
    """Faults of a recipe for preparing data, from several dataclasses together."""
    if args is None or label_args is None:
        return []
    faults = check_labels(label_args, TASKS) + check_cluster(args)
    if label_args.labels == "stored" and args.synthetic_policy_rows:
        faults.append(
            "labels: 'stored' leaves synthetic_policy_rows without answers; set labels: "
            "stored_or_engine, or leave synthetic_policy_rows out"
        )
    if args.cluster and label_args.engine_cache is not None:
        faults.append(
            "engine_cache: with cluster each task keeps its values in a file of its own; leave it out"
        )
    if args.cluster and label_args.engine_workers is None:
        faults.append(
            "engine_workers: null is this machine's cores, for every task; give the engines of each"
        )
    if os.environ.get("WORLD_SIZE", "1") != "1":
        faults.append(
            "num_processes: prepare is one process; give engine_workers, or cluster: local"
        )
    return faults
