"""The decoder of training, held-out evaluation, suites and games: one loop, one token per row and step.

Each distinct prompt goes through the network once, and its rows share the result. Keys and values are
written into a cache of fixed size. Rows that have ended are dropped from the batch.

A row ends at an end of text or at its largest length, not when its answer is complete. A model may go
on after a complete answer, and that must show. To stop early would also change the distribution that
is sampled.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.pytorch_utils import Conv1D

from ..common.errors import RookWorldError
from ..tasks.task import Sampling
from .gpt2 import position_ids_from_mask

ANSWER_TOKENS = 160  # the longest answer; one of the policy task has up to 144 tokens of GPT-2's
_FEW_ROWS = 16  # up to this many rows, a step takes a GPU as long as for one row


# --------------------------------------------------------------------------------------------------
# Texts
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen.

    Args:
        name: Its name in results.
        temperature: 0 takes the most likely token.
        top_k: Choose among this many of the most likely tokens; 0 for all.
        top_p: Choose among the most likely tokens that have this probability together.
        seed: Decides, together with the prompt, what is drawn.
    """

    name: str
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Its settings; greedy decoding has only its name."""
        return asdict(self) if self.temperature else {"name": self.name}


GREEDY = Decoding("greedy")
PLAIN = Decoding("sampled", temperature=1.0)  # from the model's own distribution
ROOKWORLD = Decoding("sampled", temperature=0.6, top_k=5)  # as in RookWorld's own scripts


def complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], **how: Any
) -> list[str]:
    """Decode one completion for each prompt, without special tokens.

    Args:
        model: In evaluation mode or without dropout.
        tokenizer: Its pad token may be its end-of-text token.
        prompts: `N` texts.
        how: See `complete_ids`.

    Returns:
        `N` texts in the order of `prompts`.
    """
    ids = complete_ids(model, tokenizer, prompts, **how)
    texts: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def complete_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    decoding: Decoding = GREEDY,
    batch_size: int = 64,
    by_generate: bool = False,
    progress: Callable[[int], object] | None = None,
) -> list[list[int]]:
    """The token ids of one completion for each prompt, with the end of text that ended it.

    In fp32 a completion, greedy or sampled, does not depend on its batch or on its place in the batch.
    A prompt that appears several times is sampled anew each time.

    Args:
        model: In evaluation mode or without dropout.
        tokenizer: Its pad token may be its end-of-text token.
        prompts: `N` texts.
        max_new_tokens: Largest number of tokens in a completion; less if the model has fewer positions.
        decoding: How tokens are chosen.
        batch_size: Prompts decoded at once.
        by_generate: See `decode`.
        progress: Called with the number of prompts of each batch that is done.

    Raises:
        RookWorldError: A prompt fills the model's table of positions.
    """
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    lengths = [min(max_new_tokens, _room(model, len(tokens))) for tokens in encoded]
    how = (decoding.temperature, decoding.top_p, decoding.top_k)
    options = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return decode(
        model,
        encoded,
        [Sampling(*how, length) for length in lengths],
        options,
        by_generate=by_generate,
        seeds=_seeds(prompts, decoding.seed) if decoding.temperature else None,
        batch_size=batch_size,
        progress=progress,
    ).ids


def _room(model: PreTrainedModel, prompt_tokens: int) -> int:
    """How many tokens fit after a prompt."""
    positions = getattr(model.config, "n_positions", None)
    if positions is None:
        return 1 << 30
    if prompt_tokens >= positions:
        raise RookWorldError(
            f"a prompt of {prompt_tokens} tokens leaves no room in the model's {positions} positions; "
            "give another model, or leave such prompts out"
        )
    return int(positions) - prompt_tokens


def _seeds(prompts: Sequence[str], seed: int) -> list[int]:
    """A seed for each prompt; one that appears again has another."""
    seen: Counter[str] = Counter()
    seeds = []
    for prompt in prompts:
        again = f" {seen[prompt]}" if seen[prompt] else ""
        seeds.append(_number(f"{seed}{again} {prompt}"))
        seen[prompt] += 1
    return seeds


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def pad_rows(
    rows: Sequence[Sequence[int]], pad_token_id: int, side: str = "left"
) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, ``(B, T)`` each, padded on a side.

    The mask follows from the rows' lengths: a real token with the pad token's id counts as text.
    """
    tokens = [torch.tensor(row, dtype=torch.long) for row in rows]
    ones = [torch.ones_like(row) for row in tokens]
    pad = partial(pad_sequence, batch_first=True, padding_side=side)
    return {"input_ids": pad(tokens, padding_value=pad_token_id), "attention_mask": pad(ones)}


# --------------------------------------------------------------------------------------------------
# Tokens: the loop
# --------------------------------------------------------------------------------------------------
class Drawn(NamedTuple):
    """Completions, one list per row; the end of text that ended a row is part of it."""

    ids: list[list[int]]
    logps: list[list[float]] | None  # nats, at the row's temperature, before top-k and top-p


@torch.no_grad()
def decode(
    network: Any,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Sampling],
    options: GenerationConfig,
    *,
    by_generate: bool = False,
    seeds: Sequence[int] | None = None,
    keep_logps: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Drawn:
    """Draw one completion per prompt, each with its own settings.

    GPT-2 is computed from its weights, other models by transformers' modules. Autocast applies if it is
    on.

    Args:
        network: A causal language model, adapters included.
        prompts: Token ids of `N` prompts; equal prompts of a batch are read once.
        rows: How each row is drawn. Temperature 0 takes the likeliest token; a length of None is
            ``options.max_new_tokens``.
        options: The loop reads only `max_new_tokens`, `pad_token_id` and `eos_token_id`.
        by_generate: Use transformers' `generate` instead of this loop. Weights that each forward gathers
            need it, because all processes must gather them equally often, and so do `options` that the
            loop does not read. Models that `only_generate` names always use it.
        seeds: The seed of each row's own stream of noise; None draws from the device's global generator.
        keep_logps: Whether to return log-probs.
        batch_size: Rows decoded at once; None for all.
        progress: Called with the number of rows of each batch that is done.

    Raises:
        RookWorldError: The model's scores are not numbers.
    """
    drawn: dict[int, tuple[list[int], list[float]]] = {}
    by_generate = by_generate or only_generate(network)
    draw = _generate_batch if by_generate else _decode_batch
    lengths = [row.max_completion_length or options.max_new_tokens for row in rows]
    # `generate` goes on with rows that have ended, even past the end of a table of positions.
    apart = lengths if by_generate and batch_size else [0] * len(prompts)
    for places in _batches(prompts, apart, batch_size or len(prompts)):
        noise = None if seeds is None else [seeds[place] for place in places]
        chooser = Chooser([rows[place] for place in places], network.device, noise, keep_logps)
        texts, longest = [prompts[place] for place in places], [lengths[place] for place in places]
        found = draw(network, texts, chooser, longest, options)
        logps = found.logps or [[] for _ in places]
        drawn |= dict(zip(places, zip(found.ids, logps, strict=True), strict=True))
        if progress is not None:
            progress(len(places))
    in_order = [drawn[place] for place in range(len(prompts))]
    return Drawn(
        [ids for ids, _ in in_order], [logps for _, logps in in_order] if keep_logps else None
    )


def adds_tokens(network: Any) -> bool:
    """Whether a network has adapters that put tokens before each text, such as prompt tuning."""
    adapters = getattr(network, "peft_config", {}).values()
    return any(adapter.is_prompt_learning for adapter in adapters)


def only_generate(network: Any) -> bool:
    """Whether only transformers' `generate` decodes a network.

    It does with adapters that add tokens, where rows cannot be picked out of a cache of keys and values,
    as with Mamba's states, and where layers are spread over several devices.
    """
    base = _base(network)
    if len(set(getattr(base, "hf_device_map", {}).values())) > 1:
        return True
    if adds_tokens(network) or "past_key_values" not in _parameters(base):
        return True
    layers = DynamicCache(config=base.config.get_text_config()).layers
    return not all(hasattr(layer, "batch_select_indices") for layer in layers)


def _base(network: Any) -> Any:
    return network.get_base_model() if hasattr(network, "peft_config") else network


def _parameters(model: Any) -> Mapping[str, Any]:
    return inspect.signature(type(model).forward).parameters


def _batches(
    prompts: Sequence[Sequence[int]], apart: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Indices in batches: prompts of similar length, equal ones together, one value of `apart` each."""

    def key(place: int) -> tuple[int, int, Sequence[int]]:
        return apart[place], len(prompts[place]), prompts[place]

    for _, group in itertools.groupby(sorted(range(len(prompts)), key=key), lambda p: apart[p]):
        waiting = list(group)
        for start in range(0, len(waiting), size):
            yield waiting[start : start + size]


def _decode_batch(
    network: Any,
    prompts: Sequence[Sequence[int]],
    chooser: Chooser,
    lengths: Sequence[int],
    options: GenerationConfig,
) -> Drawn:
    device, count, longest = network.device, len(prompts), max(lengths)
    logits, steps = _read(network, prompts, lengths, options.pad_token_id)
    ends = torch.tensor(_ends(options), device=device)
    bounds = torch.tensor(lengths, device=device)
    tokens = torch.zeros(count, longest, dtype=torch.long, device=device)
    logps = torch.zeros(count, longest, device=device) if chooser.keep_logps else None
    used = torch.zeros(count, dtype=torch.long, device=device)
    live = torch.arange(count, device=device)  # (n,): the row in each slot
    for step in range(longest):
        drawn, of_drawn = chooser(logits)  # (n,)
        tokens[live, step] = drawn
        if logps is not None and of_drawn is not None:
            logps[live, step] = of_drawn
        over = torch.isin(drawn, ends) | (bounds[live] <= step + 1)
        used[live] = torch.where((used[live] == 0) & over, step + 1, used[live])
        over = used[live] > 0
        left = len(live) - int(over.sum())
        if left == 0:
            break
        if left <= len(live) * steps.crowd:
            slots = _closed_up(over, left)
            live, drawn = live[slots], drawn[slots]
            chooser.keep(slots)
            steps.keep(slots)
        logits = steps(drawn)
    sizes = used.tolist()
    ids = [row[:size] for row, size in zip(tokens.tolist(), sizes, strict=True)]
    if logps is None:
        return Drawn(ids, None)
    return Drawn(ids, [row[:size] for row, size in zip(logps.tolist(), sizes, strict=True)])


def _ends(options: GenerationConfig) -> list[int]:
    ends = options.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or [])


def _closed_up(over: torch.Tensor, left: int) -> torch.Tensor:
    """The slot whose row moves into each of the first `left` slots: the last rows fill the gaps.

    Args:
        over: ``(n,)``, whether a slot's row has ended.
        left: How many rows have not ended.
    """
    slots = torch.arange(left, device=over.device)
    live = (~over).nonzero().flatten()
    slots[over[:left]] = live[live >= left]
    return slots


# --------------------------------------------------------------------------------------------------
# Choosing
# --------------------------------------------------------------------------------------------------
class Chooser:
    """Draws one token per row, with temperature, top-k and top-p as transformers' warpers apply them.

    Args:
        rows: How each of the `B` rows is drawn; temperature 0 takes the likeliest token.
        device: The device of the logits.
        seeds: The seed of each row's own noise; None draws from the device's global generator.
        keep_logps: Whether to return the log-probs of the drawn tokens.
    """

    def __init__(
        self,
        rows: Sequence[Sampling],
        device: torch.device,
        seeds: Sequence[int] | None = None,
        keep_logps: bool = False,
    ) -> None:
        def column(values: list[Any]) -> torch.Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)  # (B, 1)

        self.keep_logps = keep_logps
        self._temperature = column([float(row.temperature) or 1.0 for row in rows])
        self._top_p = column([float(row.top_p) for row in rows])
        self._top_k = column([row.top_k for row in rows])
        self._greedy = column([not row.temperature for row in rows])
        self._draws = any(row.temperature for row in rows)
        self._has_greedy = not all(row.temperature for row in rows)
        self._most_k = max(row.top_k for row in rows)
        self._has_top_p = any(row.top_p < 1 for row in rows)
        self._streams = None if seeds is None else [torch.Generator().manual_seed(s) for s in seeds]

    def keep(self, slots: torch.Tensor) -> None:
        """Go on with the rows in some slots ``(n,)``, in that order."""
        for name in ("_temperature", "_top_p", "_top_k", "_greedy"):
            setattr(self, name, getattr(self, name)[slots])
        if self._streams is not None:
            self._streams = [self._streams[slot] for slot in slots.tolist()]

    @property
    def needs_draw(self) -> bool:
        """Whether tokens must be drawn from the scores; otherwise the largest score is the draw."""
        return self._draws and self._streams is None

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens ``(B,)`` drawn from logits ``(B, V)``, and their log-probs, or None."""
        if not (self._draws or self.keep_logps):
            return logits.argmax(-1), None
        scores = self.scaled(logits)
        chances = self.noisy(self.cut(scores))
        drawn = _inverted(chances) if self.needs_draw else chances.argmax(-1)
        if not self.keep_logps:
            return drawn, None
        return drawn, scores.log_softmax(-1).gather(1, drawn.unsqueeze(1)).squeeze(1)

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits ``(B, V)`` divided by each row's temperature."""
        return logits.float() / self._temperature

    def cut(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, V)``, -inf for tokens that top-k, top-p or temperature 0 leave out."""
        size = scores.size(1)
        if self._has_greedy:  # keep the first of equal scores, as `argmax` does
            others = torch.ones_like(scores, dtype=torch.bool)
            others.scatter_(1, scores.argmax(1, keepdim=True), False)
            scores = scores.masked_fill(others & self._greedy, -torch.inf)
        if self._most_k:
            top = scores.topk(min(self._most_k, size)).values
            least = top.gather(1, self._top_k.clamp(1, size) - 1)  # (B, 1)
            scores = scores.masked_fill((self._top_k > 0) & (scores < least), -torch.inf)
        if not self._has_top_p:
            return scores
        probs, cuts = scores.softmax(-1), self._top_p < 1
        # All tokens below this bound together have less than 1 - top-p, so they are left out anyway and
        # need not be sorted.
        likely = (probs > (1 - self._top_p) / size) & cuts
        top, order = probs.topk(max(1, int(likely.sum(1).max())))  # (B, K)
        inside = top.cumsum(-1) - top < self._top_p
        inside[:, 0] = True  # the likeliest token always stays
        outside = torch.ones_like(likely).scatter(1, order, ~inside)
        return scores.masked_fill(outside & cuts, -torch.inf)

    def noisy(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, V)`` plus noise from the rows' streams; the largest sum is then a draw."""
        if not self._draws or self._streams is None:
            return scores
        return scores + _gumbel(self._streams, scores)


def _inverted(scores: torch.Tensor) -> torch.Tensor:
    """Tokens ``(B,)`` drawn from the softmax of scores ``(B, V)`` by inverting the cumulative sum.

    `multinomial` draws a number for every token of the vocabulary and takes ten times as long.
    """
    sums = scores.softmax(-1).cumsum(-1, dtype=_double(scores))  # (B, V)
    total = sums[:, -1:]
    if not total.isfinite().all():
        raise RookWorldError(
            "the model's scores are not numbers, so nothing can be sampled; its weights are broken: "
            "go back to a checkpoint, and lower the learning rate"
        )
    level = (1 - torch.rand_like(total)) * total  # above 0, so no token of probability 0 is drawn
    return torch.searchsorted(sums, level).squeeze(1)


def _double(scores: torch.Tensor) -> torch.dtype:
    return torch.float32 if scores.device.type == "mps" else torch.float64


def _gumbel(streams: Sequence[torch.Generator], scores: torch.Tensor) -> torch.Tensor:
    """Gumbel noise ``(B, V)`` from each row's own stream: the argmax of scores plus noise is a draw.

    Rounding hardly ever changes such a draw, unlike one from a cumulative sum. A row's tokens
    therefore do not depend on its batch or on its place in the batch.

    Source: C. J. Maddison, D. Tarlow and T. Minka, "A* Sampling", NeurIPS 2014, section 2.
    """
    uniform = torch.stack([torch.rand(scores.size(1), generator=stream) for stream in streams])
    return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-7))).to(scores.device)


# --------------------------------------------------------------------------------------------------
# Steps: logits of the next token, from a cache of fixed size
# --------------------------------------------------------------------------------------------------
class _Steps(Protocol):
    crowd: float  # rows that have ended are dropped once at most this share is live

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``(n, V)`` of the next token, given the rows' last tokens ``(n,)``."""

    def keep(self, slots: torch.Tensor) -> None:
        """Go on with the rows in some slots; a row keeps its slot or moves to an earlier one."""


def _read(
    network: Any, prompts: Sequence[Sequence[int]], lengths: Sequence[int], pad_token_id: int
) -> tuple[torch.Tensor, _Steps]:
    """Read each distinct prompt once: logits ``(B, V)`` of the first tokens, and the steps to come."""
    found = {tuple(prompt): None for prompt in prompts}
    number = {prompt: index for index, prompt in enumerate(found)}
    distinct = torch.tensor([number[tuple(prompt)] for prompt in prompts], device=network.device)
    batch = pad_rows(list(found), pad_token_id)
    ids, mask = (batch[key].to(network.device) for key in ("input_ids", "attention_mask"))
    past = Past(mask[distinct], lengths)
    first = _forward(network, ids, mask, position_ids_from_mask(mask), None)
    model = _known(network)
    make = partial(_ModuleSteps, network) if model is None else partial(_GPT2Steps, model)
    return first.logits[:, -1][distinct], make(first.past_key_values, distinct, past)


def _forward(
    network: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    cache: Cache | None,
) -> Any:
    """Transformers' own forward of tokens ``(B, T)``, with logits after the last of them."""
    known = _parameters(_base(network))
    options = {"position_ids": positions, "logits_to_keep": 1}
    return network(
        input_ids=ids,
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
        **{name: value for name, value in options.items() if name in known},
    )


class Past:
    """Which places of the cache belong to the rows' texts.

    Args:
        mask: ``(B, T)``, 1 for prompts, which are padded on the left.
        lengths: The largest number of tokens in each row's completion.

    Attributes:
        seen: ``(B, M)``, True where a row has text, for all places that will ever be used.
        positions: ``(B,)``, the positions of the next tokens.
        width: The number of places in use.
    """

    def __init__(self, mask: torch.Tensor, lengths: Sequence[int]) -> None:
        self.width = mask.size(1)
        self.seen = functional.pad(mask.bool(), (0, max(lengths)))
        self.positions = mask.sum(1)
        self._last = self.positions + torch.tensor(lengths, device=mask.device) - 1

    def grow(self) -> None:
        """Make room for one token per row."""
        self.seen[:, self.width] = True
        self.width += 1

    def advance(self) -> None:
        """Move on by one position, in place; rows that have reached their length stay where they are.

        They are computed until the next `keep`, but the table of positions may end there.
        """
        torch.minimum(self.positions + 1, self._last, out=self.positions)

    def keep(self, slots: torch.Tensor) -> None:
        """Go on with the rows in some slots."""
        self.seen, self.positions = self.seen[slots], self.positions[slots]
        self._last = self._last[slots]


class _FixedLayer(DynamicLayer):
    """A layer of transformers' cache with room for all tokens to come, which are written in place."""

    def __init__(self, layer: DynamicLayer, room: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self._room = [functional.pad(part, (0, 0, 0, room)) for part in (layer.keys, layer.values)]
        self._show(layer.keys.size(2))

    def _show(self, width: int) -> None:
        self.keys, self.values = (part[:, :, :width] for part in self._room)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.keys.size(2)
        self._show(start + key_states.size(2))
        self.keys[:, :, start:] = key_states
        self.values[:, :, start:] = value_states
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._room = [part[indices] for part in self._room]
        self._show(self.keys.size(2))


class _ModuleSteps:
    """Steps of any causal language model, by transformers' modules and classes of cache."""

    crowd = 0.75

    def __init__(self, network: Any, cache: Any, distinct: torch.Tensor, past: Past) -> None:
        self._network, self._cache, self._past = network, cache, past
        cache.batch_select_indices(distinct)
        room = past.seen.size(1) - past.width
        cache.layers = [
            _FixedLayer(layer, room) if type(layer) is DynamicLayer else layer
            for layer in cache.layers
        ]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        past = self._past
        past.grow()
        mask = past.seen[:, : past.width].long()
        positions = past.positions.unsqueeze(1)
        found = _forward(self._network, tokens.unsqueeze(1), mask, positions, self._cache)
        past.advance()
        logits: torch.Tensor = found.logits[:, -1]
        return logits

    def keep(self, slots: torch.Tensor) -> None:
        self._cache.batch_select_indices(slots)
        self._past.keep(slots)


def _known(network: Any) -> GPT2LMHeadModel | None:
    """The GPT-2 that `_GPT2Steps` can compute; None for other models and for changed ones."""
    model = _base(network)
    if type(model) is not GPT2LMHeadModel:
        return None
    parts = (part for block in model.transformer.h for part in (block, block.attn, block.mlp))
    if any(map(_is_changed, parts)):  # the steps would not run their hooks
        return None
    config = model.config
    return None if config.add_cross_attention or config.reorder_and_upcast_attn else model


class _GPT2Steps:
    """Steps of GPT-2 from its weights: its operations are small, and modules take most of the time.

    Linear layers with adapters or hooks are called as modules.
    """

    def __init__(
        self, model: GPT2LMHeadModel, cache: Any, distinct: torch.Tensor, past: Past
    ) -> None:
        body = model.transformer
        self._past = past
        self._embed, self._embed_position = body.wte, body.wpe
        self._layers = [_Layer(block) for block in body.h]
        self._norm, self._head = body.ln_f, _linear(model.lm_head)
        # On a GPU a step is a graph of constant shapes, over the whole cache. Elsewhere only the places
        # in use are computed, and the others are not touched.
        self._is_whole = past.seen.is_cuda
        keys = cache.layers[0].keys
        make = keys.new_zeros if self._is_whole else keys.new_empty
        shape = (2, len(distinct), keys.size(1), past.seen.size(1), keys.size(3))
        self._cache = [make(shape) for _ in self._layers]  # keys and values: (2, B, H, M, D) each
        for ours, theirs in zip(self._cache, cache.layers, strict=True):
            ours[0, :, :, : past.width] = theirs.keys[distinct]
            ours[1, :, :, : past.width] = theirs.values[distinct]
        functions = [self._head, *(part for layer in self._layers for part in layer.functions)]
        modules = any(isinstance(function, torch.nn.Module) for function in functions)
        self._is_captured = self._is_whole and not modules
        self._resize(len(distinct))

    def _resize(self, count: int) -> None:
        self.crowd = 0.75
        if self._is_whole:  # each size needs a graph of its own
            self.crowd = 0.5 if count > _FEW_ROWS else 0.0
        heads = self._cache[0].size(2)
        self._views = [layer[:, :count] for layer in self._cache]  # (2, n, H, M, D)
        self._seen = self._past.seen[:, None, None]  # (n, 1, 1, M)
        seen = self._seen.expand(-1, heads, -1, -1).flatten(0, 1)  # (n*H, 1, M)
        self._bias = torch.zeros_like(seen, dtype=self._cache[0].dtype)
        self._bias[..., : self._past.width].masked_fill_(~seen[..., : self._past.width], -torch.inf)
        self._tokens = torch.zeros(count, dtype=torch.long, device=seen.device)
        self._at = torch.zeros(1, dtype=torch.long, device=seen.device)
        self._graph: Any = None

    def keep(self, slots: torch.Tensor) -> None:
        moved = (slots != torch.arange(len(slots), device=slots.device)).nonzero().flatten()
        for layer in self._cache:
            used = layer[..., : self._past.width, :]
            used[:, moved] = used[:, slots[moved]]
        self._past.keep(slots)
        self._resize(len(slots))

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        past = self._past
        self._at.fill_(past.width)
        past.grow()
        self._tokens.copy_(tokens)
        logits = self._captured() if self._is_captured else self._logits()
        past.advance()
        return logits

    def _captured(self) -> torch.Tensor:
        """The logits from a CUDA graph for this number of rows: one launch per token, not hundreds."""
        with torch.cuda.device(self._tokens.device):
            if self._graph is None:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    self._logits()  # libraries set things up in a first call, not to be captured
                torch.cuda.current_stream().wait_stream(side)
                self._graph = torch.cuda.CUDAGraph()
                # What other threads do on the GPU at this time must not end the capture. Without
                # `stream`, torch uses one of the first device that captured.
                with torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                    self._output = self._logits()
            self._graph.replay()
        return self._output

    def _logits(self) -> torch.Tensor:
        """Logits ``(n, V)``, from tensors whose addresses do not change."""
        states = self._embed(self._tokens) + self._embed_position(self._past.positions)  # (n, E)
        for layer, cache in zip(self._layers, self._views, strict=True):
            mixed = layer.mix(layer.norm_1(states)).unflatten(1, (3, cache.size(2), -1))
            attended = self._attend(mixed, cache, layer.scaling).flatten(1)
            states = states + layer.project(attended)
            states = states + layer.down(layer.act(layer.up(layer.norm_2(states))))
        logits: torch.Tensor = self._head(self._norm(states))
        return logits

    def _attend(self, mixed: torch.Tensor, cache: torch.Tensor, scaling: float) -> torch.Tensor:
        """The result of attention ``(n, H, D)``; the new keys and values are put into the cache.

        Args:
            mixed: ``(n, 3, H, D)``: queries, keys, values.
            cache: ``(2, n, H, M, D)``, the layer's keys and values.
            scaling: The factor of the products of queries and keys.
        """
        latest = mixed[:, 1:].transpose(0, 1)  # (2, n, H, D)
        if self._is_whole:
            cache.index_copy_(3, self._at, latest.unsqueeze(3).to(cache.dtype))
            attended = functional.scaled_dot_product_attention(
                mixed[:, 0].unsqueeze(2).to(cache.dtype),
                cache[0],
                cache[1],
                attn_mask=self._seen,
                scale=scaling,
            )
            return attended.squeeze(2)
        width = self._past.width
        cache[:, :, :, width - 1] = latest
        keys, values = (part.flatten(0, 1)[:, :width] for part in cache)  # (n*H, T, D)
        queries = mixed[:, 0].reshape(-1, 1, mixed.size(3)).to(keys.dtype)
        weights = torch.baddbmm(
            self._bias[..., :width], queries, keys.transpose(1, 2), alpha=scaling
        )
        weights = weights.float().softmax(-1).to(values.dtype)  # (n*H, 1, T)
        return torch.bmm(weights, values).view(mixed.size(0), *mixed.shape[2:])


class _Layer:
    """A block of GPT-2, with its linear layers as functions of ``(n, E)``."""

    def __init__(self, block: Any) -> None:
        self.norm_1, self.norm_2 = block.ln_1, block.ln_2
        self.mix, self.project = _linear(block.attn.c_attn), _linear(block.attn.c_proj)
        self.up, self.down = _linear(block.mlp.c_fc), _linear(block.mlp.c_proj)
        self.functions = (self.mix, self.project, self.up, self.down)
        self.act, self.scaling = block.mlp.act, block.attn.scaling


def _is_changed(module: Any) -> bool:
    """Whether a module computes more than its class does: it has hooks, or another forward."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def _linear(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear layer as a function; under autocast its weights are cast once, not at every token."""
    if _is_changed(module) or type(module) not in (Conv1D, torch.nn.Linear):
        return module  # type: ignore[no-any-return]
    weight, bias = module.weight, module.bias
    kind = weight.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if type(module) is Conv1D:
        return lambda states: torch.addmm(bias, states, weight)
    return partial(functional.linear, weight=weight, bias=bias)


# --------------------------------------------------------------------------------------------------
# transformers' own loop
# --------------------------------------------------------------------------------------------------
class _Processor(LogitsProcessor):
    """A `Chooser` for `generate`: divides logits by temperatures, cuts them, and adds noise."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self._last: torch.Tensor | None = None  # (B, V)
        self._drawn: list[torch.Tensor] = []  # (B,) each

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, V)`` for the next token after ``(B, T)``."""
        self._take(input_ids[:, -1])
        scores = self.chooser.scaled(scores)
        if self.chooser.keep_logps:
            self._last = scores.log_softmax(-1)
        return self.chooser.noisy(self.chooser.cut(scores))

    def logps(self, last: torch.Tensor) -> list[list[float]]:
        """Log-probs of all drawn tokens, `C` per row; `last` ``(B,)`` is the last of them."""
        self._take(last)
        found: list[list[float]] = torch.stack(self._drawn, dim=1).tolist()
        return found

    def _take(self, drawn: torch.Tensor) -> None:
        if self._last is not None:
            self._drawn.append(self._last.gather(1, drawn.unsqueeze(1)).squeeze(1))
            self._last = None


class _RowLength(StoppingCriteria):
    """Ends each row at its own number of new tokens.

    Args:
        longest: The largest number of new tokens, by row.
        width: Tokens in the padded prompts.
    """

    def __init__(self, longest: Sequence[int], width: int) -> None:
        self.longest = torch.tensor(longest)
        self.width = width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Which rows ``(B,)`` have reached their length after ``(B, T)`` tokens."""
        return (self.longest <= input_ids.size(1) - self.width).to(input_ids.device)


def _generate_batch(
    network: Any,
    prompts: Sequence[Sequence[int]],
    chooser: Chooser,
    lengths: Sequence[int],
    options: GenerationConfig,
) -> Drawn:
    batch = pad_rows(prompts, options.pad_token_id)
    batch = {key: tensor.to(network.device) for key, tensor in batch.items()}
    width = batch["input_ids"].size(1)
    options = copy.deepcopy(options)
    options.temperature, options.top_p, options.top_k = 1.0, 1.0, 0  # the rows have their own
    if options.do_sample is None:
        options.do_sample = chooser.needs_draw
    options.max_new_tokens = max(lengths)
    processor = _Processor(chooser)
    output = network.generate(
        **batch,
        generation_config=options,
        logits_processor=LogitsProcessorList([processor]),
        stopping_criteria=StoppingCriteriaList([_RowLength(lengths, width)]),
    )
    completions = output[:, width:]  # (B, C)
    is_end = torch.isin(completions, torch.tensor(_ends(options), device=completions.device))
    first = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, completions.size(1))
    sizes = [min(size, bound) for size, bound in zip(first.tolist(), lengths, strict=True)]
    ids = [row[:size] for row, size in zip(completions.tolist(), sizes, strict=True)]
    if not chooser.keep_logps:
        return Drawn(ids, None)
    logps = processor.logps(completions[:, -1])
    return Drawn(ids, [row[:size] for row, size in zip(logps, sizes, strict=True)])
