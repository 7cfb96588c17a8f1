"""Write the start of a training into a folder: a GPT-2, with a tokenizer learned from a recipe's rows.

    python benchmarks/new_model.py --config recipes/sft_nano.yaml --output_dir runs/untrained
    python benchmarks/new_model.py --config recipes/sft_games.yaml --output_dir runs/games_start \\
        --squares --start rookworld-nano --n_layer 8

The defaults are the shape of the packaged model, whose training starts from random weights. `--start`
takes another model's weights: from random ones, a model of this size needs eight million tokens before
it copies a board.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
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
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import find_recipe
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.gpt2 import FUSED_GELU
from rookworld_rlvr.tasks.registry import join_row
from rookworld_rlvr.tasks.text import END_OF_TEXT

# Words of RookWorld text. A delimiter belongs to the word after it, except "+", where prompts end. The
# last space of a run belongs to the next word, as in GPT-2's tokenizer, unless the text ends there. The
# tokens of a prompt are therefore a prefix of the tokens of its row.
WORDS = r"[AP]: |\+| +(?= |\z)|[ /]?[^ +/]+| |/"

# The same, except that each square of a board is a token (a run of empty ones too), and each square of a
# move: where a piece moves, one token changes, and not how its rank is cut.
_BOARD = r"/?[pnbrqkPNBRQK1-8](?=[pnbrqkPNBRQK1-8/]* [wb] )"
_MOVE_ENDS = r"[qrbn]?(?:[ +]|\z)"
_FROM, _TO = (
    rf" ?[a-h][1-8](?=[a-h][1-8]{_MOVE_ENDS})",
    rf"(?<=[a-h][1-8])[a-h][1-8](?={_MOVE_ENDS})",
)
SQUARES = rf"[AP]: |\+| +(?= |\z)|{_BOARD}|{_FROM}|{_TO}|[ /]?[^ +/]+| |/"

SHAPE = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 256}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="the recipe with the rows")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=1024)
    parser.add_argument("--squares", action="store_true", help="no token crosses a square")
    parser.add_argument(
        "--start", help="a GPT-2 whose weights are taken; its n_embd and n_head hold"
    )
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    recipe = yaml.safe_load(find_recipe(args.config).read_text("utf-8"))
    known = {item.name for item in fields(DataArguments)}
    data_args = DataArguments(**{key: value for key, value in recipe.items() if key in known})
    set_seed(0)
    rows = load_data(data_args, is_learnt=True).train
    texts = (join_row(row["prompt"], row["completion"] + END_OF_TEXT) for row in rows)
    tokenizer = train_tokenizer(texts, args.vocab_size, SQUARES if args.squares else WORDS)
    if args.start:
        model = deepened(retokenised(args.start, tokenizer), args.n_layer)
    else:
        model = new_model(tokenizer, **{name: getattr(args, name) for name in SHAPE})
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, words: str = WORDS
) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of RookWorld text; every string survives encoding and decoding.

    Args:
        texts: Rows to learn from.
        vocab_size: Number of tokens, including the 256 bytes and end-of-text.
        words: Regular expression of what no token crosses.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
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


def retokenised(start: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A GPT-2 with another tokenizer.

    A token's embedding is the mean of those of the tokens that the model's own tokenizer cuts it into;
    so a token that both have keeps its own. Input and output embeddings are one matrix.

    Args:
        start: The model's name or folder.
        tokenizer: The new tokenizer, which has end-of-text.
    """
    model: Any = loading.load_model(start)
    own = loading.load_tokenizer(start)
    texts = [
        END_OF_TEXT if token == tokenizer.eos_token_id else tokenizer.decode([token])
        for token in range(len(tokenizer))
    ]
    old = model.get_input_embeddings().weight.detach()
    rows = [old[own(text)["input_ids"]].mean(0) if text else old.mean(0) for text in texts]
    model.resize_token_embeddings(len(tokenizer))
    model.get_input_embeddings().weight.data = torch.stack(rows)
    model.tie_weights()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(tokenizer, name))
    return model


def deepened(model: Any, n_layer: int) -> Any:
    """A GPT-2 with more layers that computes the same: copies of its layers that add nothing yet.

    A copy stands behind its original; what its attention and its MLP give is multiplied by 0.

    Source: "Net2DeeperNet" of T. Chen, I. Goodfellow and J. Shlens, "Net2Net", 2016, arXiv 1511.05641.

    Raises:
        RookWorldError: The number of layers is no multiple of the model's.
    """
    layers = model.transformer.h
    if n_layer % len(layers):
        raise RookWorldError(
            f"--n_layer {n_layer}: the start has {len(layers)} layers; give a multiple of them"
        )
    grown = []
    for layer in layers:
        grown.append(layer)
        for _ in range(n_layer // len(layers) - 1):
            copy = deepcopy(layer)
            for projection in (copy.attn.c_proj, copy.mlp.c_proj):
                torch.nn.init.zeros_(projection.weight)
                torch.nn.init.zeros_(projection.bias)
            grown.append(copy)
    for number, layer in enumerate(grown):
        layer.attn.layer_idx = number
    model.transformer.h = torch.nn.ModuleList(grown)
    model.config.n_layer = n_layer
    return model


if __name__ == "__main__":
    run_cli(main)
