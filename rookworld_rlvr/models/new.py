"""New models: a GPT-2 with random weights, and a tokenizer learned from rows."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ..tasks.text import END_OF_TEXT
from .gpt2 import FUSED_GELU

# Words of RookWorld text. A delimiter belongs to the word after it, except "+", where prompts end. The
# last space of a run belongs to the next word, as in GPT-2's tokenizer, unless the text ends there. The
# tokens of a prompt are therefore a prefix of the tokens of its row.
_WORDS = r"[AP]: |\+| +(?= |\z)|[ /]?[^ +/]+| |/"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of RookWorld text; every string survives encoding and decoding.

    Args:
        texts: Rows to learn from.
        vocab_size: Number of tokens, including the 256 bytes and end-of-text.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def new_model(
    tokenizer: PreTrainedTokenizerBase, *, n_layer: int, n_embd: int, n_head: int, n_positions: int
) -> PreTrainedModel:
    """A GPT-2 with random weights for `tokenizer`, without dropout, its GELU fused."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_positions=n_positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        activation_function=FUSED_GELU,
    )
    return GPT2LMHeadModel(config)
