"""A value head on the policy's hidden states, and advantages by token: generalised advantage estimation.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation". The
mean of a group compares completions with each other and gives all tokens of a completion the same
advantage. A value head tells at which token a completion went well or badly, and needs no group.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from ...common.files import open_to_others
from ...models.decoding import language_model
from ..advantages import generalised_advantages, whitened
from ..rollouts import Batch, Rollouts, of_images, whole
from ..scoring import Sequences

if TYPE_CHECKING:
    from ..step import Step

VALUE_HEAD_FILE = "value_head.safetensors"


class ValueHead:
    """A value head on the policy, and advantages by token from it.

    The head is attached to the model, so that it is optimised, wrapped and sharded with it. Checkpoints
    keep it as ``value_head.safetensors``; the final saved model does not contain it.

    Args:
        trainer: Whose policy gets the head.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        self.args = trainer.args
        self._is_grouped = False  # whether the head has its own group in the optimiser
        network = trainer.accelerator.unwrap_model(trainer.model)
        owner = language_model(network)
        weight = owner.get_output_embeddings().weight
        head = torch.nn.Linear(weight.size(1), 1, device=weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        owner.value_head = head
        leave_out_when_saved(owner, {"value_head.weight", "value_head.bias"})

    @property
    def head(self) -> torch.nn.Linear:
        """The head, even if the model has been wrapped since."""
        network = self._trainer.accelerator.unwrap_model(self._trainer.model)
        head: torch.nn.Linear = language_model(network).value_head
        return head

    def columns(self, sampled: Rollouts, rewards: torch.Tensor) -> Batch:
        """Advantages and returns ``(B, C)`` of completions with rewards ``(B,)``, nan for none."""
        trainer, batch = self._trainer, sampled.batch
        ids, mask, length = whole(batch)
        rows = Sequences(ids, mask, length, sampled.temperatures)
        size = trainer.args.per_device_train_batch_size
        with torch.no_grad():
            values = trainer.score(trainer.model, rows, size, self.head, **of_images(batch)).values
        assert values is not None
        mask = batch["completion_mask"] * (~rewards.isnan()).unsqueeze(1)
        advantages, returns = generalised_advantages(
            rewards.nan_to_num(), values, mask, self.args.gae_gamma, self.args.gae_lambda
        )
        if trainer.scale_rewards != "none":
            kept = advantages.double() * mask
            sums = torch.stack([kept.sum(), (kept**2).sum(), mask.sum().double()])
            sums = trainer.accelerator.reduce(sums, reduction="sum")
            advantages = whitened(advantages, mask, sums)
        return {"advantages": advantages, "returns": returns, "value_mask": mask}

    # --------------------------------------------------------------------------------------------
    # Optimiser
    # --------------------------------------------------------------------------------------------
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


def leave_out_when_saved(network: Any, names: set[str]) -> None:
    """Keep weights out of the files that `save_pretrained` writes."""
    # transformers warns of weights that a checkpoint lacks unless these are all that it ignores.
    tied = network._tied_weights_keys if network.config.tie_word_embeddings else None
    ignored = network._keys_to_ignore_on_save or ()
    network._keys_to_ignore_on_save = {*names, *(tied or ()), *ignored}
