"""Models and tokenizers: names, loading, and the packaged model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from fnmatch import filter as matching
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess

from ..common.errors import RookWorldError
from ..common.files import asset_path, is_hub_id, shipped_names
from ..common.machine import is_fetched, reaches_hub

if TYPE_CHECKING:  # libraries are imported where they are used: to check a name takes none
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from trl import ModelConfig

PACKAGED_MODEL = "rookworld-nano"
"""The model of the quickstart and of the tests: openings, with planted faults."""


PLAYING_MODEL = "rookworld-games"
"""The model that plays whole games."""


PACKAGED_MODELS = (PACKAGED_MODEL, PLAYING_MODEL)


_BARE = re.compile(r"[\w.-]+")  # a name on the Hub without its owner


_PATIENCE_S = 5.0  # for the Hub's answer


# Files of weights, and the pickles that hold the same.
_WEIGHTS = {
    "model*.safetensors": "pytorch_model*.bin",
    "adapter_model*.safetensors": "adapter_model*.bin",
}


_SAMPLE = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"


_CONVERT = (
    "only safetensors are loaded, because a pickle can run code; where you trust it, load and save it "
    "once with transformers' from_pretrained and save_pretrained, and give the new folder"
)


def resolve_model_path(name: str) -> str:
    """The folder of a packaged model; any other name comes back as it is.

    >>> resolve_model_path("jrahn/RookWorld-LM-124M")
    'jrahn/RookWorld-LM-124M'
    """
    return asset_path(name) if name in PACKAGED_MODELS else name


def check_model_name(name: str | None, key: str = "model_name_or_path") -> list[str]:
    """Faults of a model's name; `key` is the option that names it.

    Nothing is loaded. Only a name without an owner that is like no other is looked up on the Hub.
    """
    if name is None:
        return [f"{key}: missing; give {PACKAGED_MODEL}, a folder or a Hub id"]
    path = Path(resolve_model_path(name))
    if (path / "config.json").is_file():
        found = pickled(file.name for file in path.iterdir())
        said = f"{key}: the weights of {name!r} are a pickle ({found}): {_CONVERT}"
        return [said] if found else []
    if path.is_file():
        return [f"{key}: {name!r} is a file, not the folder of a model; see docs/coming-from.md"]
    if (path / "adapter_config.json").is_file():
        return [
            f"{key}: {name!r} holds a LoRA adapter alone; its run's folder has the merged model, or "
            "merge it by peft's merge_and_unload and save_pretrained"
        ]
    if is_hub_id(name) and not path.exists():
        return []
    models = chain(Path().glob("*/config.json"), Path().glob("*/*/config.json"))
    folders = [str(path.parent) for path in models]
    close = difflib.get_close_matches(name, [*PACKAGED_MODELS, *folders], n=1)
    is_bare = bool(_BARE.fullmatch(name)) and not path.exists()  # such as gpt2
    # A name that is nearly right is a slip, and no word of it leaves this machine.
    if is_bare and not close and _is_on_hub(name):
        return []
    recipe = ""
    if path.parent == Path("runs") and path.name in shipped_names("recipes"):
        command = f"rookworld {path.name.split('_')[0]} --config recipes/{path.name}.yaml"
        recipe = f"; a recipe of that name makes it: {command}"
    if path.is_dir():
        return [f"{key}: no model in {name!r}{recipe}"]
    no_hub = "; the Hub has no such model, or is not reached" if is_bare else ""
    meant = f"; did you mean {close[0]}?" if close else no_hub
    return [
        f"{key}: there is no folder {name!r} in {Path.cwd()}, and it is neither "
        f"{' nor '.join(PACKAGED_MODELS)} nor a Hub id (owner/name){meant}{recipe}"
    ]


@cache
def _is_on_hub(name: str) -> bool:
    """Whether the Hub has a model of that name, or its weights were fetched before."""
    from huggingface_hub import HfApi

    if not reaches_hub(name):
        return False
    if is_fetched(name):
        return True
    try:
        HfApi().model_info(name, timeout=_PATIENCE_S)
    except Exception:  # errors of the HTTP library too, whichever it is
        return False
    return True


def pickled(files: Iterable[str]) -> str | None:
    """The first file of weights that is a pickle, unless the same weights are there as safetensors.

    >>> pickled(["config.json", "pytorch_model.bin", "training_args.bin"])
    'pytorch_model.bin'
    >>> pickled(["config.json", "pytorch_model.bin", "model.safetensors"])
    """
    names = sorted(files)
    for safe, pickle in _WEIGHTS.items():
        if (found := matching(names, pickle)) and not matching(names, safe):
            return found[0]
    return None


def load_safely(kind: Any, name: str, **kwargs: Any) -> Any:
    """A model by one of transformers' classes, from safetensors only.

    Raises:
        RookWorldError: There is no such model, it could not be loaded, or its weights are a pickle.
    """
    from accelerate.utils import patch_environment
    from safetensors import SafetensorError

    for fault in check_model_name(name, "model"):
        raise RookWorldError(fault)
    try:
        # Without the variable, transformers would take weights that the Hub's bot made of a pickle.
        with patch_environment(DISABLE_SAFETENSORS_CONVERSION="true"):
            # With None, transformers asks on the terminal whether to run the model's code.
            kwargs = {"trust_remote_code": False, **kwargs}
            return kind.from_pretrained(resolve_model_path(name), use_safetensors=True, **kwargs)
    except (OSError, ValueError, SafetensorError) as error:
        raise _cannot_load("model", name, error) from error


def load_model(name: str, **kwargs: Any) -> PreTrainedModel:
    """A causal language model with dropout off and GELU fused, in its configuration too.

    llm.c trains without dropout, but its exporter leaves GPT2Config's default of 0.1 in place, so the
    configured value is ignored. A model that is saved later keeps the zeros. For GELU see `fuse_gelu`.

    Args:
        name: Packaged name, folder or Hub id.
        kwargs: For `AutoModelForCausalLM.from_pretrained`; `trust_remote_code`, whether to run code that
            comes with the model, is False by default.

    Raises:
        RookWorldError: See `load_safely`.
    """
    from transformers import AutoModelForCausalLM

    from . import gpt2

    model: PreTrainedModel = load_safely(AutoModelForCausalLM, name, **kwargs)
    gpt2.disable_dropout(model)
    gpt2.fuse_gelu(model)
    return model


def _cannot_load(what: str, name: str, error: Exception) -> RookWorldError:
    said = " ".join(str(error).split())
    if "use_safetensors" in said:  # transformers advises against it
        return RookWorldError(f"the {what} {name!r} has no weights as safetensors: {_CONVERT}")
    if "trust_remote_code" in said:
        return RookWorldError(
            f"the {what} {name!r} comes with its own Python code, which is not run; if you have read it "
            "and trust it, train with --trust_remote_code true on the command line"
        )
    return RookWorldError(
        f"cannot load the {what} {name!r} ({said[:300]}); check the name and the network, or give a "
        "folder"
    )


def answer_room(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, prompts: list[str], most: int
) -> int:
    """The tokens that a model's positions leave for an answer to the longest prompt, at most `most`.

    Raises:
        RookWorldError: They leave none.
    """
    # A prompt has at most as many tokens as bytes, and those that the tokenizer adds. That is mostly few
    # enough, so that a whole data set need not be tokenised, which takes seconds.
    added = tokenizer.num_special_tokens_to_add() + 1  # a space in front
    bound = max(len(prompt.encode()) for prompt in prompts) + added
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or bound + most <= positions:
        return most
    return room_after(config, max(map(len, tokenizer(prompts)["input_ids"])), most)


def room_after(config: PretrainedConfig, tokens: int, most: int) -> int:
    """The tokens that a model's positions leave after a prompt of so many, at most `most`.

    Raises:
        RookWorldError: They leave none.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is not None and tokens >= positions:
        raise RookWorldError(
            f"a prompt has {tokens} tokens, which leaves no room for an answer in the model's "
            f"{positions} positions; leave out rows with such long prompts, or give a model with more "
            "positions"
        )
    return most if positions is None else min(most, positions - tokens)


def check_lengths(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    max_completion_length: int,
) -> None:
    """Refuse completions that could need more positions than the model has.

    Raises:
        RookWorldError: The longest prompt and a completion need more than it has.
    """
    room = answer_room(config, tokenizer, prompts, max_completion_length)
    if room < max_completion_length:
        raise RookWorldError(
            f"max_completion_length: {max_completion_length} tokens after the longest prompt need more "
            f"positions than the model {config.name_or_path!r} has; give at most {room}"
        )


def load_from_arguments(
    args: ModelConfig, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer as TRL's `ModelConfig` asks for them; in fp32 if it names no dtype.

    Args:
        args: The model's keys.
        trust_remote_code: Whether to run code that comes with the model; a key of the trainer's.

    Raises:
        RookWorldError: See `load_model` and `load_tokenizer`.
    """
    tokenizer = load_tokenizer(
        args.model_name_or_path, revision=args.model_revision, trust_remote_code=trust_remote_code
    )
    model = load_start(args, trust_remote_code)
    if args.use_peft and args.lora_target_modules not in (None, "all-linear"):
        from .adapters import adapted

        args.lora_target_modules = adapted(model, args.lora_target_modules)
    return model, tokenizer


def load_start(args: ModelConfig, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of `load_from_arguments`, without its tokenizer."""
    return load_model(
        args.model_name_or_path,
        trust_remote_code=trust_remote_code,
        revision=args.model_revision,
        attn_implementation=args.attn_implementation,
        dtype=args.dtype or "float32",
    )


def load_tokenizer(name: str, *, must_end: bool = True, **kwargs: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; it pads on the left, with end-of-text if it has no pad token.

    The attention mask alone tells padding from text, never the token's id: a real end-of-text counts as
    text.

    Args:
        name: Packaged name, folder or Hub id.
        must_end: Whether an end token is required, as for a model that writes.
        kwargs: For `AutoTokenizer.from_pretrained`.

    Raises:
        RookWorldError: There is no such tokenizer, it could not be loaded, it is empty, or it is not
            that of its file.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        # None would let transformers ask at the terminal whether to run the tokenizer's code.
        tokenizer = AutoTokenizer.from_pretrained(
            resolve_model_path(name), **{"trust_remote_code": False, **kwargs}
        )
    except (OSError, ValueError) as error:
        raise _cannot_load("tokenizer", name, error) from error
    # transformers makes an empty tokenizer for a folder without one.
    ends = tokenizer.eos_token_id is not None or not must_end
    if not tokenizer("P: ")["input_ids"] or not ends:
        raise RookWorldError(
            f"the model {name!r} has no tokenizer that encodes text and has an end token; put "
            "tokenizer.json and tokenizer_config.json into its folder"
        )
    file = Path(resolve_model_path(name)) / "tokenizer.json"
    if file.is_file():
        plain = Tokenizer.from_file(str(file))
        plain.no_padding()  # either may be stored from earlier work
        plain.no_truncation()
        encoded = tokenizer(_SAMPLE, add_special_tokens=False)["input_ids"]
        if encoded != plain.encode(_SAMPLE, add_special_tokens=False).ids:
            raise RookWorldError(
                f"transformers would not encode text for the model {name!r} as its tokenizer.json does; "
                "put the tokenizer_config.json that belongs to it into the folder, too"
            )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
