"""The dataclasses of a recipe, and the checks that look at several of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOConfig, RewardConfig, SFTConfig

from ..common.errors import ConfigurationError, close_matches, json_value
from ..evaluation.registry import SUITE_HEADLINES
from ..rewards.registry import check_reward_specs
from ..tasks.metrics import TRAINING_METRICS
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
    KLArguments,
    BaselineArguments,
    ScheduleArguments,
    SamplingArguments,
    ShapeArguments,
    PromptArguments,
    VarianceArguments,
    ValueArguments,
    GRPOConfig,
):
    """`trl.GRPOConfig` with RookWorld's defaults and the keys that TRL has none for.

    Those of the trainer's parts stand with the parts, in `training.parts`.

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
        faults = self._check_rewards() + self.kl_faults(self.beta)
        faults += self.baseline_faults() + self.schedule_faults()
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
