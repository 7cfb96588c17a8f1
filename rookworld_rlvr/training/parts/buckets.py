"""Constant shapes: sequences are padded to a few lengths, and batches to one number of rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl import GRPOConfig

from ...common.errors import RookWorldError
from ...common.settings import setting
from .part import Part, Scores, arguments_of

MOST_BUCKETS = 4
_MULTIPLE = 8  # derived lengths are multiples of it, which suits GPUs' matrix units


def _ascending(buckets: Sequence[int], name: str) -> list[str]:
    lengths = [bucket for bucket in buckets if bucket > 0]
    return (
        [f"{name}: {buckets} is not in ascending order; sort it, each length once"]
        if sorted(set(lengths)) != lengths
        else []
    )


@dataclass
class ShapeArguments:
    """Constant shapes and warm-up for `torch_compile`."""

    shape_buckets: list[int] | None = setting(
        None,
        "Lengths in tokens, ascending, to which prompt and completion together are padded; graphs "
        "for each are compiled before training. With torch_compile, None derives four from the "
        "prompts and max_completion_length, and [] pads nothing, so that a graph is compiled for "
        "each new length.",
        least=1,
        check=_ascending,
    )
    compile_warmup_steps: int = setting(
        3,
        "How many optimiser steps at the start are timed with and without compiling, which makes "
        "them slower. Graphs compiled later count as recompilations.",
        least=1,
    )

    def shape_faults(self, args: GRPOConfig) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        faults = []
        compiles = args.torch_compile or args.torch_compile_backend or args.torch_compile_mode
        launched = (os.environ.get(f"ACCELERATE_USE_{kind}") for kind in ("FSDP", "DEEPSPEED"))
        if compiles and (args.fsdp or args.deepspeed or "true" in launched):
            faults.append(
                "torch_compile: sharded models are not supported; leave it out, or the sharding"
            )
        if compiles and dict(args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            faults.append(
                "torch_compile: its timing does not work with gradient_checkpointing_kwargs: "
                "{use_reentrant: true}; set use_reentrant to false"
            )
        return faults


def derived_buckets(shortest: int, longest: int) -> tuple[int, ...]:
    """Evenly spaced lengths up to the longest, so that no batch is padded by more than the spacing.

    Args:
        shortest: The shortest possible length of a batch, in tokens.
        longest: The longest possible length, in tokens.

    >>> derived_buckets(40, 150)
    (72, 96, 128, 152)
    >>> derived_buckets(60, 66)
    (64, 72)
    """
    spacing = (longest - shortest) / MOST_BUCKETS
    ends = (shortest + spacing * number for number in range(1, MOST_BUCKETS + 1))
    return tuple(sorted({_MULTIPLE * math.ceil(end / _MULTIPLE) for end in ends}))


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds a length.

    Raises:
        RookWorldError: No bucket does.

    >>> bucket_of(97, (72, 96, 128))
    128
    """
    fitting = [bucket for bucket in buckets if bucket >= length]
    if not fitting:
        raise RookWorldError(
            f"shape_buckets: a prompt and its completion can have {length} tokens, but the largest "
            f"bucket has {buckets[-1]}; add {length}"
        )
    return min(fitting)


def padded(batch: torch.Tensor, rows: int, length: int, value: int) -> torch.Tensor:
    """A batch ``(B, T)`` padded to ``(rows, length)``: `value` on the left, its last row repeated.

    Rows of padding alone would not do, because attention would have nothing to attend to.
    """
    wide = torch.nn.functional.pad(batch, (length - batch.size(1), 0), value=value)
    return _repeat_last(wide, rows)


def _repeat_last(batch: torch.Tensor, rows: int) -> torch.Tensor:
    last = batch[-1:].expand(rows - batch.size(0), *batch.shape[1:])
    return torch.cat([batch, last])


class Buckets(Part):
    """Computes log-probs in a few constant shapes.

    Sequences are padded on the left to a bucket, and batches to a number of rows. The result has the
    shape of the input again, so losses and metrics are not affected.

    Args:
        lengths: The buckets in tokens, ascending.
        rows: Rows per forward.
        pad_token_id: The token to pad with.
        prompts: The tokens of the shortest and of the longest prompt.
        completion: The largest number of tokens in a completion.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        rows: int,
        pad_token_id: int,
        prompts: tuple[int, int],
        completion: int,
    ) -> None:
        self.lengths = tuple(lengths)
        self.rows = rows
        self.shortest_prompt, self.longest_prompt = prompts
        self.completion = completion
        self._pad_token_id = pad_token_id

    @classmethod
    def of(cls, trainer: Any) -> Buckets | None:
        """The part, if the trainer's arguments ask for it.

        Raises:
            RookWorldError: No bucket holds the longest prompt with the longest completion.
        """
        given = arguments_of(trainer.args, ShapeArguments).shape_buckets
        if given == [] or (given is None and not trainer.args.torch_compile):
            return None
        texts = sorted(set(trainer.train_dataset["prompt"][:]))
        sizes = [len(ids) for ids in trainer.processing_class(texts)["input_ids"]]
        # TRL pads prompts and completions separately.
        multiple = trainer.pad_to_multiple_of or 1
        longest_prompt, completion = (
            multiple * math.ceil(size / multiple)
            for size in (max(sizes), trainer.max_completion_length)
        )
        longest = longest_prompt + completion
        lengths = tuple(given) if given else derived_buckets(min(sizes) + 1, longest)
        bucket_of(longest, lengths)
        rows = trainer.args.per_device_train_batch_size
        prompts = (min(sizes), longest_prompt)
        return cls(lengths, rows, trainer.processing_class.pad_token_id, prompts, completion)

    def completion_of(self, length: int) -> int:
        """The largest number of tokens in a completion, in a bucket of some length."""
        return max(1, min(self.completion, length - self.shortest_prompt))

    def example(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Tokens and mask ``(rows, length)`` that fill a bucket, and the number of completion tokens."""
        ids = torch.zeros(self.rows, length, dtype=torch.long, device=device)
        mask, completion = torch.ones_like(ids), self.completion_of(length)
        mask[:, : max(0, length - completion - self.longest_prompt)] = 0
        return ids, mask, completion

    def score(
        self,
        score: Callable[..., Scores],
        network: torch.nn.Module,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        batch_size: int | None = None,
        temperatures: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Scores:
        """Score rows ``(B, T)`` with another method, `score`, in constant shapes."""
        count = ids.size(0)
        rows = self.rows * math.ceil(count / self.rows)
        width = bucket_of(ids.size(1), self.lengths)
        if temperatures is not None:
            kwargs["temperatures"] = _repeat_last(temperatures, rows)
        logps, entropies, aux_loss = score(
            network,
            padded(ids, rows, width, self._pad_token_id),
            padded(mask, rows, width, 0),
            length,
            self.rows,
            **kwargs,
        )
        return Scores(logps[:count], None if entropies is None else entropies[:count], aux_loss)
