"""Scores of completions: log-probs, entropies, values, from one forward in which prompts are shared.

The completions of a group have the same prompt. TRL sends it through the network once per completion,
and pads every row. Here, one forward takes all tokens as a single row without padding:

1. each distinct prompt once, without its last token;
2. for each completion, the last token of its prompt and the completion without its last token.

Attention is the only layer that mixes tokens, and transformers lets us register our own. It attends to
each prompt and each completion separately: a prompt sees itself, a completion sees its prompt and
itself. Only the trainer's own networks are set to it, by its name.

For the network this is an ordinary forward, so wrappers, adapters and checkpointing work as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..models.decoding import adds_tokens, language_model, on_device
from .sampling import backbone

if TYPE_CHECKING:
    from .step import Step

ATTENTION = "sdpa_with_shared_prompts"  # its name in transformers' registries

SMALL = 4096  # tokens of a vocabulary whose logits are computed at once
_IGNORED = -100  # the label of a token that is not scored
_MULTIPLE = 8  # of keys, for GPUs' kernels


class Sequences(NamedTuple):
    """Sequences to score, prompts padded on the left and completions on the right.

    They are packed on the host: where they are on a GPU, it has to be waited for.
    """

    ids: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T), 1 for text
    length: int  # the last columns, which are scored
    temperatures: torch.Tensor | None = None  # (B,); None uses the trainer's


class Scores(NamedTuple):
    """The result of scoring completions of `C` tokens; the first three are what TRL asks for."""

    logps: torch.Tensor  # (B, C), nats
    entropies: torch.Tensor | None  # (B, C), nats; None if they were not asked for
    aux_loss: torch.Tensor | None  # of a mixture of experts
    values: torch.Tensor | None = None  # (B, C), of a value head, before each token
    answers: torch.Tensor | None = None  # (g, L), log-probs of right answers, 0 for padding
    counted: torch.Tensor | None = None  # (B,), which rows were not left out; None: all


ByTRL = Callable[..., tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]]


# --------------------------------------------------------------------------------------------------
# Attention
# --------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """The places of the tokens of `G` prompts and `B` completions in one row of `N` tokens.

    Prompts and completions are padded on the right; a padded entry is the place of an arbitrary token.
    """

    prompts: torch.Tensor  # (G, P)
    completions: torch.Tensor  # (B, C)
    keys: torch.Tensor  # (B, P + C), what completions attend to
    results: torch.Tensor  # (N,), each token's index among G * P prompt and B * C completion tokens


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    shared_prompts: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' ``sdpa``, applied to prompts and completions separately if a layout is given.

    Args:
        module: The layer.
        query: ``(1, H, N, D)``.
        key: ``(1, h, N, D)``.
        value: ``(1, h, N, D)``.
        attention_mask: ``(B, 1, C, P + C)``, what completions attend to.
        shared_prompts: The layout; None calls transformers' function as usual.
        kwargs: Passed on to transformers' function.
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
    """The states at places ``(R, T)``, as ``(R, H, T, D)``; all states are ``(1, H, N, D)``."""
    by_token = states[0].transpose(0, 1)  # (N, H, D)
    return by_token.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


# --------------------------------------------------------------------------------------------------
# Tokens in one row
# --------------------------------------------------------------------------------------------------
class Packed(NamedTuple):
    """A batch of `b` rows as one row of `N` tokens; the last `length` tokens of each are scored."""

    ids: torch.Tensor  # (1, N)
    positions: torch.Tensor  # (1, N)
    mask: torch.Tensor  # (B, 1, C, P + C), what completions attend to
    layout: Layout
    scored: torch.Tensor  # (b, length), which tokens are scored
    before: torch.Tensor  # (M,), places of the tokens before the `M` scored ones
    labels: torch.Tensor  # (1, M), the scored tokens

    def to(self, device: torch.device) -> Packed:
        """The same on a device, which is not waited for."""
        layout = Layout(*(on_device(part, device) for part in self.layout))
        names = ("ids", "positions", "mask", "scored", "before", "labels")
        moved = {name: on_device(getattr(self, name), device) for name in names}
        return Packed(layout=layout, **moved)


def distinct_rows(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct rows ``(G, T)`` of ``(B, T)``, padded with -1, and the index of each row in them."""
    if not ids.size(1):  # `unique` fails
        return ids[:1], ids.new_zeros(ids.size(0))
    distinct, index = ids.masked_fill(~mask.bool(), -1).unique(dim=0, return_inverse=True)
    return distinct, index


def pack(ids: torch.Tensor, mask: torch.Tensor, length: int) -> Packed:
    """Pack rows ``(b, T)``, prompts padded on the left; rows without a completion are left out.

    The result's shapes depend on the numbers in the mask, so the tensors should be on the host.

    Args:
        ids: Tokens.
        mask: 1 for text.
        length: The number of columns of completions.
    """
    kept = mask[:, -length:].bool()
    scored = kept.clone()
    if not kept.any():
        scored[0, 0] = True  # the result needs a graph; the label is ignored
    active = scored.any(1).nonzero().squeeze(1)  # (B,)
    own = scored[active]
    before = ids[active, : -length - 1], mask[active, : -length - 1]
    prompts, index = distinct_rows(*before)
    prompt_lengths = (prompts >= 0).sum(1)  # (G,)
    longest = int(own.any(0).nonzero().max()) + 1  # C
    longest_prompt = int(prompt_lengths.max())  # P
    longest_prompt += -(longest_prompt + longest) % _MULTIPLE if longest_prompt else 0

    steps = torch.arange(max(longest_prompt, longest), device=ids.device)
    in_prompt = steps[:longest_prompt] < prompt_lengths.unsqueeze(1)  # (G, P)
    in_completion = own[:, :longest]  # (B, C)
    taken = torch.cat([in_prompt.flatten(), in_completion.flatten()])
    places = (taken.cumsum(0) - 1).where(taken, 0)
    of_prompts = places[: in_prompt.numel()].view_as(in_prompt)
    of_completions = places[in_prompt.numel() :].view_as(in_completion)
    layout = Layout(
        of_prompts,
        of_completions,
        torch.cat([of_prompts[index], of_completions], dim=1),
        taken.nonzero().squeeze(1),
    )

    # For each row, the prompt's last token and the completion without its last.
    inputs = ids[active, -length - 1 : -1]
    tokens = torch.cat([prompts[prompts >= 0], inputs[own]])
    after = prompt_lengths[index].unsqueeze(1) + torch.arange(length, device=ids.device)
    positions = torch.cat([steps[:longest_prompt].expand_as(in_prompt)[in_prompt], after[own]])
    causal = torch.ones(longest, longest, device=ids.device).tril().bool()
    seen = [
        in_prompt[index].unsqueeze(1).expand(-1, longest, -1),
        causal.expand(active.numel(), -1, -1),
    ]
    return Packed(
        tokens.unsqueeze(0),
        positions.unsqueeze(0),
        torch.cat(seen, dim=2).unsqueeze(1),
        layout,
        scored,
        of_completions[in_completion],
        ids[:, -length:].masked_fill(~kept, _IGNORED)[scored].unsqueeze(0),
    )


# --------------------------------------------------------------------------------------------------
# Scoring
# --------------------------------------------------------------------------------------------------
@dataclass
class _Forward:
    """What the hook on the hidden states is told of the current forward, and what it reads."""

    packed: Packed | None
    heat: torch.Tensor | None  # factors of the hidden states, (b, T, 1) or (1, M, 1)
    head: torch.nn.Module | None  # that reads values
    values: torch.Tensor | None = None  # (b, T) or (M,)


class Scorer:
    """Scores rows with a trainer's networks, each row at its own temperature.

    TRL divides all logits by one temperature. The logits are linear in the hidden states, so these are
    scaled such that each row's logits end up divided by its own temperature.

    Args:
        trainer: Whose networks score; prompts are shared unless `obstacle` finds a reason.

    Attributes:
        shares_prompts: Whether rows with the same prompt share it; else each is scored whole, as TRL
            does.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        self._forward: _Forward | None = None
        reason = obstacle(trainer)
        self.shares_prompts = reason is None
        sizes = [
            len(language_model(one).get_output_embeddings().weight) for one in trainer.networks()
        ]
        self._is_small = max(sizes) <= SMALL and not trainer.args.cast_lm_head_to_fp32
        if reason:
            said = f"prompts are not shared: {reason}; each row is scored whole, as TRL does"
            trainer.accelerator.print(said)
        for network in trainer.networks():
            if self.shares_prompts:
                language_model(network).set_attn_implementation(ATTENTION)
            backbone(network).register_forward_hook(self._on_hidden_states)

    def __call__(
        self,
        network: torch.nn.Module,
        rows: Sequences,
        by_trl: ByTRL,
        batch_size: int | None = None,
        head: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Scores:
        """The scores of rows.

        Args:
            network: One of the trainer's networks, as it is wrapped.
            rows: What to score.
            by_trl: TRL's own method, for rows with images and the like and where prompts are not shared.
            batch_size: Sequences per forward; None takes all.
            head: A value head on the hidden states, which is read, too.
            kwargs: What TRL's method takes.
        """
        if kwargs.keys() - {"compute_entropy", "compute_aux_loss"}:  # images, which TRL divides
            return self._by_trl(network, rows, by_trl, head, batch_size=batch_size, **kwargs)
        size = batch_size or len(rows.ids)
        chunks = []
        for start in range(0, len(rows.ids), size):
            chunk = slice(start, start + size)
            heats = None if rows.temperatures is None else rows.temperatures[chunk]
            some = Sequences(rows.ids[chunk], rows.mask[chunk], rows.length, heats)
            chunks.append(self._scored(network, some, by_trl, head, **kwargs))
        entropies = [part.entropies for part in chunks if part.entropies is not None]
        aux_losses = [part.aux_loss for part in chunks if part.aux_loss is not None]
        values = [part.values for part in chunks if part.values is not None]
        return Scores(
            torch.cat([part.logps for part in chunks]),
            torch.cat(entropies) if entropies else None,
            torch.stack(aux_losses).mean() if aux_losses else None,
            torch.cat(values) if values else None,
        )

    def _scored(
        self,
        network: torch.nn.Module,
        rows: Sequences,
        by_trl: ByTRL,
        head: torch.nn.Module | None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
    ) -> Scores:
        """The scores of rows from one forward."""
        if not self.shares_prompts or compute_aux_loss:
            asked = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss}
            return self._by_trl(network, rows, by_trl, head, **asked)
        host = pack(rows.ids.cpu(), rows.mask.cpu(), rows.length)
        device = self._trainer.accelerator.device
        packed, heat = host.to(device), self._heat(rows, host)
        with (
            self._watched(_Forward(packed, heat, head)) as forward,
            self._trainer.accelerator.autocast(),
        ):
            logps, entropies = self._by_head(network, packed, compute_entropy)

        def by_row(tokens: torch.Tensor) -> torch.Tensor:
            return tokens.new_zeros(packed.scored.shape).masked_scatter(packed.scored, tokens)

        by_row_entropies = None if entropies is None else by_row(entropies)
        values = None if forward.values is None else by_row(forward.values)
        return Scores(by_row(logps), by_row_entropies, None, values)

    def _by_head(
        self, network: torch.nn.Module, packed: Packed, compute_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs ``(1, M)`` and entropies of the scored tokens.

        TRL's fused head computes logits in tiles of 32,768 columns, and again in the backward pass. A
        small vocabulary's logits fit into memory, and are computed once, by the model's own head.
        """
        given: dict[str, Any] = {
            "input_ids": packed.ids,
            "position_ids": packed.positions,
            "attention_mask": packed.mask,
            "shared_prompts": packed.layout,
        }
        if not self._is_small:
            output = network(**given, shift_labels=packed.labels, fused_lm_head=True)
            return output.log_probs, output.entropy if compute_entropy else None
        logits = network(**given, use_cache=False).logits.float() / self._trainer.temperature
        all_logps = logits.log_softmax(-1)  # (1, M, V)
        is_scored = packed.labels != _IGNORED
        labels = packed.labels.where(is_scored, 0).unsqueeze(-1)
        logps = all_logps.gather(-1, labels).squeeze(-1) * is_scored
        if not compute_entropy:
            return logps, None
        return logps, -(all_logps.exp() * all_logps).sum(-1) * is_scored

    def _by_trl(
        self,
        network: torch.nn.Module,
        rows: Sequences,
        by_trl: ByTRL,
        head: torch.nn.Module | None,
        **kwargs: Any,
    ) -> Scores:
        """The scores of rows by TRL's own method, each row whole."""
        device = self._trainer.accelerator.device
        ids, mask = (on_device(part, device) for part in rows[:2])
        with self._watched(_Forward(None, self._heat(rows, None), head)) as forward:
            scores = by_trl(network, ids, mask, rows.length, **kwargs)
        values = forward.values
        return Scores(*scores, None if values is None else values[:, -rows.length - 1 : -1])

    def _heat(self, rows: Sequences, packed: Packed | None) -> torch.Tensor | None:
        """By what hidden states are multiplied; None where all rows have the trainer's temperature."""
        if rows.temperatures is None:
            return None
        device = self._trainer.accelerator.device
        factors = self._trainer.temperature / rows.temperatures  # (b,)
        if packed is None:
            return on_device(factors, device).view(-1, 1, 1)
        scored = packed.scored.to(factors.device)
        return on_device(factors.repeat_interleave(scored.sum(1)), device).view(1, -1, 1)

    @contextmanager
    def _watched(self, forward: _Forward) -> Iterator[_Forward]:
        self._forward = forward
        try:
            yield forward
        finally:
            self._forward = None

    def _on_hidden_states(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Keep the states that are scored, read values from them, and scale them by temperature.

        Values are read during the forward, when sharded weights are gathered.
        """
        if (forward := self._forward) is None:
            return
        states = output.last_hidden_state  # (b, T, D), or (1, N, D) in one row
        if forward.packed is not None:
            states = states[0].index_select(0, forward.packed.before).unsqueeze(0)  # (1, M, D)
        if (head := forward.head) is not None:
            weights = next(head.parameters())
            values = head(states.to(weights.dtype)).squeeze(-1).float()
            forward.values = values if forward.packed is None else values[0]
        if forward.heat is not None:
            states = states * forward.heat.to(states.dtype)
        output.last_hidden_state = states


def obstacle(trainer: Step) -> str | None:
    """Why a trainer's networks cannot share prompts, as the start of a sentence; None if they can."""
    for network in trainer.networks():
        model = language_model(network)
        name, attends_by = type(model).__name__, attention_of(model)
        layers = DynamicCache(config=model.config.get_text_config()).layers
        reasons = {
            "this has not been tried with DeepSpeed": trainer.is_deepspeed_enabled,
            f"{name} has its own attention": attends_by is None
            or not model._can_set_attn_implementation(),
            f"the attention is {attends_by!r}, not 'sdpa'": attends_by not in ("sdpa", ATTENTION),
            f"{name} has layers that do not attend to all earlier tokens": any(
                type(layer) is not DynamicLayer for layer in layers
            ),
            "the adapters add tokens to the prompts": adds_tokens(network),
            "the routers' loss counts the tokens of whole rows": trainer.aux_loss_enabled,
            "transformers' continuous batching changes the attention": (
                trainer.args.use_transformers_continuous_batching
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                return reason
    return None


def attention_of(network: Any) -> str | None:
    """Which of transformers' attentions a network calls; None for one of its own."""
    return network.config._attn_implementation if network._supports_attention_backend else None
