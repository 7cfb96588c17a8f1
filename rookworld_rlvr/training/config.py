"""The dataclasses of a recipe, and the checks that look at several of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOConfig, RewardConfig, SFTConfig

from ..common.errors import ConfigurationError, close_matches
from ..common.settings import Check, Checked, key_faults, record_faults, setting, with_default
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


@dataclass
class DashboardDefaults:
    """Where all trainings log, and under which name."""

    report_to: None | str | list[str] = field(  # noqa: RUF036  (the parser takes the second)
        default="wandb",
        metadata={
            "help": "wandb (offline without a key), trackio, none, or another of transformers'."
        },
    )
    project: str = with_default(TrainingArguments, "project", "rookworld-rlvr")

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        self.run_name = self.run_name or Path(self.output_dir).name  # type: ignore[attr-defined, has-type]


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
    DashboardDefaults,
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

    def __post_init__(self) -> None:
        faults = key_faults(self) + self._reward_faults() + self.kl_faults(self.beta)
        faults += self.sampling_faults(self) + self.prompt_faults() + self.value_faults(self)
        faults += self.shape_faults(self)
        try:
            super().__post_init__()
        except ValueError as error:
            faults.append(" ".join(str(error).split()))
        else:  # TRL has settled batch sizes
            faults += self.variance_faults(self, self.world_size)
        if faults:
            raise ConfigurationError(faults)

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


@dataclass
class RookWorldSFTConfig(DashboardDefaults, SFTConfig):
    """`trl.SFTConfig` with RookWorld's defaults: loss on completions only."""

    completion_only_loss: bool | None = field(
        default=True, metadata={"help": "Loss on completions only."}
    )


@dataclass
class RookWorldRewardConfig(DashboardDefaults, RewardConfig):
    """`trl.RewardConfig` with RookWorld's defaults: no pair is left out for its length unasked."""

    max_length: int | None = field(
        default=None,
        metadata={"help": "Leave out pairs with more tokens; a pair too long for the model stops."},
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Every parameter of a GPT-2 is used in every step."}
    )
