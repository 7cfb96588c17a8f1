"""Models and tokenizers: loading, padding, end of text, position ids, and the packaged model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.activations import ACT2FN, NewGELUActivation
from trl import ModelConfig

from .names import asset_path, is_hub_id
from .notation import END_OF_TEXT
from .records import RookWorldError

PACKAGED_MODEL = "rookworld-nano"
FUSED_GELU = "gelu_pytorch_tanh"

# Words of RookWorld text. A delimiter belongs to the word behind it, but for "+", where prompts end.
# A run of spaces leaves its last one to the next word, as GPT-2's tokenizer does, and takes it all
# at the end of a text: so the tokens of a prompt are a prefix of the tokens of its row.
_WORDS = r"[AP]: |\+| +(?= |\z)|[ /]?[^ +/]+| |/"


def resolve_model_path(name: str) -> str:
    """The folder of a packaged model; any other name comes back as it is.

    >>> resolve_model_path("jrahn/RookWorld-LM-124M")
    'jrahn/RookWorld-LM-124M'
    """
    if name != PACKAGED_MODEL:
        return name
    return asset_path(PACKAGED_MODEL)


def check_model_name(name: str | None, key: str = "model_name_or_path") -> list[str]:
    """Faults of a model's name, found without loading anything; `key` is what it was given as."""
    if name is None:
        return [f"{key}: missing; give {PACKAGED_MODEL}, a folder or a Hub id"]
    path = Path(resolve_model_path(name))
    if (path / "config.json").is_file():
        return []
    if path.is_dir() or _is_run(path):
        return [f"{key}: no model in {name!r}{_how_to_make(path)}"]
    if is_hub_id(name) and not name.startswith("."):
        return []
    return [
        f"{key}: {name!r} is neither packaged ({PACKAGED_MODEL}), a folder, nor a Hub id "
        "(owner/name)"
    ]


_RECIPES = Path(__file__).parents[1] / "recipes"  # where the package is used from its repository


def _is_run(path: Path) -> bool:
    """Whether a name is that of a recipe's `output_dir`, which has the form of a Hub id too."""
    return path.parent == Path("runs") and path.name.startswith(("sft_", "grpo_", "judge_"))


def _how_to_make(path: Path) -> str:
    if not _is_run(path) or not (_RECIPES / f"{path.name}.yaml").is_file():
        return ""
    script = path.name.split("_")[0].replace("judge", "train_judge")
    return (
        f"; a recipe of that name makes it: accelerate launch recipes/{script}.py --config "
        f"recipes/{path.name}.yaml"
    )


def load_model(name: str, **kwargs: Any) -> PreTrainedModel:
    """A causal language model with dropout off and GELU fused, in its configuration too.

    llm.c trains without dropout and its exporter leaves GPT2Config's default of 0.1 in place, so the
    configuration's word is not taken. What is saved from here carries the zeros on. For GELU see
    `fuse_gelu`.

    Args:
        name: Packaged name, folder or Hub id.
        kwargs: For `AutoModelForCausalLM.from_pretrained`.

    Raises:
        RookWorldError: There is no such model, or it cannot be had.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(resolve_model_path(name), **kwargs)
    except (OSError, ValueError) as error:
        raise _cannot_load("model", name, error) from error
    disable_dropout(model)
    fuse_gelu(model)
    return model


def _cannot_load(what: str, name: str, error: Exception) -> RookWorldError:
    reason = " ".join(str(error).split())[:300]
    return RookWorldError(
        f"cannot load the {what} {name!r} ({reason}); check the name and the network, or give a folder"
    )


def check_lengths(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    max_new_tokens: int,
) -> None:
    """Refuse completions that could outrun the model's table of positions.

    Raises:
        RookWorldError: The longest prompt and `max_new_tokens` need more positions than there are.
    """
    positions = getattr(model.config, "n_positions", None)
    longest = max(map(len, tokenizer(prompts)["input_ids"]))
    if positions is not None and longest + max_new_tokens > positions:
        raise RookWorldError(
            f"max_completion_length: {max_new_tokens} after a prompt of {longest} tokens needs more "
            f"than the model's {positions} positions; give at most {positions - longest}"
        )


def load_from_arguments(args: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer as TRL's `ModelConfig` asks for them; fp32 where it names no dtype.

    Raises:
        RookWorldError: See `load_model` and `load_tokenizer`.
    """
    tokenizer = load_tokenizer(args.model_name_or_path, revision=args.model_revision)
    model = load_model(
        args.model_name_or_path,
        revision=args.model_revision,
        attn_implementation=args.attn_implementation,
        dtype=args.dtype or "float32",
    )
    return model, tokenizer


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to 0, in the modules and in the configuration."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    config = getattr(model, "config", None)
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"):
        if config is not None and hasattr(config, key):
            setattr(config, key, 0.0)


def fuse_gelu(model: torch.nn.Module) -> None:
    """Compute GPT-2's activation, where it is transformers' `gelu_new`, by PyTorch's one kernel.

    Both are GELU's tanh approximation (arXiv:1606.08415), equal up to rounding. `gelu_new` is eight
    operations and keeps four tensors of the widest layer's size for the backward pass, where the
    kernel keeps one (huggingface/transformers issue 39073). The configuration is told, so what is
    saved has it too.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, ACT2FN[FUSED_GELU])
    config = getattr(model, "config", None)
    if config is not None and getattr(config, "activation_function", None) == "gelu_new":
        config.activation_function = FUSED_GELU


def load_tokenizer(name: str, *, must_end: bool = True, **kwargs: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, left-padded with end-of-text where it has no pad token.

    Padding is told from text by the attention mask alone, never by the token's id: a real end of
    text keeps its place.

    Args:
        name: Packaged name, folder or Hub id.
        must_end: Whether it needs an end token, as that of a model that writes does.
        kwargs: For `AutoTokenizer.from_pretrained`.

    Raises:
        RookWorldError: There is no such tokenizer, it cannot be had, or it is empty.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(name), **kwargs)
    except (OSError, ValueError) as error:
        raise _cannot_load("tokenizer", name, error) from error
    # transformers makes an empty tokenizer for a folder that holds none.
    ends = tokenizer.eos_token_id is not None or not must_end
    if not tokenizer("P: ")["input_ids"] or not ends:
        raise RookWorldError(
            f"the model {name!r} comes without a tokenizer that reads text and ends it; put "
            "tokenizer.json and tokenizer_config.json into its folder"
        )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def position_ids_from_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """Absolute positions that do not count padding.

    Args:
        attention_mask: ``(B, T)``, 1 for text and 0 for padding on either side.

    Returns:
        ``(B, T)`` of the first text token's 0 onwards; padding gets 0. This is what
        `transformers.GenerationMixin` builds, and what `GPT2Model.forward` does not
        (huggingface/trl issue 6800).
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def number_positions_from_mask(model: torch.nn.Module) -> None:
    """Make every forward of a GPT-2 take its position ids from the attention mask.

    The hook sits on the transformer body, where wrappers (PEFT, DDP, FSDP, TRL's fused head) pass,
    and leaves position ids that a caller gives, such as `generate`, alone. Models without a table of
    absolute positions are left as they are. Hooks are not saved with the model.
    """
    for module in model.modules():
        if isinstance(module, GPT2Model) and not getattr(module, "_positions_from_mask", False):
            module.register_forward_pre_hook(_add_position_ids, with_kwargs=True)
            module._positions_from_mask = True


def _add_position_ids(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = kwargs.get("attention_mask")
    if kwargs.get("position_ids") is None and mask is not None and mask.dim() == 2:
        given = next(
            tensor
            for tensor in (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
            if tensor is not None
        )
        # With a cache the mask covers the past too: the last positions are this forward's.
        kwargs["position_ids"] = position_ids_from_mask(mask)[:, -given.shape[1] :]
    return args, kwargs


# --------------------------------------------------------------------------------------------------
# From scratch
# --------------------------------------------------------------------------------------------------
def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of RookWorld text; every string survives encoding and decoding.

    Args:
        texts: Rows to learn from.
        vocab_size: Tokens in all, the 256 bytes and end-of-text among them.
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
