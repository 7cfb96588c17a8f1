"""Corrections of GPT-2: position ids from the mask, no dropout, fused GELU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.activations import ACT2FN, NewGELUActivation

FUSED_GELU = "gelu_pytorch_tanh"


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to 0, in the modules and in the configuration."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    config = getattr(model, "config", None)
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)


def fuse_gelu(model: torch.nn.Module) -> None:
    """Replace transformers' `gelu_new`, GPT-2's activation, by PyTorch's single kernel.

    Both are GELU's tanh approximation (arXiv:1606.08415), equal up to rounding. `gelu_new` is eight
    operations and keeps four tensors of the widest layer's size for the backward pass, where the
    kernel keeps one (huggingface/transformers issue 39073). The configuration changes too, so
    a saved model keeps it.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, ACT2FN[FUSED_GELU])
    config: Any = getattr(model, "config", None)
    if getattr(config, "activation_function", None) == "gelu_new":
        config.activation_function = FUSED_GELU


def position_ids_from_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """Absolute positions that do not count padding.

    Args:
        attention_mask: ``(B, T)``, 1 for text and 0 for padding on either side.

    Returns:
        ``(B, T)``, counted from 0 at the first text token; padding gets 0.
        `transformers.GenerationMixin` builds the same, `GPT2Model.forward` does not
        (huggingface/trl issue 6800).
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def number_positions_from_mask(model: torch.nn.Module) -> None:
    """Make every forward of a GPT-2 take its position ids from the attention mask.

    The hook is on the transformer body, which every wrapper calls (PEFT, DDP, FSDP, TRL's fused head).
    It keeps position ids that a caller gives, as `generate` does. It is added to every body that has a
    table of absolute positions under GPT-2's name, such as GPT-Neo's. Other models (Llama, Qwen2) need
    none: a shift of all positions changes nothing there. Hooks are not saved with the model.
    """
    for module in _counting_padding(model):
        module.register_forward_pre_hook(_add_position_ids, with_kwargs=True)
        module._positions_from_mask = True  # type: ignore[assignment]


def counts_padding(model: torch.nn.Module) -> bool:
    """Whether a forward without position ids counts padding on the left as positions."""
    return any(True for _ in _counting_padding(model))


def _counting_padding(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The bodies with a table of absolute positions that `number_positions_from_mask` has not seen."""
    for module in model.modules():
        has_table = isinstance(getattr(module, "wpe", None), torch.nn.Embedding)
        if has_table and not getattr(module, "_positions_from_mask", False):
            yield module


def _add_position_ids(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = kwargs.get("attention_mask")
    if kwargs.get("position_ids") is None and mask is not None and mask.dim() == 2:
        inputs = (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        given = next(tensor for tensor in inputs if tensor is not None)
        # With a cache the mask covers the past too; this forward has only the last positions.
        kwargs["position_ids"] = position_ids_from_mask(mask)[:, -given.shape[1] :]
    return args, kwargs


def prepare_for_left_padding(model: torch.nn.Module) -> None:
    """Prepare a model for left-padded batches: no dropout, fused GELU, position ids from the mask.

    This changes the model itself, not keywords of `from_pretrained`, so it also works for a model that
    comes as an object or that TRL has loaded.
    """
    disable_dropout(model)
    fuse_gelu(model)
    number_positions_from_mask(model)
