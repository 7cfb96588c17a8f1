"""The parts of a trainer, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from .advantages import Baseline
from .buckets import Buckets
from .compiling import Compiling
from .groups import Batch, Groups
from .judges import Judges
from .kl import KLTerm
from .part import Part
from .prompt_sampler import PromptSampling
from .sampling import TaskSampling
from .value_head import ValueHead

PARTS_STATE = "control_state.json"


class Parts:
    """Those that a trainer's arguments ask for; None where the keys of one are off.

    Iterating gives those that are there.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.task_sampling = TaskSampling.of(trainer)  # temperatures by task
        self.buckets = Buckets.of(trainer)  # constant shapes
        self.compiling = Compiling.of(trainer, self.buckets)  # compiled bodies
        self.kl = KLTerm.of(trainer)  # the KL term and its coefficient
        self.baseline = Baseline.of(trainer)  # what rewards are compared with
        self.judges = Judges.of(trainer)  # what frozen judges remember
        self.value_head = ValueHead.of(trainer)  # advantages by token
        self.groups = Groups.of(trainer)  # those without signal
        self.prompts = PromptSampling.of(
            trainer, self.groups.resamples
        )  # which rows come, and when

    def __iter__(self) -> Iterator[Part]:
        return (part for part in vars(self).values() if isinstance(part, Part))

    def advantages(
        self, trainer: Any, batch: Batch, rewards: torch.Tensor, tasks: Sequence[str]
    ) -> torch.Tensor | None:
        """Put a part's advantages into a batch, in place of TRL's.

        Args:
            trainer: The `RookWorldGRPOTrainer`.
            batch: `B` completions of this process.
            rewards: ``(N,)`` of all processes' completions, nan for none.
            tasks: Of all processes' groups.

        Returns:
            One advantage a completion ``(N,)``, for the log; None where TRL's stay.
        """
        first = trainer.accelerator.process_index * len(batch["completion_ids"])
        mine = slice(first, first + len(batch["completion_ids"]))
        if self.value_head is not None:
            batch.update(self.value_head.advantages(batch, rewards[mine]))
            lengths = batch["completion_mask"].sum(1).clamp(min=1)
            means: torch.Tensor = trainer.accelerator.gather(batch["advantages"].sum(1) / lengths)
            return means
        if self.baseline is None:
            return None
        by_group = rewards.view(-1, trainer.num_generations)
        advantages = self.baseline.advantages(by_group, tasks, str(trainer.scale_rewards))
        trainer.record({"baseline/mean": self.baseline.last})
        batch["advantages"] = advantages.flatten()[mine]
        return advantages.flatten()

    def state(self) -> dict[str, Any]:
        """What they have learnt, for a run that goes on later."""
        return {key: value for part in self for key, value in part.state().items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        for part in self:
            part.load(state)

    def save(self, args: Any, state: Any) -> None:
        """Put what they have learnt into the checkpoint that transformers has just saved.

        Not at `on_save`: that is late for W&B, which has then taken the checkpoint as an artifact, and
        it never comes for the checkpoints that `enable_jit_checkpoint` makes at SIGTERM.
        """
        if not args.should_save:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        (folder / PARTS_STATE).write_text(json.dumps(self.state()) + "\n")
        if self.value_head is not None:
            self.value_head.save_in(folder)

    def load_from(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        if (folder / PARTS_STATE).is_file():
            self.load(json.loads((folder / PARTS_STATE).read_text()))
        if self.value_head is not None:
            self.value_head.load_from(folder)


class Checkpoints(TrainerCallback):
    """Brings the parts' states back where training goes on from a checkpoint.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        given = self.trainer.checkpoint
        folder = get_last_checkpoint(args.output_dir) if given is True else given
        if folder:
            self.trainer.parts.load_from(Path(folder))
