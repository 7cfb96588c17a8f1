"""Controls of a GRPO step that TRL has no option for, and the trainer that they act in."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig

from ..common.errors import RookWorldError, close_matches
from ..rewards.judge import judges_of
from .parts.advantages import BASELINES, Baselines
from .parts.compiling import ShapedGRPOTrainer
from .parts.kl import (
    ESTIMATORS,
    KL_ADAPTATIONS,
    KL_CONTROLS,
    KLController,
    importance_weighted,
    per_token_kl,
)

CONTROL_STATE = "control_state.json"


_LOWEST = 0.05  # of the learning rate, where its cosine ends


@dataclass
class ControlArguments:
    """Keys for what acts on a step's loss and advantages; off by default.

    Args:
        kl_estimator: One of `kl.ESTIMATORS`; k3 is TRL's.
        kl_log_ratio_bound: Log-ratios to the reference are held within so many nats.
        kl_control: `fixed`, or `adaptive` to `kl_target`, starting from `beta`.
        kl_adaptation: `proportional` or `multiplicative`, see `kl.KLController`.
        kl_target: KL to hold, in nats a token.
        kl_horizon: Completions after which a proportional correction is made in full.
        kl_waits: Leave the coefficient alone while the KL comes nearer to the target; False takes both
            forms as published, which overshoot where the KL answers slowly.
        kl_warmup_steps: The coefficient rises from 0 over so many optimiser steps.
        log_reference_kl: Keep the reference in memory to log KL, though `beta` is 0.
        baseline: What rewards are compared with: `group_mean` (TRL's), `leave_one_out` (the mean of
            the group's others), `ema` (a running mean of the task's rewards), `adaptive` (the group's
            median where its deviation is over `baseline_spread`, else its mean).
        baseline_decay: Of the running mean, a generation.
        baseline_spread: Deviation of a group's rewards over which its median is taken.
        lr_three_phases: Instead of `lr_scheduler_type`: `warmup_steps` up, cosine down to 5%, and over
            the last `lr_linear_share` of the steps linearly to 0.
        lr_linear_share: See there.
    """

    kl_estimator: str = "k3"
    kl_log_ratio_bound: float = 20.0
    kl_control: str = "fixed"
    kl_adaptation: str = "proportional"
    kl_target: float | None = None
    kl_horizon: int = 10_000
    kl_waits: bool = True
    kl_warmup_steps: int = 0
    log_reference_kl: bool = False
    baseline: str = "group_mean"
    baseline_decay: float = 0.9
    baseline_spread: float = 0.3
    lr_three_phases: bool = False
    lr_linear_share: float = 0.1

    def control_faults(self, beta: float) -> list[str]:
        """What is wrong with the values, one sentence each."""
        faults = [
            f"{name}: {getattr(self, name)!r} is none{close_matches(getattr(self, name), known)}"
            for name, known in (
                ("kl_estimator", ESTIMATORS),
                ("kl_control", KL_CONTROLS),
                ("kl_adaptation", KL_ADAPTATIONS),
                ("baseline", BASELINES),
            )
            if getattr(self, name) not in known
        ]
        faults += [
            f"{name}: {getattr(self, name)!r} is not above 0"
            for name in ("kl_log_ratio_bound", "kl_horizon", "kl_target", "baseline_spread")
            if getattr(self, name) is not None and not getattr(self, name) > 0
        ]
        if self.kl_warmup_steps < 0:
            faults.append(f"kl_warmup_steps: {self.kl_warmup_steps!r} is below 0")
        faults += [
            f"{name}: {getattr(self, name)!r} is not in [0, 1)"
            for name in ("baseline_decay", "lr_linear_share")
            if not 0 <= getattr(self, name) < 1
        ]
        if self.kl_control == "adaptive" and (self.kl_target is None or not beta > 0):
            faults.append(
                "kl_control: 'adaptive' needs a kl_target, and a beta above 0 to start from"
            )
        if self.kl_control == "fixed" and self.kl_target is not None:
            faults.append("kl_target: nothing holds it; give kl_control: adaptive, or leave it out")
        return faults


def three_phases(step: int, steps: int, warmup: int, linear_share: float) -> float:
    """Share of the learning rate at a step: up from 0, cosine down to 5%, linearly to 0.

    >>> [round(three_phases(step, 100, 10, 0.2), 3) for step in (0, 5, 10, 45, 80, 90, 100)]
    [0.0, 0.5, 1.0, 0.525, 0.05, 0.025, 0.0]
    """
    last = steps - round(linear_share * steps)  # where the cosine ends
    if step < warmup:
        return step / warmup
    if step < last:
        progress = (step - warmup) / max(1, last - warmup)
        return _LOWEST + (1 - _LOWEST) * (1 + math.cos(math.pi * progress)) / 2
    return _LOWEST * max(0, steps - step) / max(1, steps - last)


# --------------------------------------------------------------------------------------------------
# The trainer
# --------------------------------------------------------------------------------------------------
class ControlledGRPOTrainer(ShapedGRPOTrainer):
    """`trl.GRPOTrainer` with the controls of `ControlArguments`; the constructor is TRL's."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        **kwargs: Any,
    ) -> None:
        controls = args if isinstance(args, ControlArguments) else ControlArguments()
        self._reward_failures: list[tuple[str, Exception]] = []
        if isinstance(reward_funcs, list):
            reward_funcs = [self._guarded_reward(func) for func in reward_funcs]
        with _reference_loaded(args, controls.log_reference_kl):
            super().__init__(model, reward_funcs, args, **kwargs)
        self.beta = self.args.beta
        self.controls = controls
        self.kl = KLController(
            beta=self.args.beta,
            control=controls.kl_control,
            adaptation=controls.kl_adaptation,
            target=controls.kl_target,
            horizon=controls.kl_horizon,
            warmup_steps=controls.kl_warmup_steps,
            waits=controls.kl_waits,
        )
        self.baselines = Baselines(
            controls.baseline, controls.baseline_decay, controls.baseline_spread
        )
        self._step_kl = torch.zeros(2, dtype=torch.float64)  # sum over tokens, number of tokens
        self._step_completions = 0
        self._keeps_logps = False  # while TRL computes the loss
        self._last_logps: torch.Tensor | None = None
        self._rewards_per_func: torch.Tensor | None = None
        self.judges = judges_of(self.reward_funcs)
        self.add_callback(_ControlCallback(self))

    # --------------------------------------------------------------------------------------------
    # KL
    # --------------------------------------------------------------------------------------------
    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._keeps_logps:
            self._last_logps = output[0]
        return output

    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        """TRL's loss with the KL term of the estimator and the coefficient in use now."""
        reference = inputs.get("ref_per_token_logps")
        if reference is None:
            return super()._compute_loss(model, inputs)
        self._keeps_logps = True
        with self._beta(0.0):  # TRL leaves its own term out
            loss = super()._compute_loss(model, inputs)
        self._keeps_logps = False
        logps, self._last_logps = self._last_logps, None  # with their graph: not a moment longer
        assert logps is not None
        kl, held = self._kl_terms(logps, reference, inputs)
        coefficient = self.kl.coefficient(self.state.global_step)
        self._count_kl(kl, held, coefficient, inputs)
        return loss + coefficient * self._aggregate(kl, inputs)

    def _kl_terms(
        self, logps: torch.Tensor, reference: torch.Tensor, inputs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """KL by token as the loss takes it, and which log-ratios were held, ``(B, T)`` each."""
        estimator = self.controls.kl_estimator
        kl, held = per_token_kl(logps, reference, estimator, self.controls.kl_log_ratio_bound)
        if self.args.use_bias_correction_kl:
            kl = importance_weighted(kl, self._log_importance(logps, inputs), estimator)
        return kl, held

    def _log_importance(self, logps: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Log-prob now less when sampled, of tokens ``(B, T)`` or completions ``(B, 1)``."""
        old = inputs.get("old_per_token_logps")
        log_ratio = logps - (logps.detach() if old is None else old)
        if self.importance_sampling_level == "token":
            return log_ratio
        mask = inputs["completion_mask"]
        return ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)

    def _aggregate(self, per_token: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Sum a term of the loss over tokens ``(B, T)`` as TRL does for this `loss_type`."""
        mask = inputs["completion_mask"]
        training = self.model.training
        steps = self.current_gradient_accumulation_steps if training else 1
        total = (per_token * mask).sum()
        if self.loss_type in ("grpo", "sapo"):
            by_row = (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
            return by_row.mean() / steps
        if self.loss_type == "bnpo":
            return total / mask.sum().clamp(min=1.0) / steps
        if self.loss_type == "dr_grpo":
            return total / (per_token.size(0) * self.max_completion_length) / steps
        if self.loss_type == "luspo":
            return (per_token * mask).sum(-1).mean() / steps
        items = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if training:  # `num_items_in_batch` spans the generation
            items = items * steps / self.args.steps_per_generation
        return total / items

    def _count_kl(
        self,
        kl: torch.Tensor,
        held: torch.Tensor,
        coefficient: float,
        inputs: Mapping[str, Any],
    ) -> None:
        mask = inputs["completion_mask"]
        advantages = inputs["advantages"]
        per_token = advantages.abs() if advantages.dim() > 1 else advantages.abs().unsqueeze(1)
        local = torch.stack(
            [
                (kl.detach() * mask).sum(),
                mask.sum(),
                (held * mask).sum(),
                (kl.detach().abs() * mask).sum(),
                (per_token * mask).sum(),
            ]
        ).double()
        total = self.accelerator.reduce(local, reduction="sum")
        mean = total / total[1].clamp(min=1.0)
        mode = "train" if self.model.training else "eval"
        ours, theirs = coefficient * mean[3].item(), mean[4].item()
        numbers = {
            "kl": mean[0].item(),
            "kl/coefficient": coefficient,
            "kl/held_share": mean[2].item(),
            "kl/share_of_loss": ours / (ours + theirs) if ours + theirs else 0.0,
        }
        for name, number in numbers.items():
            self._metrics[mode][name].append(number)
        if self.model.training:
            self._step_kl += total[:2].cpu()
            self._step_completions += kl.size(0) * self.accelerator.num_processes

    def _adapt_kl(self, step: int) -> None:
        """At the end of an optimiser step: all processes have the same sums, so the same result."""
        total, tokens = self._step_kl.tolist()
        if tokens:
            self.kl.update(total / tokens, self._step_completions, step)
        self._step_kl.zero_()
        self._step_completions = 0

    def _has_reference(self) -> bool:
        network = self.accelerator.unwrap_model(self.model)
        return self.ref_model is not None or hasattr(network, "peft_config")

    @contextmanager
    def _beta(self, value: float) -> Iterator[None]:
        """TRL asks `beta` whether there is a KL term at all; what multiplies it is `kl`."""
        before, self.beta = self.beta, value
        try:
            yield
        finally:
            self.beta = before

    # --------------------------------------------------------------------------------------------
    # Advantages
    # --------------------------------------------------------------------------------------------
    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._end_together()
        return self._rewards_per_func

    def _guarded_reward(self, func: Any) -> Any:
        """The function, whose exception waits until all processes have met: see `_end_together`."""
        if isinstance(func, torch.nn.Module | str) or inspect.iscoroutinefunction(func):
            return func

        @functools.wraps(func)
        def guarded(**kwargs: Any) -> Any:  # TRL gives keywords only
            try:
                return func(**kwargs)
            except Exception as error:
                self._reward_failures.append((func.__name__, error))
                return [None] * len(kwargs["prompts"])

        return guarded

    def _end_together(self) -> None:
        """Raise what a reward raised, on all processes: one that left alone would leave the others
        waiting for its rewards.
        """
        rank = self.accelerator.process_index
        mine = [
            (
                f"{name} on process {rank}: {error!r}",
                isinstance(error, RookWorldError),
            )
            for name, error in self._reward_failures
        ]
        failures = gather_object(mine)
        if failures:
            cause = self._reward_failures[0][1] if self._reward_failures else None
            kind = RookWorldError if all(known for _, known in failures) else RuntimeError
            raise kind(f"a reward failed: {'; '.join(text for text, _ in failures)}") from cause

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self._beta(1.0 if self._has_reference() else 0.0):  # for the reference's log-probs
            output = super()._generate_and_score_completions(inputs)
        if self.model.training and self.controls.baseline != "group_mean":
            advantages = self._advantages([row.get("task", "") for row in inputs])
            self._logs["advantages"].extend(advantages.tolist())  # in place of TRL's
            self._metrics["train"]["baseline/mean"].append(self.baselines.last)
            first = self.accelerator.process_index * len(inputs)
            output["advantages"] = advantages[first : first + len(inputs)]
        return output

    def rewards(self) -> torch.Tensor:
        """Rewards of all processes' completions last scored, ``(N,)``; nan where there is none."""
        assert self._rewards_per_func is not None
        weights = self.reward_weights.to(self._rewards_per_func.device)
        rewards = (self._rewards_per_func * weights).nansum(dim=1)
        rewards[self._rewards_per_func.isnan().all(dim=1)] = torch.nan
        return rewards

    def _advantages(self, tasks: Sequence[str]) -> torch.Tensor:
        """Advantages ``(N,)`` of all processes' completions, from the rewards last computed."""
        groups = self.rewards().view(-1, self.num_generations)
        all_tasks: list[str] = gather_object(list(tasks))
        return self.baselines.advantages(
            groups, all_tasks[:: self.num_generations], str(self.scale_rewards)
        ).flatten()

    # --------------------------------------------------------------------------------------------
    # Learning rate
    # --------------------------------------------------------------------------------------------
    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """transformers' scheduler, or the three phases."""
        if self.controls.lr_three_phases and self.lr_scheduler is None:  # type: ignore[has-type]
            warmup = self.args.get_warmup_steps(num_training_steps)
            share = self.controls.lr_linear_share
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer,
                lambda step: three_phases(step, num_training_steps, warmup, share),
            )
        return super().create_scheduler(num_training_steps, optimizer)

    # --------------------------------------------------------------------------------------------
    # Checkpoints
    # --------------------------------------------------------------------------------------------
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            path = self._checkpoint_folder(trial) / CONTROL_STATE
            path.write_text(json.dumps(self.control_state()) + "\n")

    def _checkpoint_folder(self, trial: Any) -> Path:
        """Where transformers has just saved."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        return Path(self._get_output_dir(trial=trial)) / name

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint) / CONTROL_STATE if checkpoint else None
        if path is not None and path.is_file():
            self.load_control_state(json.loads(path.read_text()))

    def control_state(self) -> dict[str, Any]:
        """What the controls have learnt, for a run that goes on later."""
        return {
            "kl": self.kl.state(),
            "baseline_running": self.baselines.running,
            "judges": {name: judge.state() for name, judge in self.judges.items()},
        }

    def load_control_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `control_state`."""
        self.kl.load(state["kl"])
        self.baselines.running = dict(state["baseline_running"])
        for name, judge in self.judges.items():
            if name in state.get("judges", {}):  # none: it has come into the recipe since
                judge.load(state["judges"][name])


class _ControlCallback(TrainerCallback):
    def __init__(self, trainer: ControlledGRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._adapt_kl(state.global_step - 1)  # steps that have ended are counted by now


@contextmanager
def _reference_loaded(args: GRPOConfig | None, wanted: bool) -> Iterator[None]:
    """TRL's constructor loads a reference where `beta` is not 0."""
    if args is None or not wanted or args.beta:
        yield
        return
    args.beta = 1.0
    try:
        yield
    finally:
        args.beta = 0.0
