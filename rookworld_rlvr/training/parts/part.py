"""What the parts of the trainer have in common, and the record that goes with a call to TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from transformers import TrainerCallback

from ...common.errors import ConfigurationError
from ...common.own import load_own_class
from ...common.settings import setting

Arguments = TypeVar("Arguments")


class Scores(NamedTuple):
    """The result of scoring completions of `C` tokens."""

    logps: torch.Tensor  # (B, C), nats
    entropies: torch.Tensor | None  # (B, C), nats; None if they were not asked for
    aux_loss: torch.Tensor | None  # of a mixture of experts


@dataclass(slots=True)
class Call:
    """Inputs and outputs of one call to a method of TRL that its arguments and result have no room for.

    Args:
        temperatures: ``(B,)``, of the rows scored during the call; None uses the trainer's.
        reads_values: Whether the policy's forwards also read the value head.
        rows: The rows of this process that are sampled, `B` with a group's rows together.
        around: What goes around the scoring of rows, from the inside outwards: each is called with a
            method that scores rows, and with its arguments.

    Attributes:
        right: Which sampled completions are right ``(B,)``, see `right.right`; None if nobody asks.
        taught: What was taught, as a `Taught`; None if nothing is.
        answers: Tokens of the answers that the supervised term takes, by group; None if it takes none.
        answer_logps: Log-probs ``(g, L)`` of the answers of the supervised term, 0 for padding.
        scores: The scores of the last forward during the call.
        values: The value head's outputs, ``(b, T)`` for each forward.
        rewards: ``(N, F)``, of all processes' completions by reward function; nan if there is no reward.
    """

    temperatures: torch.Tensor | None = None
    reads_values: bool = False
    rows: Sequence[Mapping[str, Any]] = ()
    around: list[Callable[..., Scores]] = field(default_factory=list)
    right: torch.Tensor | None = None
    taught: Any = None
    answers: list[list[int]] | None = None
    answer_logps: torch.Tensor | None = None
    scores: Scores | None = None
    values: list[torch.Tensor] = field(default_factory=list)
    rewards: torch.Tensor | None = None

    def scoring(self, score: Callable[..., Scores]) -> Callable[..., Scores]:
        """`score` with what goes around it."""
        for outer in self.around:
            score = partial(outer, score)
        return score


class Part(TrainerCallback):
    """A feature of the trainer, which is absent if its keys are off; also a transformers callback.

    Besides handling a callback's events, it may add a term to the loss and keep a state in checkpoints.

    Attributes:
        loss_term: The name under which its term is logged, as ``loss/<name>``; empty takes the class's.
    """

    loss_term: ClassVar[str] = ""

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
        return None

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON values, by key of `control_state.json`."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the part from the states of all parts."""


def check_parts(names: Sequence[str], where: str) -> list[str]:
    """What is wrong with the names of a user's own parts, one sentence each; this runs their files."""
    faults = []
    for name in names:
        try:
            load_own_class(name, where, Part)
        except ConfigurationError as error:
            faults += error.faults
    return faults


@dataclass
class OwnPartArguments:
    """Parts of the trainer in files of the user's own."""

    parts_from: list[str] = setting(
        [],
        "Parts of the trainer of your own, each as path/to/file.py:Class, such as a term of the loss.",
        check=check_parts,
    )


def own_parts(trainer: Any) -> list[Part]:
    """The user's own parts: a class with `of` is asked for its part, others are called."""
    names = arguments_of(trainer.args, OwnPartArguments).parts_from
    kinds: list[Any] = [load_own_class(name, "parts_from", Part) for name in names]
    made = [kind.of(trainer) if hasattr(kind, "of") else kind() for kind in kinds]
    return [part for part in made if part is not None]


def arguments_of(args: Any, kind: type[Arguments]) -> Arguments:
    """A trainer's arguments as those of a part; the defaults if the trainer has a plain `GRPOConfig`."""
    return args if isinstance(args, kind) else kind()


def whole(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A batch's prompts and completions together: tokens ``(B, P+C)``, mask ``(B, P+C)``, and `C`."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)
