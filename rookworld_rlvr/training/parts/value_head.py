"""A value head on the policy's hidden states, and advantages by token: generalised advantage estimation.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation". A
group's mean compares completions with each other and gives each of a completion's tokens the same
advantage; a value head says at which token a completion went well or badly, and needs no group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from trl import GRPOConfig

from ...common.errors import close_matches
from ..control import ControlledGRPOTrainer
from .advantages import STD_EPSILON
from .sampling import backbone, language_model

ADVANTAGE_ESTIMATORS = ("group", "gae")


VALUE_HEAD = "value_head"


VALUE_HEAD_FILE = "value_head.safetensors"


_SMALLEST_VARIANCE = 1e-8  # of returns; below, they are all the same but for rounding


@dataclass
class ValueArguments:
    """Keys for advantages by token.

    Args:
        advantage_estimator: `group` (what `baseline` says, one advantage a completion) or `gae`.
        gae_gamma: Discount a token.
        gae_lambda: 1 takes the completion's reward less the value, which has no bias; lower values
            trust the value head more, which has less variance.
        value_coef: Of the value head's loss, half the squared error, in the whole; its gradient
            reaches the policy's layers.
        value_learning_rate: Of the head alone, which starts from 0; the policy keeps `learning_rate`.
    """

    advantage_estimator: str = "group"
    gae_gamma: float = 1.0
    gae_lambda: float = 0.95
    value_coef: float = 0.1
    value_learning_rate: float = 1e-3

    def value_faults(self, args: GRPOConfig) -> list[str]:
        """What is wrong, one sentence each."""
        name = self.advantage_estimator
        if name not in ADVANTAGE_ESTIMATORS:
            return [
                f"advantage_estimator: {name!r} is none{close_matches(name, ADVANTAGE_ESTIMATORS)}"
            ]
        faults = [
            f"{key}: {getattr(self, key)!r} is not in [0, 1]"
            for key in ("gae_gamma", "gae_lambda")
            if not 0 <= getattr(self, key) <= 1
        ]
        if not self.value_coef >= 0:
            faults.append(f"value_coef: {self.value_coef!r} is below 0")
        if not self.value_learning_rate > 0:
            faults.append(f"value_learning_rate: {self.value_learning_rate!r} is not above 0")
        if name == "group":
            return faults
        clashes = {
            f"loss_type: {args.loss_type}": args.loss_type == "vespo",
            "off_policy_mask_threshold": args.off_policy_mask_threshold is not None,
            f"baseline: {getattr(args, 'baseline', None)}": (
                getattr(args, "baseline", "group_mean") != "group_mean"
            ),
        }
        return faults + [
            f"{key} takes one advantage a completion, gae has one a token; leave one out"
            for key, clash in clashes.items()
            if clash
        ]


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns by token, ``(B, C)`` each, 0 outside of the mask.

    Args:
        rewards: ``(B,)``, of whole completions; they come with the last token.
        values: ``(B, C)``, what is expected before each token.
        mask: ``(B, C)``, 1 for the completion's tokens, which come first.
        gamma: Discount a token.
        lam: Weight of the later tokens' errors.
    """
    advantages = torch.zeros_like(values)
    lengths = mask.sum(1)
    later = torch.zeros_like(rewards)
    for step in reversed(range(values.size(1))):
        last = lengths == step + 1
        following = values[:, step + 1] if step + 1 < values.size(1) else torch.zeros_like(rewards)
        reward = torch.where(last, rewards, torch.zeros_like(rewards))
        following = torch.where(last, torch.zeros_like(following), following)
        error = reward + gamma * following - values[:, step]
        later = torch.where(step < lengths, error + gamma * lam * later, torch.zeros_like(later))
        advantages[:, step] = later
    return advantages, (advantages + values) * mask


def value_error(values: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Half the squared error of values ``(B, C)``, 0 where a completion has no reward."""
    return 0.5 * (values - inputs["returns"]).square() * inputs["value_mask"]


class ValueGRPOTrainer(ControlledGRPOTrainer):
    """`ControlledGRPOTrainer` that can estimate advantages by a value head; the constructor is TRL's.

    The head is a part of the model (so that it is optimised, wrapped and sharded with it), is kept in
    checkpoints as ``value_head.safetensors``, and is no part of the model that is saved.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        super().__init__(model, reward_funcs, args, **kwargs)
        self.value_args = args if isinstance(args, ValueArguments) else ValueArguments()
        self.estimates_values = self.value_args.advantage_estimator == "gae"
        self._collects_values = False
        self._collected: list[torch.Tensor] = []  # (b, T) of each forward
        if self.estimates_values:
            _add_value_head(self.accelerator.unwrap_model(self.model), self._collect)

    def _collect(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Read the head in a forward of the policy, where its weights are at hand when sharded."""
        if self._collects_values:
            head = language_model(self.accelerator.unwrap_model(self.model)).value_head
            states = output.last_hidden_state  # (b, T, D)
            self._collected.append(head(states.to(head.weight.dtype)).squeeze(-1).float())

    def _values(self, rows: int, length: int) -> torch.Tensor:
        """Values ``(B, C)`` before each of a completion's tokens, from the forwards since."""
        values = torch.cat(self._collected)[:rows, -length - 1 : -1]  # without `shapes`' padding
        self._collected = []
        return values

    # --------------------------------------------------------------------------------------------
    # Advantages
    # --------------------------------------------------------------------------------------------
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.estimates_values and self.model.training:
            first = self.accelerator.process_index * len(inputs)
            rewards = self.rewards()[first : first + len(inputs)]
            output.update(self._advantages_by_token(output, rewards))
            means = output["advantages"].sum(1) / output["completion_mask"].sum(1).clamp(min=1)
            self._logs["advantages"].extend(self.accelerator.gather(means).tolist())
        return output

    def _advantages_by_token(
        self, batch: Mapping[str, Any], rewards: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Advantages and returns ``(B, C)`` of completions with rewards ``(B,)``, nan for none."""
        rows, length = batch["completion_ids"].shape
        self._collects_values = True
        with torch.no_grad():
            self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                length,
                batch_size=self.args.per_device_train_batch_size,
            )
        self._collects_values = False
        values = self._values(rows, length)
        scored = ~rewards.isnan()
        mask = batch["completion_mask"] * scored.unsqueeze(1)
        arguments = self.value_args
        advantages, returns = generalised_advantages(
            rewards.nan_to_num(), values, mask, arguments.gae_gamma, arguments.gae_lambda
        )
        self._log_explained_variance(values, returns, mask)
        if self.scale_rewards != "none":
            advantages = self._whiten(advantages, mask)
        return {"advantages": advantages, "returns": returns, "value_mask": mask}

    def _moments(self, numbers: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
        """Mean and variance over the kept tokens of all processes."""
        kept = numbers.double() * mask
        sums = torch.stack([kept.sum(), (kept**2).sum(), mask.sum().double()])
        total, squares, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        mean = total / max(count, 1)
        return mean, max(squares / max(count, 1) - mean**2, 0.0)

    def _whiten(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean, variance = self._moments(advantages, mask)
        return (advantages - mean) / (variance**0.5 + STD_EPSILON) * mask

    def _log_explained_variance(
        self, values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
    ) -> None:
        """1 where the head knows the returns, 0 where it knows no more than their mean."""
        _, left = self._moments(returns - values, mask)
        _, whole = self._moments(returns, mask)
        if whole > _SMALLEST_VARIANCE:
            self._metrics["train"]["value/explained_variance"].append(1 - left / whole)

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        if "returns" not in inputs:
            return super()._compute_loss(model, inputs)
        self._collects_values = True
        loss = super()._compute_loss(model, inputs)
        self._collects_values = False
        values = self._values(*inputs["completion_ids"].shape)
        error = value_error(values, inputs)
        counts = torch.stack([error.detach().sum(), inputs["value_mask"].sum().float()])
        total, tokens = self.accelerator.reduce(counts, reduction="sum").tolist()
        self._metrics["train"]["value/loss"].append(total / max(tokens, 1))
        return loss + self.value_args.value_coef * self._aggregate(error, inputs)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """transformers' optimiser, the value head in a group of its own."""
        optimizer = super().create_optimizer(model)
        if self.estimates_values and not getattr(self, "_head_grouped", False):
            owner = language_model(
                self.accelerator.unwrap_model(self.model if model is None else model)
            )
            head = list(owner.value_head.parameters())
            known = {id(parameter) for parameter in head}
            for group in optimizer.param_groups:
                group["params"] = [item for item in group["params"] if id(item) not in known]
            rate = self.value_args.value_learning_rate
            optimizer.add_param_group({"params": head, "lr": rate, "weight_decay": 0.0})
            self._head_grouped = True
        return optimizer

    # --------------------------------------------------------------------------------------------
    # Checkpoints
    # --------------------------------------------------------------------------------------------
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        # A sharded checkpoint holds the head already.
        if self.estimates_values and self.args.should_save and not self.is_fsdp_enabled:
            head = language_model(self.accelerator.unwrap_model(self.model)).value_head
            path = self._checkpoint_folder(trial) / VALUE_HEAD_FILE
            safetensors.torch.save_file(head.state_dict(), path)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        path = Path(resume_from_checkpoint) / VALUE_HEAD_FILE
        if self.estimates_values and path.is_file():
            owner = language_model(self.accelerator.unwrap_model(self.model))
            owner.value_head.load_state_dict(safetensors.torch.load_file(path))


def _add_value_head(network: Any, hook: Any) -> None:
    """Give a model a head that starts from 0 and that `save_pretrained` leaves out."""
    owner = language_model(network)
    weight = owner.get_output_embeddings().weight
    head = torch.nn.Linear(weight.size(1), 1, device=weight.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    owner.value_head = head
    kept_out = {f"{VALUE_HEAD}.weight", f"{VALUE_HEAD}.bias"}
    owner._keys_to_ignore_on_save = kept_out | set(owner._keys_to_ignore_on_save or ())
    backbone(network).register_forward_hook(hook, prepend=True)  # before states are scaled
