"""The dataclasses of a recipe, and the checks that look at several of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.integrations import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy
from trl import GRPOConfig, RewardConfig, SFTConfig

from ..common.errors import ConfigurationError, close_matches
from ..common.files import folder_faults
from ..common.settings import (
    Bounds,
    Check,
    Checked,
    bounded,
    key_faults,
    record_faults,
    setting,
    with_default,
)
from ..evaluation.registry import SUITE_HEADLINES
from ..rewards.registry import check_reward_specs, known_rewards
from ..tasks.metrics import training_metrics
from .parts.advantages import BaselineArguments
from .parts.buckets import ShapeArguments
from .parts.groups import VarianceArguments
from .parts.kl import KLArguments
from .parts.mixture import PromptArguments
from .parts.sampling import SamplingArguments
from .parts.schedule import ScheduleArguments
from .parts.value_head import ValueArguments


# --------------------------------------------------------------------------------------------------
# Dataclasses
# --------------------------------------------------------------------------------------------------
@dataclass
class RunArguments:
    """What the script does, as opposed to how it trains."""

    dry_run: bool = setting(
        False,
        "Print the resolved configuration, the data's counts and three scored rows a task, then exit "
        "without loading a model other than judges.",
    )


@dataclass(frozen=True)
class ModelShape:
    """A GPT-2."""

    n_layer: int = setting(MISSING, "Layers.", least=1)
    n_embd: int = setting(MISSING, "Width, a multiple of n_head.", least=1)
    n_head: int = setting(MISSING, "Heads of a layer.", least=1)
    n_positions: int = setting(MISSING, "Most tokens of a text.", least=1)
    vocab_size: int = setting(MISSING, "Tokens that there are.", least=1)


def _shape_faults(shape: Mapping[str, Any], name: str) -> list[str]:
    faults = record_faults(ModelShape, shape, name)
    if not faults and shape["n_embd"] % shape["n_head"]:
        faults.append(f"{name}: n_embd is no multiple of n_head")
    return faults


@dataclass
class NewModelArguments(Checked):
    """A model from scratch, where `new_model` is given, in place of `model_name_or_path`."""

    new_model: dict[str, Any] | str | None = setting(
        None,
        "{n_layer, n_embd, n_head, n_positions, vocab_size} of a GPT-2; its tokenizer is trained on the "
        "training rows.",
        check=_shape_faults,
    )


def _metric_faults(value: str | None, name: str) -> list[str]:
    known = (*training_metrics(), *SUITE_HEADLINES.values())
    if value in known:
        return []
    return [f"{name}: {value!r} is no held-out metric{close_matches(str(value), known)}"]


def _must_be_true(otherwise: str) -> Check:
    return lambda value, name: [] if value else [f"{name}: {value!r} {otherwise}; leave it out"]


def _steps_faults(value: int, name: str) -> list[str]:
    if value == -1 or value >= 1:
        return []
    return [f"{name}: {value} is no number of steps; give at least 1, or -1 for num_train_epochs"]


def _report_faults(value: Any, name: str) -> list[str]:
    known = ["none", "all", *INTEGRATION_TO_CALLBACK]
    here = ["none", "all", *get_available_reporting_integrations()]
    faults = []
    for given in [value] if isinstance(value, str) else value or ():
        if given not in known:
            faults.append(f"{name}: {given!r} is no dashboard{close_matches(given, known)}")
        elif given not in here:
            faults.append(f"{name}: {given} is not installed; pip install {given}, or give another")
    return faults


_TRAINING_BOUNDS = {
    "adam_beta1": Bounds(least=0, below=1),
    "adam_beta2": Bounds(least=0, below=1),
    "adam_epsilon": Bounds(above=0),
    "dataloader_num_workers": Bounds(least=0),
    "eval_steps": Bounds(above=0),
    "gradient_accumulation_steps": Bounds(least=1),
    "learning_rate": Bounds(least=0),
    "logging_steps": Bounds(above=0),
    "max_grad_norm": Bounds(least=0),
    "max_steps": Bounds(check=_steps_faults),
    "num_train_epochs": Bounds(above=0),
    "output_dir": Bounds(check=folder_faults),
    "per_device_eval_batch_size": Bounds(least=1),
    "per_device_train_batch_size": Bounds(least=1),
    "report_to": Bounds(check=_report_faults),
    "save_steps": Bounds(above=0),
    "save_total_limit": Bounds(least=1),
    "warmup_steps": Bounds(least=0),
    "weight_decay": Bounds(least=0),
}
"""What transformers lets pass, and what then ends in a traceback or in a run that learns nothing."""


_SAMPLING_BOUNDS = {
    "beta": Bounds(least=0),
    "epsilon": Bounds(least=0),
    "max_completion_length": Bounds(least=1),
    "num_generations_eval": Bounds(least=1),
    "num_iterations": Bounds(least=1),
    "repetition_penalty": Bounds(above=0),
    "temperature": Bounds(above=0),
    "top_k": Bounds(least=0),
    "top_p": Bounds(above=0, most=1),
}


@dataclass
class TrainingDefaults:
    """Where all trainings log, and under which name; and that all faults are told at once."""

    report_to: None | str | list[str] = field(  # noqa: RUF036  (the parser takes the second)
        default="wandb",
        metadata={
            "help": "wandb (offline without a key), trackio, none, or another of transformers'."
        },
    )
    project: str = with_default(TrainingArguments, "project", "rookworld-rlvr")
    push_to_hub: bool = setting(
        False,
        "Push the final model with its card, configuration, results and report to the Hub, after the "
        "run; hub_private_repo: true makes the repository private.",
    )
    hub_model_id: str | None = setting(
        None,
        "The repository, owner/name; None for one of your account with the run's folder's name.",
    )
    hub_strategy: HubStrategy | str = with_default(TrainingArguments, "hub_strategy", "end")
    hub_merged: bool = setting(
        False, "Push adapters merged into the model too, into the repository's folder merged."
    )

    def __post_init__(self) -> None:
        faults = key_faults(self) + self._hub_faults() + self.faults()
        try:
            super().__post_init__()  # type: ignore[misc]
        except ValueError as error:
            faults.append(" ".join(str(error).split()))
        else:
            faults += self.settled_faults()
        if faults:
            raise ConfigurationError(faults)
        self.run_name = self.run_name or Path(self.output_dir).name  # type: ignore[attr-defined, has-type]

    def _hub_faults(self) -> list[str]:
        faults = []
        strategy = str(getattr(self.hub_strategy, "value", self.hub_strategy))
        if self.hub_token is not None:  # type: ignore[attr-defined]
            faults.append(
                "hub_token: it would be written into the run's files; leave it out, and set HF_TOKEN "
                "or run hf auth login"
            )
        if self.push_to_hub and strategy != "end":
            faults.append(
                f"hub_strategy: {strategy!r} pushes checkpoints that have no card yet; leave it out: "
                "the final model is pushed after the run"
            )
        if self.hub_merged and not self.push_to_hub:
            faults.append("hub_merged: nothing is pushed; give push_to_hub: true, or leave it out")
        return faults

    def faults(self) -> list[str]:
        """What no key shows alone, one sentence each."""
        return []

    def settled_faults(self) -> list[str]:
        """What shows once TRL has settled batch sizes, one sentence each."""
        return []


@bounded(**_TRAINING_BOUNDS, **_SAMPLING_BOUNDS)
@dataclass
class RookWorldGRPOConfig(
    KLArguments,
    BaselineArguments,
    ScheduleArguments,
    SamplingArguments,
    ShapeArguments,
    PromptArguments,
    VarianceArguments,
    ValueArguments,
    TrainingDefaults,
    GRPOConfig,
):
    """`trl.GRPOConfig` with RookWorld's defaults and the keys that TRL has none for.

    Those of the trainer's parts stand with the parts, in `training.parts`.
    """

    rewards: list[Any] | str | None = setting(
        None,
        'List of {"name": ..., "weight": ..., **options}, see rewards.get_reward_funcs.',
        remedy=f"give some of {', '.join(known_rewards())}",
    )
    preflight: bool = setting(True, "Whether to compare log-probs before training.")
    preflight_tolerance: float | None = setting(
        None,
        "Largest gap allowed, in nats; None takes 1e-3 in fp32 and 5e-2 in bf16 and fp16 (bf16 keeps 8 "
        "bits of mantissa: log-probs of about -10 are off by up to 0.04).",
        above=0,
        remedy="give nats, or preflight: false",
    )
    board_rows: int = setting(
        8,
        "Completions that W&B's table boards shows with a picture, a log; about 20 KB each.",
        least=0,
    )

    # Defaults of TRL and transformers that are wrong here: evaluate on held-out rows before and during
    # training, and keep the checkpoint that is best there.
    eval_on_start: bool = setting(
        True,
        "Evaluate on held-out rows before training.",
        check=_must_be_true("leaves the table without its 'before'"),
    )
    eval_strategy: IntervalStrategy | str = with_default(GRPOConfig, "eval_strategy", "steps")
    eval_steps: float | None = with_default(GRPOConfig, "eval_steps", 100)
    save_strategy: SaveStrategy | str = with_default(GRPOConfig, "save_strategy", "steps")
    save_steps: float = with_default(GRPOConfig, "save_steps", 100)
    save_total_limit: int | None = with_default(GRPOConfig, "save_total_limit", 2)
    load_best_model_at_end: bool = with_default(GRPOConfig, "load_best_model_at_end", True)
    metric_for_best_model: str = setting(
        "overall",
        "Held-out metric of the checkpoint to keep: of a task, or a suite's headline.",
        check=_metric_faults,
    )
    greater_is_better: bool | None = with_default(GRPOConfig, "greater_is_better", True)
    disable_dropout: bool = setting(
        True,
        "Dropout off in policy and reference, sampling and training.",
        check=_must_be_true("makes the trainer's log-probs differ from the sampler's"),
    )
    remove_unused_columns: bool | None = field(
        default=False, metadata={"help": "Keep the columns that carry truth to the rewards."}
    )
    num_generations_eval: int | None = field(
        default=1, metadata={"help": "Held-out evaluation is greedy: one completion a row."}
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

    def faults(self) -> list[str]:
        """What no key shows alone, one sentence each."""
        faults = self._reward_faults() + self.kl_faults(self.beta) + self.sampling_faults(self)
        return faults + self.prompt_faults() + self.value_faults(self) + self.shape_faults(self)

    def settled_faults(self) -> list[str]:
        """What shows once TRL has settled batch sizes, one sentence each."""
        return self.variance_faults(self, self.world_size)

    def _reward_faults(self) -> list[str]:
        """Find the rewards' faults; without any, hand their weights to TRL."""
        specs: Any = self.rewards
        faults = (
            check_reward_specs(specs) if specs is None or isinstance(specs, list | tuple) else []
        )
        if self.reward_weights is not None:  # type: ignore[has-type]
            faults.append("reward_weights: give each reward its weight, under `rewards`")
        if not faults and isinstance(specs, list | tuple):
            self.reward_weights = [float(spec.get("weight", 1.0)) for spec in specs]
        return faults


@bounded(**_TRAINING_BOUNDS)
@dataclass
class RookWorldSFTConfig(TrainingDefaults, SFTConfig):
    """`trl.SFTConfig` with RookWorld's defaults: loss on completions only."""

    completion_only_loss: bool | None = field(
        default=True, metadata={"help": "Loss on completions only."}
    )


@bounded(**_TRAINING_BOUNDS)
@dataclass
class RookWorldRewardConfig(TrainingDefaults, RewardConfig):
    """`trl.RewardConfig` with RookWorld's defaults: no pair is left out for its length unasked."""

    max_length: int | None = field(
        default=None,
        metadata={"help": "Leave out pairs with more tokens; a pair too long for the model stops."},
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Every parameter of a GPT-2 is used in every step."}
    )
