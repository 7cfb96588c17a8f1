"""The parts of a trainer, one per line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...common.own import load_own_class
from .arguments import PartArguments
from .part import Part, arguments_of

PARTS_STATE = "control_state.json"


def _draws_more(args: PartArguments) -> bool:
    return args.zero_variance == "resample" or bool(args.sft_coef and args.sft_extra)


# A part's file and class, and whether a trainer with these keys has it. The file is imported only then.
# Parts are made, and do what they do, in this order: advantages before what moves them to other terms,
# and shared prompts after the readers of hidden states.
_PARTS: dict[str, Callable[[Any, PartArguments], bool]] = {
    "task_sampling.TaskSampling": lambda trainer, args: args.task_sampling is not None,
    "kl.KLTerm": lambda trainer, args: trainer.has_reference,
    "advantages.Baseline": lambda trainer, args: args.baseline != "group_mean",
    "value_head.ValueHead": lambda trainer, args: args.advantage_estimator == "gae",
    "vllm.VLLM": lambda trainer, args: trainer.args.use_vllm,
    "shared_prompts.SharedPrompts": lambda trainer, args: True,
    "zero_variance.Resample": lambda trainer, args: args.zero_variance == "resample",
    "zero_variance.Skip": lambda trainer, args: args.zero_variance == "skip",
    "teaching.Teaching": lambda trainer, args: args.zero_variance == "teach",
    "supervised.Supervised": lambda trainer, args: args.sft_coef > 0,
    "all_moves.AllMoves": lambda trainer, args: (
        args.expected_score_coef > 0 or args.soft_moves_coef > 0
    ),
    "prompt_sampler.PromptSampling": lambda trainer, args: (
        bool(args.task_phases) or _draws_more(args)
    ),
    "schedule.ThreePhases": lambda trainer, args: args.lr_three_phases,
    "nonfinite.Nonfinite": lambda trainer, args: not trainer.args.fp16,
    "averaging.Averaging": lambda trainer, args: args.start_share > 0,
    "guard.Guard": lambda trainer, args: bool(args.guard),
}


def parts_of(trainer: Any) -> dict[str, Part]:
    """The parts that a trainer's arguments ask for, by the names of their files."""
    args = arguments_of(trainer.args, PartArguments)
    found: dict[str, Part | None] = {}
    for path, is_on in _PARTS.items():
        if is_on(trainer, args):
            file, kind = path.split(".")
            found[file] = getattr(import_module(f"{__package__}.{file}"), kind).of(trainer)
    for own in args.parts_from:
        found[own] = load_own_class(own, "parts_from", Part).of(trainer)
    return {name: part for name, part in found.items() if part is not None}


def sampler_starts(args: Any, model: str | PreTrainedModel) -> AbstractContextManager[None]:
    """What goes around TRL's constructor: nothing, or what starts vLLM, see `vllm.vllm_starts`."""
    if not getattr(args, "use_vllm", False):
        return nullcontext()
    from .vllm import vllm_starts

    return vllm_starts(args, model)


def save_parts(parts: dict[str, Part], checkpoint: Path) -> None:
    """Write what the parts have learnt into a checkpoint.

    The event `on_save` would be too late: the checkpoint has its name and its checksums then.
    """
    state = {key: value for part in parts.values() for key, value in part.state().items()}
    (checkpoint / PARTS_STATE).write_text(json.dumps(state) + "\n")
    for part in parts.values():
        part.save_in(checkpoint)


def load_parts(parts: dict[str, Part], checkpoint: Path) -> None:
    """Restore what `save_parts` wrote."""
    path = checkpoint / PARTS_STATE
    state = json.loads(path.read_text()) if path.is_file() else {}
    for part in parts.values():
        part.load(state)
        part.load_from(checkpoint)
