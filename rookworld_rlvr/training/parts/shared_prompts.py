"""Log-probs from one forward in which the completions of a prompt share it.

A group's completions have their prompt in common, and TRL sends it through the network with each of
them, padded. Here one forward takes the tokens alone, one after the other: each distinct prompt once,
less its last token, then each row's last prompt token and completion, less its last. Every layer but
attention looks at one token at a time and does not notice. Attention, which transformers lets one
register, takes the tokens apart again: prompts attend to themselves, completions to their prompt and to
themselves.

It is one forward of the network as it stands: wrappers, adapters, checkpointing and compiling see
nothing unusual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ...common.settings import setting
from .part import Part, Scores, arguments_of
from .sampling import backbone, language_model

_IGNORED = -100  # the label of a token that is not scored
_MULTIPLE = 8  # of keys, for GPUs' kernels


@dataclass
class SharedPromptArguments:
    """Keys for work that is done once, or not at all."""

    share_prompts: bool = setting(
        True,
        "Send each distinct prompt through the network once, not once a completion, and leave rows out "
        "of the update that cannot move anything (advantage 0, and no KL, entropy or value term). false "
        "is TRL's way.",
    )


# --------------------------------------------------------------------------------------------------
# Attention
# --------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """Where the tokens of `G` prompts and `B` completions stand in one row of `N` tokens.

    Padding is on the right of prompts and completions, and stands for any token.
    """

    prompts: torch.Tensor  # (G, P)
    completions: torch.Tensor  # (B, C)
    keys: torch.Tensor  # (B, P + C), what completions attend to
    results: torch.Tensor  # (N,), each token's place among G * P prompt and B * C completion tokens


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    shared_prompts: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' ``sdpa``; of prompts and completions where the forward was given their layout.

    Args:
        module: The layer.
        query: ``(1, H, N, D)``.
        key: ``(1, h, N, D)``.
        value: ``(1, h, N, D)``.
        attention_mask: ``(B, 1, C, P + C)``, what completions attend to.
        shared_prompts: The layout; None leaves all to transformers.
        kwargs: For transformers' function.
    """
    if shared_prompts is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    layout = shared_prompts

    def attend(
        queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        tokens = (_at(query, queries), _at(key, keys), _at(value, keys))
        return sdpa_attention_forward(module, *tokens, mask, **kwargs)[0].flatten(0, 1)

    results = [attend(layout.completions, layout.keys, attention_mask)]  # (B * C, H, D)
    if layout.prompts.size(1):
        results.insert(0, attend(layout.prompts, layout.prompts, None))  # causal
    return torch.cat(results).index_select(0, layout.results).unsqueeze(0), None


def _at(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of states ``(1, H, N, D)`` those at places ``(R, T)``: ``(R, H, T, D)``."""
    by_token = states[0].transpose(0, 1)  # (N, H, D)
    return by_token.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)


AttentionInterface.register("sdpa", attention)


# --------------------------------------------------------------------------------------------------
# Tokens in one row
# --------------------------------------------------------------------------------------------------
class Sizes(NamedTuple):
    """Constant shapes for a compiled body."""

    prompts: int  # G
    prompt: int  # P, tokens
    completion: int  # C, tokens
    tokens: int  # N


class Packed(NamedTuple):
    """A batch of `B` rows as one row of `N` tokens."""

    ids: torch.Tensor  # (1, N)
    positions: torch.Tensor  # (1, N)
    mask: torch.Tensor  # (B, 1, C, P + C)
    layout: Layout
    fed: torch.Tensor  # (B, length), whether a completion's token is scored
    labels: torch.Tensor  # (1, M), the M tokens that are scored


def distinct_prompts(
    ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct rows of prompts ``(B, P)``: ids ``(G, P)``, their mask, and which each row has."""
    if not ids.size(1):
        return ids[:1], mask[:1], torch.zeros_like(ids[:, :1]).new_zeros(ids.size(0))
    distinct, index = ids.masked_fill(~mask, -1).unique(dim=0, return_inverse=True)
    return distinct, distinct >= 0, index


def pack(
    ids: torch.Tensor, mask: torch.Tensor, length: int, sizes: Sizes | None = None
) -> Packed:
    """Rows ``(B, T)``, prompts padded on the left, whose last `length` tokens are scored, as one row.

    Args:
        ids: Tokens.
        mask: 1 for text.
        length: Columns of the completions.
        sizes: Shapes to pad to; None pads nothing.
    """
    rows, start = ids.size(0), ids.size(1) - length
    kept = mask[:, start:].bool()  # (B, length)
    fed = kept.clone()
    fed[0, 0] = True  # a forward without tokens would have no graph
    # Rows without a token have no need of their prompt.
    first = fed.any(1).int().argmax()
    owner = torch.where(fed.any(1), torch.arange(rows, device=ids.device), first)
    before = ids[owner, : start - 1], mask[owner, : start - 1].bool()
    prompts, prompt_mask, index = distinct_prompts(*before)
    lengths = prompt_mask.sum(1)  # (G,)

    width = int(lengths.max())
    columns = int(fed.any(0).nonzero().max()) + 1
    count = prompts.size(0)
    if sizes is not None:
        count, width, columns = sizes.prompts, sizes.prompt, sizes.completion
    elif width:
        width += -(width + columns) % _MULTIPLE
    lengths = torch.nn.functional.pad(lengths, (0, count - lengths.size(0)))
    steps = torch.arange(max(width, columns), device=ids.device)
    in_prompt = steps[:width] < lengths.unsqueeze(1)  # (G, P)
    own = _columns(fed, columns)  # (B, C)

    places = torch.cat([in_prompt.flatten(), own.flatten()])
    results = places.nonzero().squeeze(1)  # (N,)
    numbers = (places.cumsum(0) - 1).where(places, 0)
    at_prompts, at_completions = numbers.split([in_prompt.numel(), own.numel()])
    at_prompts, at_completions = at_prompts.view_as(in_prompt), at_completions.view_as(own)
    tokens = torch.cat([prompts[prompt_mask], ids[:, start - 1 : -1][fed]])
    positions = torch.cat(
        [
            steps[:width].expand_as(in_prompt)[in_prompt],
            (lengths[index].unsqueeze(1) + steps[:columns])[own],
        ]
    )
    causal = steps[:columns] <= steps[:columns].unsqueeze(1)  # (C, C)
    seen = [
        in_prompt[index].unsqueeze(1).expand(-1, columns, -1),
        causal.expand(rows, -1, -1),
    ]
    layout = Layout(
        at_prompts,
        at_completions,
        torch.cat([at_prompts[index], at_completions], dim=1),
        results,
    )
    if sizes is not None:
        more = (0, sizes.tokens - tokens.size(0))
        tokens, positions = (
            torch.nn.functional.pad(numbers, more) for numbers in (tokens, positions)
        )
        layout = layout._replace(results=torch.nn.functional.pad(results, more))
    labels = ids[:, start:].masked_fill(~kept, _IGNORED)[fed]
    return Packed(
        tokens.unsqueeze(0),
        positions.unsqueeze(0),
        torch.cat(seen, dim=2).unsqueeze(1),
        layout,
        fed,
        labels.unsqueeze(0),
    )


def _columns(mask: torch.Tensor, columns: int) -> torch.Tensor:
    """A mask ``(B, length)`` as ``(B, columns)``."""
    return torch.nn.functional.pad(mask, (0, max(0, columns - mask.size(1))))[:, :columns]


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class SharedPrompts(Part):
    """Scores rows with their prompts shared.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._packed: Packed | None = None  # of the forward now
        for network in trainer.networks():
            body = backbone(network)
            # The value head and the temperatures read rows, in between.
            body.register_forward_hook(self._to_rows, prepend=True)
            body.register_forward_hook(self._to_tokens)

    @classmethod
    def of(cls, trainer: Any) -> SharedPrompts | None:
        """The part, where a trainer's arguments ask for it and its networks allow it."""
        if not arguments_of(trainer.args, SharedPromptArguments).share_prompts:
            return None
        for network in trainer.networks():
            if reason := obstacle(trainer, network):
                trainer.accelerator.print(
                    f"share_prompts: {reason}; each row is scored whole, as TRL does. "
                    "share_prompts: false says so from the start"
                )
                return None
        return cls(trainer)

    def score(
        self,
        score: Callable[..., Scores],
        network: torch.nn.Module,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        batch_size: int | None = None,
        *,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> Scores:
        """Score rows ``(B, T)``; images and the like are left to TRL's way of scoring, `score`."""
        if any(given is not None and given is not False for given in kwargs.values()):
            kwargs["compute_entropy"] = compute_entropy
            return score(network, ids, mask, length, batch_size, **kwargs)
        step = batch_size or ids.size(0)
        parts = [
            self._forward(network, ids[start : start + step], mask[start : start + step], length)
            for start in range(0, ids.size(0), step)
        ]
        logps, entropies = zip(*parts, strict=True)
        return Scores(torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None)

    def _forward(
        self, network: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs and entropies ``(b, length)`` from one forward."""
        packed = pack(ids, mask, length)
        self._packed = packed
        try:
            with self._trainer.accelerator.autocast():
                output = network(
                    input_ids=packed.ids,
                    position_ids=packed.positions,
                    attention_mask=packed.mask,
                    shared_prompts=packed.layout,
                    shift_labels=packed.labels,
                    fused_lm_head=True,
                )
        finally:
            self._packed = None
        return _by_row(output.log_probs, packed.fed), _by_row(output.entropy, packed.fed)

    def _to_rows(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Hidden states ``(1, N, D)`` as ``(b, length + 1, D)``, as if rows had been sent whole."""
        if self._packed is None:
            return
        places, length = self._packed.layout.completions, self._packed.fed.size(1)
        places = _columns(places, length + 1)
        states = output.last_hidden_state[0].index_select(0, places.flatten())
        output.last_hidden_state = states.unflatten(0, places.shape)

    def _to_tokens(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Of hidden states ``(b, length + 1, D)`` those that are scored, ``(1, M, D)``."""
        if self._packed is not None:
            output.last_hidden_state = output.last_hidden_state[:, :-1][self._packed.fed][None]


def _by_row(numbers: torch.Tensor | None, scored: torch.Tensor) -> Any:
    """Numbers ``(1, M)`` of the tokens scored as ``(b, length)``, 0 elsewhere."""
    if numbers is None:
        return None
    return numbers.new_zeros(scored.shape).masked_scatter(scored, numbers)


def obstacle(trainer: Any, network: torch.nn.Module) -> str | None:
    """Why prompts cannot be shared in a network, as the start of a sentence; None where they can."""
    model = language_model(network)
    name, attends_by = type(model).__name__, trainer.attention_of(model)
    config = model.config.get_text_config()
    adapters: Mapping[str, Any] = getattr(network, "peft_config", {})
    if attends_by is None:
        return f"{name} has an attention of its own"
    if attends_by != "sdpa":
        return f"the attention is {attends_by!r}, not 'sdpa'"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=config).layers):
        return f"{name} has layers that do not attend to all tokens before"
    if any(adapter.is_prompt_learning for adapter in adapters.values()):
        return "the adapters add tokens to the prompts"
    if trainer.aux_loss_enabled:
        return "the routers' loss counts the tokens of whole rows"
    return None
