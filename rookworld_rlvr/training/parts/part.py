"""What a part of the trainer may do, and the records that go with what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback

Batch = dict[str, Any]  # columns as tensors or lists


class Rows(NamedTuple):
    """Rows to score, prompts padded on the left and completions on the right."""

    ids: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T), 1 for text
    length: int  # the last columns, which are scored
    temperatures: torch.Tensor | None = None  # (B,); None uses the trainer's


class Scores(NamedTuple):
    """The result of scoring completions of `C` tokens."""

    logps: torch.Tensor  # (B, C), nats
    entropies: torch.Tensor | None  # (B, C), nats; None if they were not asked for
    aux_loss: torch.Tensor | None  # of a mixture of experts


@dataclass(slots=True)
class Call:
    """What a call to TRL is about: a round of sampling, or the loss of a micro-batch.

    Args:
        rows: The rows of this process that are sampled, `B` with a group's rows together.
        inputs: The micro-batch whose loss is computed.
        temperatures: ``(B,)``, of the rows; None uses the trainer's.

    Attributes:
        rewards: Of all processes' completions, ``(N,)``, when they are known; nan if there is none.
        tasks: The tasks of all processes' groups.
        scores: The scores of the last forward during the call.
        idle: ``(B,)``, the rows that this forward has left out; None if there are none.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    inputs: Mapping[str, Any] | None = None
    temperatures: torch.Tensor | None = None
    rewards: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tasks: Sequence[str] = ()
    scores: Scores | None = None
    idle: torch.Tensor | None = None

    def scored_rows(self, mask: torch.Tensor) -> torch.Tensor:
        """Which rows ``(B, 1)`` of a mask ``(B, C)`` were scored."""
        none = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)
        return ~(none if self.idle is None else self.idle).unsqueeze(1)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One round of sampling on all processes, process by process.

    Args:
        tasks: The task of each group.
        signal: Whether each group carries signal: whether its rewards differ.
        rows: The rows of this process.
        batch: The completions of this process.
        rewards: ``(N,)``, of all processes' completions.
        logs: The log of all processes' rows, by table and column: `N` values each.
        drawn: Whether each group carries signal that was drawn for it, also those that are not
            trained on.
    """

    tasks: Sequence[str]
    signal: Sequence[bool]
    rows: Sequence[Mapping[str, Any]]
    batch: Batch
    rewards: torch.Tensor
    logs: Mapping[tuple[str, str], list[Any]]
    drawn: Sequence[bool]


class Part(TrainerCallback):
    """A feature of the trainer, which is absent if its keys are off; also a transformers callback.

    The trainer calls these methods of all its parts in turn. Each does nothing unless a part has its
    own.

    Attributes:
        loss_term: The name under which its term is logged, as ``loss/<name>``; empty takes the class's.
        scores_own_rows: Whether its term takes rows of its own, and none of the batch's log-probs.

    Args:
        trainer: The `RookWorldGRPOTrainer` that is being made.
    """

    loss_term: ClassVar[str] = ""
    scores_own_rows: ClassVar[bool] = False

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    # --------------------------------------------------------------------------------------------
    # Sampling
    # --------------------------------------------------------------------------------------------
    def sampler(self, dataset: Dataset) -> Sampler | None:
        """Which training rows come when; None leaves that to TRL."""
        return None

    def after_sampling(
        self, call: Call, ids: list[list[int]], texts: list[str], logps: list[Any] | None
    ) -> None:
        """Look at, or change in place, the tokens, texts and log-probs of a round's completions."""

    def extend(self, call: Call, batch: Batch) -> None:
        """Add columns to a round's batch, or replace them, when the rewards are known."""

    def complete(self, sampled: Sampled) -> Sampled:
        """The round to train on."""
        return sampled

    def together(self, batches: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The micro-batches of a generation, with their rows in another order."""
        return batches

    # --------------------------------------------------------------------------------------------
    # Scoring and loss
    # --------------------------------------------------------------------------------------------
    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """The rows that TRL wants scored during a call, with others added or left out."""
        return rows

    def score(self, network: torch.nn.Module, rows: Rows, **kwargs: Any) -> Scores | None:
        """The scores of rows from one forward; None leaves it to the other parts and to TRL."""
        return None

    def after_scoring(self, call: Call, rows: Rows, scores: Scores) -> Scores:
        """The scores of what TRL wanted scored, from those of `before_scoring`'s rows."""
        return scores

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """A term that the part adds to the loss of a micro-batch; None if it adds nothing.

        Args:
            trainer: The `RookWorldGRPOTrainer`.
            call: The record of the call to TRL's own loss.
            inputs: The micro-batch.
        """
        return None

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The rows ``(B,)`` of a micro-batch that the part's term needs the log-probs of; None: all."""
        none = torch.zeros(len(inputs["advantages"]), dtype=torch.bool)
        return none if self.scores_own_rows else None

    # --------------------------------------------------------------------------------------------
    # Update, evaluation, checkpoints
    # --------------------------------------------------------------------------------------------
    def on_optimizer(self, optimizer: torch.optim.Optimizer, network: torch.nn.Module) -> None:
        """Change the optimiser's parameter groups, when it has been made or is asked for again."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Goes around each evaluation in training, with the weights that it is to measure."""
        return nullcontext()

    def may_be_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether the checkpoint of an evaluation in training may be kept as the best."""
        return True

    def numbers(self) -> dict[str, float]:
        """Counts for the log of a step."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON values, by key of `control_state.json`."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the part from the states of all parts."""

    def save_in(self, checkpoint: Path) -> None:
        """Write files into a checkpoint, on the process that saves."""

    def load_from(self, checkpoint: Path) -> None:
        """Restore the part from such files."""


def whole(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A batch's prompts and completions together: tokens ``(B, P+C)``, mask ``(B, P+C)``, and `C`."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)
