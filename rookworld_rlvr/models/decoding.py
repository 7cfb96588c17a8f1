"""Batched decoding for evaluation, safe for models with absolute positions."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..common.errors import RookWorldError

ANSWER_TOKENS = 160  # the longest answer; one of the policy task has up to 144 tokens of GPT-2's


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen.

    Args:
        name: Its name in results.
        temperature: 0 takes the most likely token.
        top_k: Choose among this many of the most likely tokens; 0 for all.
        top_p: Choose among the most likely tokens that have this probability together.
        seed: Decides, together with the prompt, what is drawn.
    """

    name: str
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Its settings; greedy decoding has only its name."""
        return asdict(self) if self.temperature else {"name": self.name}


GREEDY = Decoding("greedy")


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    decoding: Decoding = GREEDY,
    batch_size: int = 64,
    progress: Callable[[int], object] | None = None,
) -> list[str]:
    """Decode one completion for each prompt, without special tokens.

    Prompts are sorted by length, so that a batch has little padding, and padded on the left;
    `generate` numbers positions from the attention mask. A completion, greedy or sampled, depends
    neither on its prompt's batch nor on its place there.

    Args:
        model: In evaluation mode or without dropout.
        tokenizer: Its pad token may be its end-of-text token.
        prompts: `N` texts.
        max_new_tokens: Largest number of tokens in a completion; less if the model has fewer positions.
        decoding: How tokens are chosen.
        batch_size: Prompts decoded at once.
        progress: Called with the number of prompts of each batch that is done.

    Returns:
        `N` texts in the order of `prompts`.

    Raises:
        RookWorldError: A prompt fills the model's table of positions.
    """
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    room = [min(max_new_tokens, _room(model, len(tokens))) for tokens in encoded]
    completions = [""] * len(prompts)
    for indices in _batches([len(tokens) for tokens in encoded], room, batch_size):
        config = GenerationConfig(
            do_sample=False,  # to sample is to take the largest score after `_SeededNoise`
            max_new_tokens=room[indices[0]],
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        batch = pad_rows([encoded[index] for index in indices], tokenizer.pad_token_id)
        batch = {key: tensor.to(model.device) for key, tensor in batch.items()}
        sampler = _sampler(decoding, [prompts[index] for index in indices])
        with torch.no_grad():
            output = model.generate(
                **batch, generation_config=config, logits_processor=sampler
            )  # (B, T + new)
        texts = tokenizer.batch_decode(
            output[:, batch["input_ids"].size(1) :], skip_special_tokens=True
        )
        for index, text in zip(indices, texts, strict=True):
            completions[index] = text
        if progress is not None:
            progress(len(indices))
    return completions


def _batches(lengths: Sequence[int], room: Sequence[int], size: int) -> Iterator[list[int]]:
    """Batches of prompts of similar length and the same room: a long one must not cut others short."""
    order = sorted(range(len(lengths)), key=lambda index: (room[index], lengths[index]))
    for _, group in itertools.groupby(order, key=lambda index: room[index]):
        waiting = list(group)
        for start in range(0, len(waiting), size):
            yield waiting[start : start + size]


def _room(model: PreTrainedModel, prompt_tokens: int) -> int:
    """How many tokens fit after a prompt."""
    positions = getattr(model.config, "n_positions", None)
    if positions is None:
        return 1 << 30
    if prompt_tokens >= positions:
        raise RookWorldError(
            f"a prompt of {prompt_tokens} tokens leaves no room in the model's {positions} positions; "
            "give another model, or leave such prompts out"
        )
    return int(positions) - prompt_tokens


def _sampler(decoding: Decoding, prompts: Sequence[str]) -> LogitsProcessorList:
    steps = LogitsProcessorList()
    if not decoding.temperature:
        return steps
    steps.append(TemperatureLogitsWarper(decoding.temperature))
    if decoding.top_k:
        steps.append(TopKLogitsWarper(decoding.top_k))
    if decoding.top_p < 1:
        steps.append(TopPLogitsWarper(decoding.top_p))
    steps.append(_SeededNoise(decoding.seed, prompts))
    return steps


class _SeededNoise(LogitsProcessor):
    """Adds Gumbel noise from each prompt's own stream; the argmax is then a draw from the softmax.

    `generate` draws a whole batch from one stream, so a row's tokens would depend on its neighbours.

    Source: C. J. Maddison, D. Tarlow and T. Minka, "A* Sampling", NeurIPS 2014, section 2.
    """

    def __init__(self, seed: int, prompts: Sequence[str]) -> None:
        self._streams = [
            torch.Generator().manual_seed(_number(f"{seed} {prompt}")) for prompt in prompts
        ]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, V)`` with noise."""
        uniform = torch.stack(
            [torch.rand(scores.size(1), generator=stream) for stream in self._streams]
        )
        noise = -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-7)))
        return scores + noise.to(scores.device)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def pad_rows(
    rows: Sequence[Sequence[int]], pad_token_id: int, side: str = "left"
) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, ``(B, T)`` each, padded on a side.

    The mask follows from the rows' lengths: a real token with the pad token's id counts as text.
    """
    tokens = [torch.tensor(row, dtype=torch.long) for row in rows]
    ones = [torch.ones_like(row) for row in tokens]
    pad = partial(pad_sequence, batch_first=True, padding_side=side)
    return {"input_ids": pad(tokens, padding_value=pad_token_id), "attention_mask": pad(ones)}
