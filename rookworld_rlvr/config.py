"""The dataclasses of a recipe, and the checks that look at several of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOConfig, ModelConfig, RewardConfig, SFTConfig

from .control import ControlArguments
from .data import DataArguments
from .engine import find_engine
from .evaluation import TRAINING_METRICS
from .evaluation.suites import SUITE_HEADLINES, SuiteArguments
from .health import HealthArguments
from .labels import LabelArguments
from .mixture import PromptArguments
from .model import check_model_name
from .pairs import JudgeDataArguments
from .prepare import PrepareArguments, PrepareLabelArguments
from .records import (
    TASKS,
    ConfigurationError,
    EngineError,
    close_matches,
    json_value,
)
from .rewards import check_reward_specs, tasks_of
from .rollout import SamplingArguments
from .shapes import ShapeArguments
from .value import ValueArguments
from .variance import VarianceArguments


# --------------------------------------------------------------------------------------------------
# Dataclasses
# --------------------------------------------------------------------------------------------------
@dataclass
class RunArguments:
    """What the script does, as opposed to how it trains.

    Args:
        dry_run: Print the resolved configuration, the data's counts and three scored rows a task,
            then exit without loading a model other than judges.
    """

    dry_run: bool = False


@dataclass
class NewModelArguments:
    """A model from scratch, where `new_model` is given, in place of `model_name_or_path`.

    Args:
        new_model: ``{n_layer, n_embd, n_head, n_positions, vocab_size}`` of a GPT-2; its tokenizer is
            trained on the training rows.
    """

    new_model: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        shape = self.new_model = json_value("new_model", self.new_model)
        if shape is None:
            return
        if not isinstance(shape, dict):
            raise ConfigurationError([f"new_model: {shape!r} is no mapping"])
        known = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
        faults = [
            f"new_model: unknown key {key!r}{close_matches(str(key), known)}"
            for key in shape
            if key not in known
        ]
        faults += [f"new_model: {key} is missing" for key in known if key not in shape]
        faults += [
            f"new_model: {key} is {value!r}, no whole number above 0"
            for key, value in shape.items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if not faults and shape["n_embd"] % shape["n_head"]:
            faults.append("new_model: n_embd is no multiple of n_head")
        if faults:
            raise ConfigurationError(faults)


@dataclass
class RookWorldGRPOConfig(
    ControlArguments,
    SamplingArguments,
    ShapeArguments,
    PromptArguments,
    VarianceArguments,
    ValueArguments,
    GRPOConfig,
):
    """`trl.GRPOConfig` with RookWorld's defaults and the keys that TRL has none for.

    `control.ControlArguments` and `value.ValueArguments` act on a step's loss and advantages,
    `rollout.SamplingArguments` on how each task is sampled, `mixture.PromptArguments` on which prompts
    a batch holds, `variance.VarianceArguments` on groups without signal, `shapes.ShapeArguments` on
    what `torch_compile` compiles.

    Args:
        rewards: List of ``{"name": ..., "weight": ..., **options}``, see `rewards.get_reward_funcs`.
        preflight: Whether to compare log-probs before training.
        preflight_tolerance: Largest gap allowed, in nats; None takes 1e-3 in fp32 and 5e-2 in bf16
            and fp16 (bf16 keeps 8 bits of mantissa: log-probs of about -10 are off by up to 0.04).
        board_rows: Completions that W&B's table `boards` shows with a picture, a log; about 20 KB each.
    """

    rewards: list[Any] | str | None = None
    preflight: bool = True
    preflight_tolerance: float | None = None
    board_rows: int = 8

    # Defaults of TRL and transformers that are wrong here: evaluate on held-out rows before and during
    # training, and keep the checkpoint that is best there.
    eval_on_start: bool = True
    eval_strategy: IntervalStrategy | str = "steps"
    eval_steps: float | None = 100
    save_strategy: SaveStrategy | str = "steps"
    save_steps: float = 100
    save_total_limit: int | None = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "overall"
    greater_is_better: bool | None = True
    disable_dropout: bool = field(
        default=True,
        metadata={"help": "Dropout off in policy and reference, sampling and training."},
    )
    remove_unused_columns: bool | None = field(
        default=False, metadata={"help": "Keep the columns that carry truth to the rewards."}
    )
    num_generations_eval: int | None = field(
        default=1, metadata={"help": "Held-out evaluation is greedy: one completion a row."}
    )
    report_to: None | str | list[str] = field(  # noqa: RUF036  (the parser takes the second)
        default="wandb", metadata={"help": "Where to log; W&B runs offline without a key."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Every parameter of a GPT-2 is used in every step."}
    )
    log_completions: bool = field(
        default=True, metadata={"help": "Log tables of completions, and keep them as Parquet."}
    )
    num_completions_to_print: int | None = field(
        default=0, metadata={"help": "Completions to print with each log; 0 for none."}
    )

    def __post_init__(self) -> None:
        faults = self._check_rewards() + self.control_faults(self.beta)
        faults += self.sampling_faults(self) + self.prompt_faults() + self.value_faults(self)
        faults += self.shape_faults(self)
        known = (*TRAINING_METRICS, *SUITE_HEADLINES.values())
        if self.metric_for_best_model not in known:
            name = str(self.metric_for_best_model)
            faults.append(
                f"metric_for_best_model: no held-out metric {name!r}{close_matches(name, known)}"
            )
        if self.preflight_tolerance is not None and not self.preflight_tolerance > 0:
            faults.append(
                f"preflight_tolerance: {self.preflight_tolerance!r} is not above 0; give nats, or "
                "preflight: false"
            )
        if isinstance(self.board_rows, bool) or self.board_rows < 0:
            faults.append(f"board_rows: {self.board_rows!r} is no whole number from 0")
        if not self.eval_on_start:
            faults.append(
                "eval_on_start: False leaves the table without its 'before'; leave it out"
            )
        if not self.disable_dropout:
            faults.append(
                "disable_dropout: False makes the trainer's log-probs differ from the sampler's; "
                "leave it out"
            )
        try:
            super().__post_init__()
        except ValueError as error:
            faults.append(" ".join(str(error).split()))
        else:  # TRL has settled batch sizes
            faults += self.variance_faults(self, self.world_size)
        if faults:
            raise ConfigurationError(faults)

    def _check_rewards(self) -> list[str]:
        """Find the rewards' faults; without any, hand their weights to TRL."""
        try:
            self.rewards = json_value("rewards", self.rewards)
        except ConfigurationError as error:
            return error.faults
        faults = check_reward_specs(self.rewards)
        if self.reward_weights is not None:  # type: ignore[has-type]
            faults.append("reward_weights: give each reward its weight, under `rewards`")
        if not faults:
            specs: Any = self.rewards
            self.reward_weights = [float(spec.get("weight", 1.0)) for spec in specs]
        return faults


@dataclass
class RookWorldSFTConfig(SFTConfig):
    """`trl.SFTConfig` with RookWorld's defaults: loss on completions only."""

    completion_only_loss: bool | None = field(
        default=True, metadata={"help": "Loss on completions only."}
    )
    report_to: None | str | list[str] = field(  # noqa: RUF036  (the parser takes the second)
        default="wandb", metadata={"help": "Where to log; W&B runs offline without a key."}
    )


@dataclass
class RookWorldRewardConfig(RewardConfig):
    """`trl.RewardConfig` with RookWorld's defaults: no pair is left out for its length unasked."""

    max_length: int | None = field(
        default=None,
        metadata={"help": "Leave out pairs with more tokens; a pair too long for the model stops."},
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Every parameter of a GPT-2 is used in every step."}
    )
    report_to: None | str | list[str] = field(  # noqa: RUF036  (the parser takes the second)
        default="wandb", metadata={"help": "Where to log; W&B runs offline without a key."}
    )


def check_sft_recipe(
    run_args: RunArguments | None,
    data_args: DataArguments | None,
    new_args: NewModelArguments | None,
    model_args: ModelConfig | None,
    sft_args: RookWorldSFTConfig | None,
) -> list[str]:
    """Faults of a recipe for supervised fine-tuning that no dataclass sees alone."""
    if model_args is None or new_args is None:
        return []
    if new_args.new_model is None:
        return check_model_arguments(model_args)
    if model_args.model_name_or_path is not None:
        return ["new_model and model_name_or_path exclude each other; leave one out"]
    return []


def check_judge_recipe(
    run_args: RunArguments | None,
    data_args: DataArguments | None,
    judge_args: JudgeDataArguments | None,
    model_args: ModelConfig | None,
    reward_args: RookWorldRewardConfig | None,
) -> list[str]:
    """Faults of a recipe for training a judge that no dataclass sees alone."""
    faults = []
    if model_args is not None:
        faults += check_model_arguments(model_args)
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


def check_model_arguments(args: ModelConfig) -> list[str]:
    """Faults of a model's name and of how it is to be loaded, found without loading anything."""
    faults = check_model_name(args.model_name_or_path)
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


def check_recipe(
    run_args: RunArguments | None,
    data_args: DataArguments | None,
    label_args: LabelArguments | None,
    model_args: ModelConfig | None,
    health_args: HealthArguments | None,
    training_args: RookWorldGRPOConfig | None,
    suite_args: SuiteArguments | None,
) -> list[str]:
    """Faults that no dataclass sees alone; a dataclass that is faulty itself comes as None."""
    faults = []
    if suite_args is not None and training_args is not None:
        faults += [
            f"metric_for_best_model: {metric!r} is of a suite that `suites` leaves out; add it there"
            for name, metric in SUITE_HEADLINES.items()
            if metric == training_args.metric_for_best_model and name not in suite_args.suites
        ]
    if model_args is not None:
        faults += check_model_arguments(model_args)
    if label_args is not None and data_args is not None:
        faults += check_labels(label_args, data_args.tasks)
    if data_args is not None and training_args is not None:
        faults += training_args.prompt_faults(data_args.tasks)
        specs: Any = training_args.rewards or ()
        judged = tasks_of(specs)
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


def check_labels(args: LabelArguments, tasks: Sequence[str]) -> list[str]:
    """The engine's absence, where it is certain to be asked."""
    if args.labels == "engine" and "policy" in tasks:
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
