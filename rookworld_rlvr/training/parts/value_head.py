"""A value head on the policy's hidden states, and advantages by token: generalised advantage estimation.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation". The
mean of a group compares completions with each other and gives all tokens of a completion the same
advantage. A value head tells at which token a completion went well or badly, and needs no group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ...common.files import open_to_others
from ...models.decoding import language_model
from .aggregation import aggregate
from .groups import STD_EPSILON
from .part import Batch, Call, Part, Rows, whole
from .sampling import backbone

VALUE_HEAD_FILE = "value_head.safetensors"


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns by token, ``(B, C)`` each; 0 outside of the mask.

    Args:
        rewards: ``(B,)``, of whole completions; they are given at the last token.
        values: ``(B, C)``, the expected return before each token.
        mask: ``(B, C)``, 1 for a completion's tokens, 0 for the padding after them.
        gamma: Discount per token.
        lam: Weight of the later tokens' errors.
    """
    advantages = torch.zeros_like(values)
    lengths = mask.sum(1)
    expected = torch.nn.functional.pad(values.where(mask.bool(), 0), (0, 1))  # 0 after the last
    later = torch.zeros_like(rewards)
    for step in reversed(range(values.size(1))):
        reward = rewards.where(lengths == step + 1, 0)
        error = reward + gamma * expected[:, step + 1] - values[:, step]
        later = (error + gamma * lam * later).where(step < lengths, 0)
        advantages[:, step] = later
    return advantages, (advantages + values) * mask


class ValueHead(Part):
    """Computes advantages by token from a value head on the policy.

    The head is attached to the model, so that it is optimised, wrapped and sharded with it. Checkpoints
    keep it as ``value_head.safetensors``; the final saved model does not contain it.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    loss_term = "value"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.args = trainer.args
        self._read_values: list[torch.Tensor] | None = None  # (b, T) each; None: not to be read
        self._is_grouped = False  # whether the head has its own group in the optimiser
        network = trainer.accelerator.unwrap_model(trainer.model)
        owner = language_model(network)
        weight = owner.get_output_embeddings().weight
        head = torch.nn.Linear(weight.size(1), 1, device=weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        owner.value_head = head
        trainer.leave_out_when_saved(owner, {"value_head.weight", "value_head.bias"})
        # Runs before the hook that scales states by temperature.
        backbone(network).register_forward_hook(self._read, prepend=True)

    @property
    def head(self) -> torch.nn.Linear:
        """The head, even if the model has been wrapped since."""
        network = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return language_model(network).value_head

    def _read(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Read the head during a forward of the policy, when sharded weights are gathered."""
        if self._read_values is not None:
            states = output.last_hidden_state  # (b, T, D)
            values = self.head(states.to(self.head.weight.dtype)).squeeze(-1)
            self._read_values.append(values.float())

    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """Read the head too, if this is for a loss with its term."""
        if call.inputs is not None and "returns" in call.inputs:
            self._read_values = []
        return rows

    def _values(self, rows: int, length: int) -> torch.Tensor:
        """Values ``(B, C)`` before each token of the completions, without rows and columns of padding.

        They are those of the forwards since it was last read, and it is no longer read.
        """
        assert self._read_values is not None
        values, self._read_values = torch.cat(self._read_values), None
        return values[:rows, -length - 1 : -1]

    def values(self, rows: Rows) -> torch.Tensor:
        """Values ``(B, C)`` before each of the scored tokens of rows."""
        trainer, self._read_values = self._trainer, []
        size = trainer.args.per_device_train_batch_size
        trainer.log_probs(trainer.model, *rows, batch_size=size)
        return self._values(len(rows.ids), rows.length)

    # --------------------------------------------------------------------------------------------
    # Advantages
    # --------------------------------------------------------------------------------------------
    def extend(self, call: Call, batch: Batch) -> None:
        """Replace TRL's advantages."""
        trainer = self._trainer
        batch.update(self.advantages(batch, trainer.own_rows(call.rewards.float())))
        lengths = batch["completion_mask"].sum(1).clamp(min=1)
        means = trainer.accelerator.gather(batch["advantages"].sum(1) / lengths)
        trainer.completion_log()["advantages", ""].extend(means.tolist())

    def advantages(self, batch: Mapping[str, Any], rewards: torch.Tensor) -> dict[str, Any]:
        """Advantages and returns ``(B, C)`` of completions with rewards ``(B,)``, nan for none."""
        trainer = self._trainer
        with torch.no_grad():
            values = self.values(Rows(*whole(batch)))
        mask = batch["completion_mask"] * (~rewards.isnan()).unsqueeze(1)
        advantages, returns = generalised_advantages(
            rewards.nan_to_num(), values, mask, self.args.gae_gamma, self.args.gae_lambda
        )
        if trainer.scale_rewards != "none":
            advantages = self._whiten(advantages, mask)
        return {"advantages": advantages, "returns": returns, "value_mask": mask}

    def _whiten(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Advantages of mean 0 and variance 1 over all processes' tokens in the mask."""
        kept = advantages.double() * mask
        sums = torch.stack([kept.sum(), (kept**2).sum(), mask.sum().double()])
        total, squares, count = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        mean = total / max(count, 1)
        variance = max(squares / max(count, 1) - mean**2, 0.0)
        return (advantages - mean) / (variance**0.5 + STD_EPSILON) * mask

    # --------------------------------------------------------------------------------------------
    # Loss and optimiser
    # --------------------------------------------------------------------------------------------
    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The head's own loss, times its coefficient."""
        if "returns" not in inputs:
            return None
        off = self._values(*inputs["completion_ids"].shape) - inputs["returns"]
        error = 0.5 * off.square() * inputs["value_mask"]  # 0 for completions without a reward
        trainer.tally("value/loss", error.detach().sum(), inputs["value_mask"].sum())
        return self.args.value_coef * aggregate(trainer, error, inputs)

    def on_optimizer(self, optimizer: torch.optim.Optimizer, network: torch.nn.Module) -> None:
        """Move the head to its own group with its own learning rate; later calls do nothing."""
        if self._is_grouped:
            return
        owner = language_model(self._trainer.accelerator.unwrap_model(network))
        head = list(owner.value_head.parameters())
        known = {id(parameter) for parameter in head}
        for group in optimizer.param_groups:
            group["params"] = [item for item in group["params"] if id(item) not in known]
        rate = self.args.value_learning_rate
        optimizer.add_param_group({"params": head, "lr": rate, "weight_decay": 0.0})
        self._is_grouped = True

    # --------------------------------------------------------------------------------------------
    # Checkpoints
    # --------------------------------------------------------------------------------------------
    def save_in(self, checkpoint: Path) -> None:
        """Save the head in a checkpoint; a sharded checkpoint already contains it."""
        if not self._trainer.is_fsdp_enabled:
            safetensors.torch.save_file(self.head.state_dict(), checkpoint / VALUE_HEAD_FILE)
            open_to_others(checkpoint / VALUE_HEAD_FILE)

    def load_from(self, checkpoint: Path) -> None:
        """Load the head from a checkpoint, unless it is sharded with the model."""
        trainer, path = self._trainer, checkpoint / VALUE_HEAD_FILE
        if path.is_file() and not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            self.head.load_state_dict(safetensors.torch.load_file(path))
