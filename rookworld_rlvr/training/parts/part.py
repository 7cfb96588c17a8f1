"""What the parts of the trainer have in common, and the record that one call of TRL's is made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import TrainerCallback

Arguments = TypeVar("Arguments")


class Scores(NamedTuple):
    """What scoring completions gives, `C` tokens each."""

    logps: torch.Tensor  # (B, C), nats
    entropies: torch.Tensor | None  # (B, C), nats; where they were asked for
    aux_loss: torch.Tensor | None  # of a mixture of experts


@dataclass(slots=True)
class Call:
    """What goes into one call of a method of TRL's, and comes out of it, beside arguments and result.

    Args:
        temperatures: ``(B,)``, of the rows that are scored in it; None for the trainer's.
        reads_values: Whether the value head is read in the policy's forwards.

    Attributes:
        scores: Of the last forward that was scored in it.
        values: What the head said, ``(b, T)`` of each forward.
        rewards: ``(N, F)`` of all processes' completions by reward function; nan for none.
    """

    temperatures: torch.Tensor | None = None
    reads_values: bool = False
    scores: Scores | None = None
    values: list[torch.Tensor] = field(default_factory=list)
    rewards: torch.Tensor | None = None


class Part(TrainerCallback):
    """A feature of the trainer, absent where its keys are off; a transformers callback too.

    Besides a callback's events it may add a term to the loss and keep a state in checkpoints.
    """

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """What the part adds to the loss of a micro-batch; None for nothing.

        Args:
            trainer: The `RookWorldGRPOTrainer`.
            call: Of TRL's own loss.
            inputs: The micro-batch.
        """
        return None

    def state(self) -> dict[str, Any]:
        """What a run that goes on later needs, for JSON, by key of `control_state.json`."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from the states of all parts."""


def arguments_of(args: Any, kind: type[Arguments]) -> Arguments:
    """A trainer's arguments as those of a part; the defaults where it was given plain `GRPOConfig`."""
    return args if isinstance(args, kind) else kind()


def whole(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Tokens and mask ``(B, P+C)`` of a batch's prompts and completions together, and `C`."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)
