"""Write an untrained GPT-2 into a folder, with a tokenizer learned from a recipe's training rows.

    python benchmarks/new_model.py --config recipes/sft_nano.yaml --output_dir runs/untrained

The defaults are the shape of the packaged model, whose training starts from that folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import yaml
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.files import find_recipe
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models.gpt2 import FUSED_GELU
from rookworld_rlvr.tasks.registry import join_row
from rookworld_rlvr.tasks.text import END_OF_TEXT

# Words of RookWorld text. A delimiter belongs to the word after it, except "+", where prompts end. The
# last space of a run belongs to the next word, as in GPT-2's tokenizer, unless the text ends there. The
# tokens of a prompt are therefore a prefix of the tokens of its row.
WORDS = r"[AP]: |\+| +(?= |\z)|[ /]?[^ +/]+| |/"

SHAPE = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 256}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="the recipe with the rows")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=1024)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    recipe = yaml.safe_load(find_recipe(args.config).read_text("utf-8"))
    known = {item.name for item in fields(DataArguments)}
    data_args = DataArguments(**{key: value for key, value in recipe.items() if key in known})
    set_seed(0)
    rows = load_data(data_args, is_learnt=True).train
    texts = (join_row(row["prompt"], row["completion"] + END_OF_TEXT) for row in rows)
    tokenizer = train_tokenizer(texts, args.vocab_size)
    model = new_model(tokenizer, **{name: getattr(args, name) for name in SHAPE})
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of RookWorld text; every string survives encoding and decoding.

    Args:
        texts: Rows to learn from.
        vocab_size: Number of tokens, including the 256 bytes and end-of-text.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
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


if __name__ == "__main__":
    run_cli(main)
