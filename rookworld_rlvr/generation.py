"""Batched greedy decoding for evaluation, safe for models with absolute positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


def greedy_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    batch_size: int = 64,
) -> list[str]:
    """Decode one completion a prompt, greedily, special tokens left out.

    Prompts are sorted by length, so that a batch holds little padding, and padded on the left;
    `generate` numbers positions from the attention mask.

    Args:
        model: In evaluation mode or without dropout.
        tokenizer: Its pad token may be its end-of-text token.
        prompts: `N` texts.
        max_new_tokens: Most tokens of a completion.
        batch_size: Prompts decoded at once.

    Returns:
        `N` texts in the order of `prompts`.
    """
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    completions = [""] * len(prompts)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch = left_pad([encoded[index] for index in indices], tokenizer.pad_token_id)
        batch = {key: tensor.to(model.device) for key, tensor in batch.items()}
        with torch.no_grad():
            output = model.generate(**batch, generation_config=config)  # (B, T + new)
        texts = tokenizer.batch_decode(
            output[:, batch["input_ids"].size(1) :], skip_special_tokens=True
        )
        for index, text in zip(indices, texts, strict=True):
            completions[index] = text
    return completions


def left_pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, ``(B, T)`` each, padded on the left.

    The mask follows from the rows' lengths: a real token with the pad token's id counts as text.
    """
    width = max(map(len, rows))
    input_ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        input_ids[index, width - len(row) :] = torch.tensor(row)
        attention_mask[index, width - len(row) :] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}
