"""The dataclasses of a recipe's training keys, and the checks of a recipe as a whole."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy
from trl import GRPOConfig, ModelConfig, RewardConfig, SFTConfig

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.extras import is_here
from ..common.files import folder_faults
from ..common.settings import Bounds, Check, bounded, key_faults, setting, with_default
from ..evaluation.registry import SUITE_HEADLINES
from ..models.decoding import ANSWER_TOKENS
from ..models.loading import check_model_name
from ..rewards.registry import check_reward_specs, specs_of, tasks_of
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS
from .arguments import MUON, StepArguments, metric_faults, settled_step_faults, step_faults
from .run_folder import foreign_faults


# --------------------------------------------------------------------------------------------------
# Dataclasses
# --------------------------------------------------------------------------------------------------
@dataclass
class RunArguments:
    """What the command does, as opposed to how it trains."""

    dry_run: bool = setting(
        False,
        "Print the counts of the data, for GRPO also three scored rows of each task, and the keys that "
        "differ from the defaults, then exit without training. No model is loaded, except judges.",
    )


@dataclass
class MeasurementArguments:
    """What is measured on held-out rows beside accuracy."""

    pass_samples: int = setting(
        0,
        "Sampled answers to each held-out row, for pass@k with k up to this number, before training and "
        "with the final weights; 64 is usual. 0 measures no pass@k.",
        least=0,
    )
    other_task_rows: int = setting(
        200,
        "Largest number of held-out rows of each task that is in the data but not in `tasks`. At the "
        "end, the starting and the final model answer them; 0 measures none of it.",
        least=0,
    )


_OTHER_LOGPS = "would make the trainer's log-probs differ from the sampler's"


def _must_be(wanted: Any, otherwise: str) -> Check:
    def faults(value: Any, name: str) -> list[str]:
        return [] if value == wanted else [f"{name}: {value!r} {otherwise}; leave it out"]

    return faults


def _token_faults(value: str, name: str) -> list[str]:
    return [f"{name}: it would be written into the run's files; set HF_TOKEN or run hf auth login"]


def _steps_faults(value: int, name: str) -> list[str]:
    if value == -1 or value >= 1:
        return []
    return [
        f"{name}: {value} is not a number of steps; give at least 1, or -1 to use num_train_epochs"
    ]


def _hub_strategy_faults(value: Any, name: str) -> list[str]:
    if getattr(value, "value", value) == "end":
        return []
    return [f"{name}: {value!r}: the final model is pushed after the run; leave it out"]


def _report_faults(value: Any, name: str) -> list[str]:
    known = ("none", "all", *INTEGRATION_TO_CALLBACK)
    here = ("none", "all", *get_available_reporting_integrations())
    return [
        f"{name}: {given} is not installed, or WANDB_DISABLED hides it; give another, or none"
        if given in known
        else f"{name}: {given!r} is not a dashboard{close_matches(given, known)}"
        for given in ([value] if isinstance(value, str) else value or ())
        if given not in here
    ]


def _needs(package: str, values: str) -> Check:
    """A check of a key for which transformers looks for a package once the model is loaded.

    Args:
        package: Its name for pip; its module has underscores for hyphens.
        values: The values that need it, as a regular expression.
    """

    def faults(value: Any, name: str) -> list[str]:
        given = str(getattr(value, "value", value)).lower()
        if not re.search(values, given) or find_spec(package.replace("-", "_")):
            return []
        return [
            f"{name}: {given} needs {package}, which is not installed; run pip install {package}, or "
            f"leave {name} out"
        ]

    return faults


_TRAINING_BOUNDS = {
    "adam_beta1 adam_beta2": Bounds(least=0, below=1),
    "adam_epsilon eval_steps logging_steps num_train_epochs save_steps": Bounds(above=0),
    "data_seed seed": Bounds(least=0, most=2**32 - 1),
    "dataloader_num_workers learning_rate max_grad_norm": Bounds(least=0),
    "warmup_steps weight_decay": Bounds(least=0),
    "gradient_accumulation_steps save_total_limit": Bounds(least=1),
    "per_device_eval_batch_size per_device_train_batch_size": Bounds(least=1),
    "hub_strategy": Bounds(check=_hub_strategy_faults),
    "hub_token": Bounds(check=_token_faults),
    "max_steps": Bounds(check=_steps_faults),
    "output_dir": Bounds(check=folder_faults),
    "optim": Bounds(check=_needs("bitsandbytes", "8bit|bnb|paged")),
    "report_to": Bounds(check=_report_faults),
    "use_liger_kernel": Bounds(check=_needs("liger-kernel", "true")),
}
"""Bounds that transformers does not check; other values end in a traceback or teach nothing."""


_LOSSES = "grpo bnpo dr_grpo dapo luspo sapo cispo vespo"
_CORRECTIONS = "token_truncate token_mask sequence_truncate sequence_mask"
_GRPO_BOUNDS = {
    "neftune_noise_alpha": Bounds(check=_must_be(None, _OTHER_LOGPS)),
    "beta epsilon top_k": Bounds(least=0),
    "max_completion_length num_generations_eval num_iterations": Bounds(least=1),
    "repetition_penalty temperature": Bounds(above=0),
    "top_p": Bounds(above=0, most=1),
    "importance_sampling_level": Bounds(among=("token", "sequence")),
    "loss_type": Bounds(among=tuple(_LOSSES.split())),
    "multi_objective_aggregation": Bounds(among=("sum_then_normalize", "normalize_then_sum")),
    "scale_rewards": Bounds(among=("group", "batch", "none")),
    "vllm_importance_sampling_mode": Bounds(among=tuple(_CORRECTIONS.split())),
    "vllm_mode": Bounds(among=("colocate", "server")),
    "vllm_model_impl": Bounds(among=("vllm", "transformers")),
}
"""Bounds that TRL checks in the first step, after all that takes time, or not at all."""


@dataclass
class TrainingDefaults:
    """Where a run logs, and whether it is pushed to the Hub."""

    report_to: None | str | list[str] = with_default(  # noqa: RUF036  (the parser takes the second)
        TrainingArguments, "report_to", "wandb" if is_here("workspace") else "none"
    )
    resume_from_checkpoint: str | None = setting(
        None,
        "auto goes on from the last whole checkpoint in output_dir, or starts if there is none, or if "
        "the run there is finished and keys have changed; true goes on, also to train a finished run on "
        "to a larger max_steps, and is refused if there is no checkpoint; a folder checkpoint-N goes on "
        "from that one. By default a new run starts, and an earlier one in output_dir is kept under "
        "another name.",
    )
    project: str = with_default(TrainingArguments, "project", "rookworld-rlvr")
    hub_strategy: HubStrategy | str = with_default(TrainingArguments, "hub_strategy", "end")

    def __post_init__(self) -> None:
        faults = key_faults(self) + self.faults()
        try:
            super().__post_init__()  # type: ignore[misc]
        except ValueError as error:
            said = " ".join(str(error).split())
            if "doesn't support bf16/gpu" in said:  # transformers names no key
                said = "bf16: no GPU that supports bf16 was found; give --bf16 false"
            elif "round multiple" in said:
                said = _not_together(self.save_steps, self.eval_steps)  # type: ignore[attr-defined]
            faults.append(said)
        else:
            faults += _schedule_faults(self) + self.settled_faults()
        if faults:
            raise ConfigurationError(faults)
        self.run_name = self.run_name or Path(self.output_dir).name  # type: ignore[attr-defined, has-type]

    def faults(self) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        return []

    def settled_faults(self) -> list[str]:
        """Faults that show once TRL has computed the batch sizes, one sentence each."""
        return []


@bounded(_TRAINING_BOUNDS | _GRPO_BOUNDS)
@dataclass
class RookWorldGRPOConfig(StepArguments, MeasurementArguments, TrainingDefaults, GRPOConfig):
    """`trl.GRPOConfig` with RookWorld's defaults, and keys of our own beside TRL's.

    The keys of a step are in `training.arguments`.
    """

    rewards: list[Any] | str | None = setting(
        None,
        "The rewards, a list of names or of {name, weight, options}: name is a reward's name or "
        "path/to/file.py:function, weight is a factor (1 if left out), options are the reward's "
        "own. A name alone has weight 1. A script may give functions to the trainer instead.",
    )
    preflight: bool = setting(
        True,
        "Before training, check that the trainer's log-probs equal the sampler's and those without "
        "padding, and that the KL to the reference is 0; stop the run if not.",
    )
    health: bool = setting(True, "Watch the run for problems, and report them with a remedy.")
    log_phases: bool = setting(
        False,
        "Print and log the seconds and the peak memory of each phase of a step: sampling, rewards, "
        "update, and within the update reference and loss. Each phase then waits for the GPU, which "
        "costs a little time.",
    )
    # Defaults that differ from TRL's and transformers': evaluate on held-out rows before and during
    # training, and keep the checkpoint that is best there.
    eval_on_start: bool = setting(
        True,
        "Evaluate on held-out rows before training; it must be true.",
        check=_must_be(True, "would leave no results from before training to compare with"),
    )
    eval_strategy: IntervalStrategy | str = with_default(GRPOConfig, "eval_strategy", "steps")
    eval_steps: float | None = with_default(GRPOConfig, "eval_steps", 100)
    save_strategy: SaveStrategy | str = with_default(GRPOConfig, "save_strategy", "steps")
    save_steps: float = with_default(GRPOConfig, "save_steps", 100)
    save_total_limit: int | None = with_default(GRPOConfig, "save_total_limit", 2)
    load_best_model_at_end: bool | None = setting(
        None,
        "Keep the checkpoint that is best on held-out rows; by default true, unless eval_strategy or "
        "save_strategy is no.",
    )
    metric_for_best_model: str = setting(
        "overall",
        "The held-out metric by which the best checkpoint is chosen: overall, a task's metric such as "
        "policy/best_move, or the headline metric of a suite in suites.",
        check=metric_faults,
    )
    greater_is_better: bool | None = with_default(GRPOConfig, "greater_is_better", True)
    disable_dropout: bool = setting(
        True,
        "Switch dropout off in policy and reference, for sampling and training; it must be true.",
        check=_must_be(True, _OTHER_LOGPS),
    )
    remove_unused_columns: bool | None = with_default(GRPOConfig, "remove_unused_columns", False)
    max_completion_length: int | None = with_default(
        GRPOConfig, "max_completion_length", ANSWER_TOKENS
    )
    num_generations_eval: int | None = with_default(GRPOConfig, "num_generations_eval", 1)
    ddp_find_unused_parameters: bool | None = with_default(
        GRPOConfig, "ddp_find_unused_parameters", False
    )
    log_completions: bool = with_default(GRPOConfig, "log_completions", True)
    num_completions_to_print: int | None = with_default(GRPOConfig, "num_completions_to_print", 0)

    def __post_init__(self) -> None:
        if self.load_best_model_at_end is None:
            self.load_best_model_at_end = "no" not in (self.eval_strategy, self.save_strategy)
        switched = {"true": "group", "false": "none"}  # TRL takes booleans, a recipe's come as text
        given = self.scale_rewards  # type: ignore[has-type]
        self.scale_rewards = switched.get(str(given).lower(), given)
        super().__post_init__()

    def faults(self) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        faults = self._reward_faults() + step_faults(self)
        if self.use_vllm:
            from .exchanged import vllm_faults

            faults += vllm_faults(self)
        return faults

    def settled_faults(self) -> list[str]:
        """Faults that show once TRL has computed the batch sizes, one sentence each."""
        return settled_step_faults(self, self.world_size)

    def _reward_faults(self) -> list[str]:
        """The faults of the rewards; if there are none, their weights are set for TRL."""
        if not isinstance(self.rewards, list | tuple):  # `key_faults` refuses text
            return []
        self.rewards = specs = specs_of(self.rewards)
        faults = check_reward_specs(specs)
        if self.reward_weights is not None:  # type: ignore[has-type]
            faults.append(
                "reward_weights: leave it out; each reward has its weight under `rewards`"
            )
        if not faults:
            self.reward_weights = [float(spec.get("weight", 1.0)) for spec in specs]
        return faults


@bounded(_TRAINING_BOUNDS | {"loss_type": Bounds(among=("nll", "dft"))})
@dataclass
class RookWorldSFTConfig(TrainingDefaults, SFTConfig):
    """`trl.SFTConfig` with RookWorld's defaults: loss on completions only."""

    completion_only_loss: bool | None = with_default(SFTConfig, "completion_only_loss", True)
    muon: bool = setting(False, MUON)


@bounded(_TRAINING_BOUNDS)
@dataclass
class RookWorldRewardConfig(TrainingDefaults, RewardConfig):
    """`trl.RewardConfig` with RookWorld's defaults: pairs of any length are kept unless you ask."""

    max_length: int | None = with_default(RewardConfig, "max_length", None)
    ddp_find_unused_parameters: bool | None = with_default(
        RewardConfig, "ddp_find_unused_parameters", False
    )


# --------------------------------------------------------------------------------------------------
# Faults that show only when several dataclasses are compared
#
# A check takes the instances of its script's `GROUPS`; a dataclass with faults of its own is None.
# --------------------------------------------------------------------------------------------------
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


def idle_keys(tasks: Iterable[str], args: StepArguments) -> str:
    """A line that names keys of the step that do nothing for these tasks; empty if there are none."""
    of_moves = [key for key in ("expected_score_coef", "soft_moves_coef") if getattr(args, key)]
    if POLICY.name in tasks or not of_moves:
        return ""
    return f"{', '.join(of_moves)}: nothing to do, as no policy rows are trained on"


_NO_KEYWORDS = {
    "compute_metrics": "held-out answers are text, which the tasks score; for a number of your own add "
    "a reward, with weight 0 if it is not to be trained on: its held-out mean is `rewards/<its name>`",
}
"""Keywords of transformers' `Trainer` that a GRPO trainer does not take, with what does the same."""


def check_keywords(trainer: type, keywords: Iterable[str]) -> None:
    """Refuse keywords that a trainer does not take.

    Raises:
        ConfigurationError: It says what to do instead.
    """
    known = {*inspect.signature(trainer).parameters}
    faults = [
        f"{name}: the GRPO trainer does not take it; {_NO_KEYWORDS[name]}"
        if name in _NO_KEYWORDS
        else f"{name}: the GRPO trainer does not take it{close_matches(name, known)}"
        for name in keywords
        if name not in known
    ]
    if faults:
        raise ConfigurationError(faults)


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


def _schedule_faults(args: Any) -> list[str]:
    """What the learning rate's schedule lacks, which transformers says after the first evaluation."""
    optimizer = torch.optim.SGD([torch.zeros(1)])
    kind, own = args.lr_scheduler_type, args.lr_scheduler_kwargs or {}
    try:
        get_scheduler(kind, optimizer, 0, 10, scheduler_specific_kwargs={**own})
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        return [
            f"lr_scheduler_type: {getattr(kind, 'value', kind)}: {said}; give lr_scheduler_kwargs"
        ]
    return []


def _not_together(save_steps: float, eval_steps: float) -> str:
    """Why a run cannot keep its best checkpoint."""
    fitting = max(1, round(save_steps / eval_steps)) * eval_steps
    return (
        f"save_steps: {save_steps:g} is not a multiple of eval_steps, {eval_steps:g}, so the best "
        f"checkpoint could not be kept; give --save_steps {fitting:g}"
    )
