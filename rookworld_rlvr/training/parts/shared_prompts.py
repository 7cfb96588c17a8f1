"""Log-probs from one forward in which completions of the same prompt share it.

The completions of a group have the same prompt. TRL sends it through the network once per completion,
and pads every row. Here, one forward takes all tokens as a single row without padding:

1. each distinct prompt once, without its last token;
2. for each completion, the last token of its prompt and the completion without its last token.

Attention is the only layer that mixes tokens, and transformers lets us register our own. It attends to
each prompt and each completion separately: a prompt sees itself, a completion sees its prompt and
itself.

For the network this is an ordinary forward, so wrappers, adapters and checkpointing work as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .part import Call, Part, Rows, Scores
from .sampling import backbone

_IGNORED = -100  # the label of a token that is not scored
_MULTIPLE = 8  # of keys, for GPUs' kernels


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


# This holds for the whole process; forwards without a layout are computed as before.
AttentionInterface.register("sdpa", attention)


# --------------------------------------------------------------------------------------------------
# Tokens in one row
# --------------------------------------------------------------------------------------------------
class Packed(NamedTuple):
    """A batch of `b` rows as one row of `N` tokens; the last `length` tokens of each are scored."""

    ids: torch.Tensor  # (1, N)
    positions: torch.Tensor  # (1, N)
    mask: torch.Tensor  # (B, 1, C, P + C), what completions attend to
    layout: Layout
    rows: torch.Tensor  # (b, length + 1), places of the tokens before the scored ones
    scored: torch.Tensor  # (b, length), which tokens are scored
    labels: torch.Tensor  # (1, M), the `M` scored tokens


def distinct_rows(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct rows ``(G, T)`` of ``(B, T)``, padded with -1, and the index of each row in them."""
    if not ids.size(1):  # `unique` fails
        return ids[:1], ids.new_zeros(ids.size(0))
    distinct, index = ids.masked_fill(~mask.bool(), -1).unique(dim=0, return_inverse=True)
    return distinct, index


def pack(ids: torch.Tensor, mask: torch.Tensor, length: int) -> Packed:
    """Pack rows ``(b, T)``, prompts padded on the left; rows without a completion are left out.

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
    rows = places.new_zeros(ids.size(0), length + 1)
    rows[active, :longest] = of_completions
    return Packed(
        tokens.unsqueeze(0),
        positions.unsqueeze(0),
        torch.cat(seen, dim=2).unsqueeze(1),
        layout,
        rows,
        scored,
        ids[:, -length:].masked_fill(~kept, _IGNORED)[scored].unsqueeze(0),
    )


def groups_together(batches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Reorder the rows of micro-batches so that completions of the same prompt follow one another.

    TRL shuffles the rows of a generation before it splits them into micro-batches, which scatters the
    groups. Prompts keep the shuffled order of their first rows. The number of micro-batches stays.
    """
    if len(batches) == 1:
        return list(batches)
    whole: dict[str, Any] = {}
    for key, value in batches[0].items():
        if isinstance(value, list):
            whole[key] = [item for batch in batches for item in batch[key]]
        elif torch.is_tensor(value) and value.dim():
            whole[key] = torch.cat([batch[key] for batch in batches])
    _, prompt_of = distinct_rows(whole["prompt_ids"], whole["prompt_mask"])
    prompts = list(dict.fromkeys(prompt_of.tolist()))  # in the order of their first rows
    turn = torch.tensor([prompts.index(prompt) for prompt in prompt_of.tolist()])
    order = turn.argsort(stable=True).to(prompt_of.device)

    def at(column: Any, rows: torch.Tensor) -> Any:
        return [column[row] for row in rows] if isinstance(column, list) else column[rows]

    return [
        {**batch, **{key: at(column, rows) for key, column in whole.items()}}
        for batch, rows in zip(batches, order.chunk(len(batches)), strict=True)
    ]


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class SharedPrompts(Part):
    """Scores rows with their prompts shared, and leaves out rows that cannot change the weights.

    Attributes:
        leaves_out_idle: Whether rows that cannot change the weights are left out of the update.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.leaves_out_idle = True
        self._packed: Packed | None = None  # of the current forward
        for network in trainer.networks():
            body = backbone(network)
            # The hooks of the value head and the temperatures run in between; they expect rows.
            body.register_forward_hook(self._to_rows, prepend=True)
            body.register_forward_hook(self._to_tokens)

    def together(self, batches: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return groups_together(batches)

    # --------------------------------------------------------------------------------------------
    # Scoring
    # --------------------------------------------------------------------------------------------
    def score(
        self, network: torch.nn.Module, rows: Rows, *, compute_entropy: bool = False, **kwargs: Any
    ) -> Scores | None:
        """See `Part`. Rows with images and the like are left to TRL."""
        if any(given is not None and given is not False for given in kwargs.values()):
            return None
        packed = self._packed = pack(rows.ids, rows.mask, rows.length)
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

        def by_row(tokens: torch.Tensor) -> torch.Tensor:
            return tokens.new_zeros(packed.scored.shape).masked_scatter(packed.scored, tokens)

        entropies = by_row(output.entropy) if compute_entropy else None
        return Scores(by_row(output.log_probs), entropies, None)

    def _to_rows(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Turn hidden states ``(1, N, D)`` into ``(b, length + 1, D)``, as whole rows have them."""
        if self._packed is not None:
            rows = self._packed.rows
            states = output.last_hidden_state[0].index_select(0, rows.flatten())
            output.last_hidden_state = states.unflatten(0, rows.shape)

    def _to_tokens(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Keep only the hidden states that are scored, ``(1, M, D)`` of ``(b, length + 1, D)``."""
        if self._packed is not None:
            output.last_hidden_state = output.last_hidden_state[:, :-1][self._packed.scored][None]

    # --------------------------------------------------------------------------------------------
    # Rows that need not be scored
    # --------------------------------------------------------------------------------------------
    def before_scoring(self, call: Call, rows: Rows) -> Rows:
        """Take the completions of idle rows out."""
        call.idle = None if call.inputs is None else self.idle(call.inputs)
        if call.idle is None:
            return rows
        mask = rows.mask.clone()
        mask[call.idle, -rows.length :] = 0
        return rows._replace(mask=mask)

    def after_scoring(self, call: Call, rows: Rows, scores: Scores) -> Scores:
        """Give idle rows the log-probs before the update, so that their ratio is 1; where these are not
        computed, TRL's is 1 anyway. Their advantage is 0: they add nothing to the loss."""
        old = None if call.inputs is None else call.inputs.get("old_per_token_logps")
        if call.idle is None or old is None:
            return scores
        known = torch.where(call.idle.unsqueeze(1), old.to(scores.logps.dtype), scores.logps)
        return scores._replace(logps=known)

    def idle(self, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The rows ``(B,)`` of a micro-batch that cannot change the weights; None if there are none.

        If all rows are idle, the shortest is scored nevertheless: the loss needs a graph on every
        process.
        """
        trainer = self._trainer
        with_term = (p for p in trainer.parts.values() if type(p).term is not Part.term)
        needed = [part.scored(inputs) for part in with_term]
        moved_by_entropy = trainer.use_adaptive_entropy or trainer.entropy_coef != 0
        # With a quantile below 1, all rows decide which tokens count.
        all_count = moved_by_entropy or trainer.top_entropy_quantile < 1
        if not self.leaves_out_idle or all_count or any(rows is None for rows in needed):
            return None
        advantages = inputs["advantages"]
        rows: torch.Tensor = (advantages.view(advantages.size(0), -1) == 0).all(1)
        for others in needed:
            rows &= ~others.to(rows.device)
        if not rows.any():
            return None
        if rows.all():
            lengths = inputs["completion_mask"].sum(1)
            rows[lengths.where(lengths > 0, lengths.max() + 1).argmin()] = False
        return rows
