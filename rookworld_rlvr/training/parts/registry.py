"""The parts of a trainer, one per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import IterableDataset
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from ...common.errors import RookWorldError
from .advantages import Baseline
from .groups import Batch, Groups
from .guard import Guard
from .kl import KLTerm
from .nonfinite import Nonfinite
from .part import Call, Part, Scores, own_parts
from .prompt_sampler import PromptSampling
from .right import right, truth_of
from .sampling import TaskSampling
from .shared_prompts import SharedPrompts
from .supervised import Supervised
from .teaching import Teaching
from .value_head import ValueHead

if TYPE_CHECKING:
    from .vllm import VLLM

PARTS_STATE = "control_state.json"


class Parts:
    """The parts that a trainer's arguments ask for; a part is None if its keys are off.

    Iterating gives the parts that are not None.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        check_stream(trainer)
        self.task_sampling = TaskSampling.of(trainer)  # temperatures by task
        self.kl = KLTerm.of(trainer)  # the KL term and its coefficient
        self.baseline = Baseline.of(trainer)  # what rewards are compared with
        self.value_head = ValueHead.of(trainer)  # advantages by token
        self.vllm = _vllm(trainer)  # sampling by vLLM
        self.shared = SharedPrompts.of(trainer)  # prompts sent once; after readers of hidden states
        self.groups = Groups.of(trainer)  # groups without signal
        self.teaching = Teaching.of(trainer)  # right answers in groups without any
        self.supervised = Supervised.of(trainer)  # the likelihood of right answers
        draws_more = self.groups.resamples or bool(
            self.supervised and self.supervised.args.sft_extra
        )
        self.prompts = PromptSampling.of(trainer, draws_more)  # which rows come, and when
        self.nonfinite = Nonfinite.of(trainer)  # steps that are skipped
        self.guard = Guard.of(trainer)  # checkpoints that lose too much
        self.own = own_parts(trainer)  # of the user's files

    def __iter__(self) -> Iterator[Part]:
        yield from (part for part in vars(self).values() if isinstance(part, Part))
        yield from self.own

    def scoring(
        self, score: Callable[..., Scores], temperatures: torch.Tensor | None
    ) -> Callable[..., Scores]:
        """TRL's method of scoring, extended by the parts.

        Args:
            score: TRL's method.
            temperatures: ``(B,)``; None uses the trainer's.
        """
        if self.shared is not None:
            score = partial(self.shared.score, score)
        if self.task_sampling is not None and temperatures is not None:
            score = partial(self.task_sampling.score, score, temperatures=temperatures)
        return score

    def call(self, inputs: Mapping[str, Any]) -> Call:
        """The record that goes with TRL's loss of a micro-batch."""
        call = Call(inputs.get("temperature"), "returns" in inputs)
        if self.supervised is not None and "answer_ids" in inputs:
            call.around.append(partial(self.supervised.score, call, inputs))
        if self.shared is not None and (idle := self.shared.idle(inputs)):
            call.around.append(idle.score)
        return call

    def teach(
        self,
        trainer: Any,
        call: Call,
        ids: list[list[int]],
        texts: list[str],
        logps: list[Any] | None,
    ) -> None:
        """Note which completions are right, choose answers to learn, and put some in; see `Teaching`."""
        if self.supervised is not None:
            self.supervised.choose(call)
        if self.teaching is not None:
            call.right = right(call.rows, texts, truth_of(trainer.reward_funcs))
            self.teaching.teach(call, ids, texts, logps)

    def guide(self, trainer: Any, batch: Batch, call: Call) -> None:
        """Add temperatures and what the terms of right answers need to a batch, and measure vLLM."""
        if self.task_sampling is not None and call.temperatures is not None:
            batch["temperature"] = call.temperatures
            trainer.record(self.task_sampling.metrics())
        for part in filter(None, (self.teaching, self.supervised)):
            part.guide(batch, call)
        if self.vllm is not None:
            trainer.record(self.vllm.metrics(batch))

    def advantages(
        self,
        trainer: Any,
        batch: Batch,
        rewards: torch.Tensor,
        tasks: Sequence[str],
    ) -> torch.Tensor | None:
        """Replace TRL's advantages in a batch by the parts', if one computes them.

        Args:
            trainer: The `RookWorldGRPOTrainer`.
            batch: `B` completions of this process.
            rewards: ``(N,)``, of all processes' completions; nan if there is no reward.
            tasks: The tasks of all processes' groups.

        Returns:
            One advantage per completion ``(N,)``, for the log; None if TRL's are kept.
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

    def see_norm(self, norm: Any) -> None:
        """Remember the gradient norm of the step to come."""
        if self.nonfinite is not None:
            self.nonfinite.norm = norm

    def numbers(self) -> dict[str, float]:
        """Counts for the log of a step."""
        return {} if self.nonfinite is None else self.nonfinite.numbers()

    def state(self) -> dict[str, Any]:
        """What the parts have learnt, for a resumed run."""
        return {key: value for part in self for key, value in part.state().items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""
        for part in self:
            part.load(state)

    def save_in(self, folder: Path) -> None:
        """Write what the parts have learnt into a checkpoint.

        The event `on_save` would be too late: the checkpoint has its name and its checksums then.
        """
        (folder / PARTS_STATE).write_text(json.dumps(self.state()) + "\n")
        if self.value_head is not None:
            self.value_head.save_in(folder)

    def load_from(self, folder: Path) -> None:
        """Restore the parts from a checkpoint."""
        if (folder / PARTS_STATE).is_file():
            self.load(json.loads((folder / PARTS_STATE).read_text()))
        if self.value_head is not None:
            self.value_head.load_from(folder)


def sampler_starts(args: Any, model: str | PreTrainedModel) -> AbstractContextManager[None]:
    """What goes around TRL's constructor: nothing, or what starts vLLM, see `vllm.vllm_starts`."""
    if not getattr(args, "use_vllm", False):
        return nullcontext()
    from .vllm import vllm_starts  # most runs need none of it

    return vllm_starts(args, model)


def _vllm(trainer: Any) -> VLLM | None:
    if not trainer.args.use_vllm:
        return None
    from .vllm import VLLM

    return VLLM(trainer)


def check_stream(trainer: Any) -> None:
    """Refuse keys whose parts look training rows up by number, if the rows are a stream.

    Raises:
        RookWorldError: With all such keys.
    """
    if not isinstance(trainer.train_dataset, IterableDataset):
        return
    args = trainer.args
    keys = ["task_sampling", "task_mixture", "task_phases", "sft_extra"]
    found = [key for key in keys if getattr(args, key, None)]
    if getattr(args, "zero_variance", None) == "resample":
        found.append("zero_variance: resample")
    if found:
        raise RookWorldError(
            f"{', '.join(found)}: this looks rows up by number, which an IterableDataset does not "
            "have; give a Dataset, such as Dataset.from_list(list(rows)), or leave it out"
        )


class Checkpoints(TrainerCallback):
    """Restores the parts' states when training is resumed from a checkpoint.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        given = self.trainer.checkpoint
        folder = get_last_checkpoint(args.output_dir) if given is True else given
        self.trainer.heldout.resumed_at = state.global_step if folder else None
        if folder:
            self.trainer.parts.load_from(Path(folder))
