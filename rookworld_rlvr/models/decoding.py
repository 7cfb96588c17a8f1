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
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
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
from transformers.pytorch_utils import Conv1D

from ..common.errors import RookWorldError
from ..common.progress import Progress
from ..tasks.task import Sampling
from ..tasks.text import shown_text
from .gpt2 import position_ids_from_mask
from .loading import room_after

if TYPE_CHECKING:
    from .graphs import Graphs

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

ANSWER_TOKENS = 160  # the longest answer; a right one has up to 78 tokens of GPT-2's tokenizer
_CROWD = 0.75  # rows that have ended are dropped once at most this share is live


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
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Any], **how: Any
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
    # Of no rows, `batch_decode` makes one empty text.
    return tokenizer.batch_decode(ids, skip_special_tokens=True) if ids else []


def complete_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Any],
    *,
    encoded: Sequence[Sequence[int]] | None = None,
    max_new_tokens: int,
    decoding: Decoding = GREEDY,
    batch_size: int = 64,
    graphs: Graphs | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[list[int]]:
    """The token ids of one completion for each prompt, with the end of text that ended it.

    In fp32 a completion, greedy or sampled, does not depend on its batch or on its place in the batch.
    A prompt that appears several times is sampled anew each time.

    Args:
        model: In evaluation mode or without dropout.
        tokenizer: Its pad token may be its end-of-text token.
        prompts: `N` texts; or, with `encoded`, anything that tells one from another.
        encoded: The prompts' token ids; None lets the tokenizer find them.
        max_new_tokens: Largest number of tokens in a completion; less if the model has fewer positions.
        decoding: How tokens are chosen.
        batch_size: Prompts decoded at once.
        graphs: See `decode`.
        progress: Called with the number of prompts of each batch that is done.

    Raises:
        RookWorldError: A prompt fills the model's table of positions.
    """
    if encoded is None:
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    lengths = [room_after(model.config, len(tokens), max_new_tokens) for tokens in encoded]
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
        seeds=_seeds(prompts, decoding.seed) if decoding.temperature else None,
        batch_size=batch_size,
        graphs=graphs,
        progress=progress,
    ).ids


def _seeds(prompts: Sequence[Any], seed: int) -> list[int]:
    """A seed for each prompt; one that appears again has another."""
    seen: Counter[str] = Counter()
    seeds = []
    for prompt in map(shown_text, prompts):
        again = f" {seen[prompt]}" if seen[prompt] else ""
        digest = hashlib.sha256(f"{seed}{again} {prompt}".encode()).digest()
        seeds.append(int.from_bytes(digest[:8], "big") >> 1)
        seen[prompt] += 1
    return seeds


def shared(
    items: Sequence[Asked], answer: Callable[..., list[Answered]], title: str, each: int = 1
) -> list[Answered]:
    """Let every process answer a share of the items, such as prompts, and return all answers on each.

    All shares have the same size, so some items may be answered twice. Under FSDP all processes take
    part in each forward, and a process with one batch less would leave the others waiting.

    Args:
        items: `N` items, the same on every process.
        answer: Answers some of them, and calls `progress` with the number of completions of each batch.
        title: Of a progress bar.
        each: Completions per item.

    Returns:
        `N` answers.
    """
    state = PartialState()
    rank, world = state.process_index, state.num_processes
    share = [(rank + turn * world) % len(items) for turn in range(math.ceil(len(items) / world))]
    unit = "prompts" if each == 1 else "completions"
    with Progress(title, len(share) * each, unit) as progress:
        answers = answer([items[index] for index in share], progress=progress.update)
    if world == 1:
        return answers
    by_index = dict(gather_object(list(zip(share, answers, strict=True))))
    return [by_index[index] for index in range(len(items))]


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


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device. From the host a GPU copies it when its turn comes; the host goes on."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "mps")


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
    graphs: Graphs | None = None,
    progress: Callable[[int], object] | None = None,
) -> Drawn:
    """Draw one completion per prompt, each with its own settings. Autocast applies if it is on.

    Args:
        network: A causal language model, adapters included.
        prompts: Token ids of `N` prompts; equal prompts of a batch are read once.
        rows: How each row is drawn, see `Chooser`; a length of None is ``options.max_new_tokens``.
        options: The loop reads only `max_new_tokens`, `pad_token_id` and `eos_token_id`.
        by_generate: Use transformers' `generate` instead of this loop, which `options` need that the
            loop does not read. Models that `requires_generate` names always use it.
        seeds: The seed of each row's own draws; None draws from the device's global generator.
        keep_logps: Whether to return log-probs.
        batch_size: Rows decoded at once; None for all.
        graphs: Those of `network`, which take the loop's place where it would be used; None is the loop.
        progress: Called with the number of rows of each batch that is done.

    Raises:
        RookWorldError: The model's scores are not numbers.
    """
    ids: list[list[int]] = [[] for _ in prompts]
    logps: list[list[float]] = [[] for _ in prompts]
    by_generate = by_generate or requires_generate(network)
    draw: Callable[..., DecodedBatch] = _generate_batch if by_generate else decode_batch
    if graphs is not None and not by_generate:
        draw = graphs.decode_batch
        graphs.refresh(network)
    lengths = [row.max_completion_length or options.max_new_tokens for row in rows]
    # `generate` goes on with rows that have ended, even past the end of a table of positions.
    apart = lengths if by_generate and batch_size else [0] * len(prompts)
    for places in _batches(prompts, apart, batch_size or len(prompts)):
        own = None if seeds is None else [seeds[place] for place in places]
        chooser = Chooser([rows[place] for place in places], network.device, own, keep_logps)
        texts, longest = [prompts[place] for place in places], [lengths[place] for place in places]
        drawn = draw(network, texts, chooser, longest, options)
        for place, row_ids, row_logps, size in zip(places, *drawn, strict=True):
            ids[place], logps[place] = row_ids[:size], row_logps[:size]
        if progress is not None:
            progress(len(places))
    return Drawn(ids, logps if keep_logps else None)


def adds_tokens(network: Any) -> bool:
    """Whether a network has adapters that put tokens before each text, such as prompt tuning."""
    adapters = getattr(network, "peft_config", {}).values()
    return any(adapter.is_prompt_learning for adapter in adapters)


def requires_generate(network: Any) -> bool:
    """Whether a network needs transformers' `generate`: it is another model than GPT-2, or changed."""
    model = language_model(network)
    is_gpt2 = isinstance(model, GPT2LMHeadModel) and type(model).forward is GPT2LMHeadModel.forward
    if not is_gpt2 or adds_tokens(network):
        return True
    parts = (part for block in model.transformer.h for part in (block, block.attn, block.mlp))
    if any(map(is_changed, parts)):  # the loop would not run their hooks
        return True
    return bool(model.config.add_cross_attention or model.config.reorder_and_upcast_attn)


def language_model(network: Any) -> Any:
    """The language model with its head, also inside of adapters."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


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


DecodedBatch = tuple[list[list[int]], list[list[float]], list[int]]
"""Tokens and log-probs of each row, and how many of them count; no log-probs if they are not kept."""


def decode_batch(
    network: Any,
    prompts: Sequence[Sequence[int]],
    chooser: Chooser,
    lengths: Sequence[int],
    options: GenerationConfig,
) -> DecodedBatch:
    """Draw completions of one batch by the loop.

    Args:
        network: See `decode`.
        prompts: Token ids of `B` prompts.
        chooser: Draws the tokens of these rows.
        lengths: The largest number of tokens in each row's completion.
        options: See `decode`.
    """
    device, count, longest = network.device, len(prompts), max(lengths)
    steps = _Steps(network, prompts, lengths, options.pad_token_id)
    logits = steps.first
    ends = ends_of(options, device)
    bounds = torch.tensor(lengths, device=device)
    tokens = torch.zeros(count, longest, dtype=torch.long, device=device)
    logps = torch.zeros(count, longest, device=device)
    used = torch.zeros(count, dtype=torch.long, device=device)
    live = torch.arange(count, device=device)  # (n,): the row in each slot
    for step in range(longest):
        drawn, of_drawn = chooser(logits)  # (n,)
        tokens[live, step] = drawn
        if of_drawn is not None:
            logps[live, step] = of_drawn
        over = torch.isin(drawn, ends) | (bounds[live] <= step + 1)
        used[live] = torch.where((used[live] == 0) & over, step + 1, used[live])
        over = used[live] > 0
        left = len(live) - int(over.sum())
        if left == 0:
            break
        if left <= _CROWD * len(live):
            slots = _closed_up(over, left)
            live, drawn = live[slots], drawn[slots]
            chooser.keep(slots)
            steps.keep(slots)
        logits = steps(drawn)
    return tokens.tolist(), logps.tolist(), used.tolist()


def ends_of(options: GenerationConfig, device: Any) -> torch.Tensor:
    """The tokens that end an answer; there may be none."""
    ends = options.eos_token_id
    return torch.tensor([] if ends is None else ends, dtype=torch.long, device=device)


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
        rows: How each of the `B` rows is drawn; temperature 0, of all rows or of none, takes the
            likeliest token.
        device: The device of the logits.
        seeds: The seed of each row's own draws; None draws from the device's global generator.
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
            return on_device(torch.tensor(values), device).unsqueeze(1)  # (B, 1)

        self.keep_logps = keep_logps
        self.temperature = column([float(row.temperature) or 1.0 for row in rows])
        self.top_p = column([float(row.top_p) for row in rows])
        self.top_k = column([row.top_k for row in rows])
        self.draws = any(row.temperature for row in rows)
        self.most_k = max(row.top_k for row in rows)
        self.has_top_p = any(row.top_p < 1 for row in rows)
        self.streams = None if seeds is None else [torch.Generator().manual_seed(s) for s in seeds]

    def keep(self, slots: torch.Tensor) -> None:
        """Go on with the rows in some slots ``(n,)``, in that order."""
        for name in ("temperature", "top_p", "top_k"):
            setattr(self, name, getattr(self, name)[slots])
        if self.streams is not None:
            self.streams = [self.streams[slot] for slot in slots.tolist()]

    @property
    def needs_draw(self) -> bool:
        """Whether `generate` must draw; else nothing is drawn, or each row draws here by its seed."""
        return self.draws and self.streams is None

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens ``(B,)`` drawn from logits ``(B, V)``, and their log-probs, or None."""
        if not (self.draws or self.keep_logps):
            return logits.argmax(-1), None
        scores = self.scaled(logits)
        drawn = self.draw(self.cut(scores))
        return drawn, logps_of(scores, drawn) if self.keep_logps else None

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        """Tokens ``(B,)`` drawn from the softmax of scores ``(B, V)``, or the likeliest."""
        if not self.draws:
            return scores.argmax(-1)
        levels = None
        if self.streams is not None:
            drawn = [torch.rand(1, generator=stream) for stream in self.streams]
            levels = torch.stack(drawn).to(scores.device)
        tokens, is_finite = inverted(scores, levels)
        if not is_finite.all():
            raise RookWorldError(NO_NUMBERS)
        return tokens

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits ``(B, V)`` divided by each row's temperature."""
        return logits.float() / self.temperature

    def cut(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores ``(B, V)``, -inf for tokens that top-k or top-p leave out."""
        if self.most_k:
            scores = within_top_k(scores, self.top_k, self.most_k)
        return within_top_p(scores, self.top_p) if self.has_top_p else scores


def logps_of(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Log-probs ``(B,)`` of drawn tokens ``(B,)``, in nats, from scores ``(B, V)``."""
    return scores.log_softmax(-1).gather(1, drawn.unsqueeze(1)).squeeze(1)


def within_top_k(scores: torch.Tensor, top_k: torch.Tensor, most: int) -> torch.Tensor:
    """Scores ``(B, V)``, -inf for tokens that top-k ``(B, 1)``, `most` at most, leaves out."""
    size = scores.size(1)
    top = scores.topk(min(most, size)).values
    least = top.gather(1, top_k.clamp(1, size) - 1)  # (B, 1)
    return scores.masked_fill((top_k > 0) & (scores < least), -torch.inf)


def within_top_p(
    scores: torch.Tensor, top_p: torch.Tensor, sorts_all: bool = False
) -> torch.Tensor:
    """Scores ``(B, V)``, -inf for tokens that top-p ``(B, 1)`` leaves out.

    Args:
        scores: Of the tokens.
        top_p: Of each row; 1 leaves it as it is.
        sorts_all: Whether to sort all tokens, and not only those that may stay, which must be counted
            on the host.
    """
    probs, cuts = scores.softmax(-1), top_p < 1
    # All tokens below this bound together have less than 1 - top-p, so they are left out anyway and
    # need not be sorted.
    likely = (probs > (1 - top_p) / scores.size(1)) & cuts
    if sorts_all:
        top, order = probs.sort(descending=True)  # (B, K)
    else:
        top, order = probs.topk(max(1, int(likely.sum(1).max())))
    inside = top.cumsum(-1) - top < top_p
    inside[:, 0] = True  # the likeliest token always stays
    outside = torch.ones_like(likely).scatter(1, order, ~inside)
    return scores.masked_fill(outside & cuts, -torch.inf)


NO_NUMBERS = (
    "the model's scores are not numbers, so nothing can be sampled; its weights are broken: "
    "go back to a checkpoint, and lower the learning rate"
)


BLOCK, BLOCK_FROM = 256, 32  # tokens of a block, and the blocks above which a vocabulary has some


def inverted(
    scores: torch.Tensor, levels: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``(B,)`` drawn from the softmax of scores ``(B, V)`` by inverting the cumulative sum.

    `multinomial` draws a number for every token of the vocabulary and takes ten times as long.

    Args:
        scores: Of the tokens.
        levels: ``(B, 1)``, uniform from 0 to 1; None draws them from the device's generator.

    Returns:
        The tokens, and whether each row's scores were numbers, ``(B,)``; a token is arbitrary where they
        were not.
    """
    dtype = torch.float32 if scores.device.type == "mps" else torch.float64
    probs = scores.softmax(-1)  # (B, V)
    blocks = _in_blocks(probs) if probs.size(1) > BLOCK * BLOCK_FROM else None  # (B, N, S)
    of_each = probs if blocks is None else blocks.sum(-1, dtype=dtype)  # (B, V) or (B, N)
    sums = of_each.cumsum(-1, dtype=dtype)
    total = sums[:, -1:]  # (B, 1)
    levels = torch.rand_like(total) if levels is None else levels.to(dtype)
    wanted = (1 - levels) * total  # above 0, so no token of probability 0 is drawn
    drawn = torch.searchsorted(sums, wanted)  # (B, 1)
    if blocks is not None:
        drawn = _inside(blocks, sums, wanted, drawn.clamp(max=sums.size(1) - 1))
    return drawn.squeeze(1), total.isfinite().squeeze(1)


def _in_blocks(probs: torch.Tensor) -> torch.Tensor:
    """Probabilities ``(B, V)`` in blocks ``(B, N, S)``, the last one padded with 0.

    Sums of blocks and then of one block need a hundredth of the memory that sums of all tokens need.
    """
    return functional.pad(probs, (0, -probs.size(1) % BLOCK)).unflatten(1, (-1, BLOCK))


def _inside(
    blocks: torch.Tensor, sums: torch.Tensor, wanted: torch.Tensor, block: torch.Tensor
) -> torch.Tensor:
    """Tokens ``(B, 1)`` at which the sums of all tokens reach what is wanted ``(B, 1)``.

    Args:
        blocks: ``(B, N, S)``, probabilities.
        sums: ``(B, N)``, of all tokens up to the end of each block.
        wanted: Of the sums.
        block: ``(B, 1)``, in which they reach it.
    """
    rows = torch.arange(len(blocks), device=blocks.device)
    inside = blocks[rows, block.squeeze(1)].cumsum(-1, dtype=sums.dtype)  # (B, S)
    before = functional.pad(sums, (1, 0)).gather(1, block)
    # Rounding must not lead beyond the block's last token with a probability.
    left = torch.minimum(wanted - before, inside[:, -1:])
    return block * blocks.size(2) + torch.searchsorted(inside, left)


# --------------------------------------------------------------------------------------------------
# Steps: logits of the next token, from a cache of fixed size
# --------------------------------------------------------------------------------------------------
class Read(NamedTuple):
    """What comes of `B` prompts, padded on the left to `T` tokens; the `G` distinct ones are read."""

    first: torch.Tensor  # (B, V), logits of the first tokens
    mask: torch.Tensor  # (B, T), 1 for text
    distinct: torch.Tensor  # (B,), the index of each prompt among the distinct ones
    cache: list[Any]  # of each layer: keys, values (G, H, T, D)


def read_prompts(network: Any, prompts: Sequence[Sequence[int]], pad_token_id: int) -> Read:
    """Send each distinct prompt through a network once."""
    number: dict[tuple[int, ...], int] = {}
    places = [number.setdefault(tuple(prompt), len(number)) for prompt in prompts]
    distinct = on_device(torch.tensor(places), network.device)
    batch = pad_rows(list(number), pad_token_id)
    ids, mask = (on_device(batch[key], network.device) for key in ("input_ids", "attention_mask"))
    read = network(
        input_ids=ids,
        attention_mask=mask,
        position_ids=position_ids_from_mask(mask),
        use_cache=True,
        logits_to_keep=1,
    )
    layers = read.past_key_values.layers
    return Read(read.logits[:, -1][distinct], mask[distinct], distinct, layers)


class _Steps:
    """Steps of GPT-2 from its weights: its operations are small, and modules take most of the time.

    Linear layers with adapters or hooks are called as modules.

    Args:
        network: A GPT-2, adapters included.
        prompts: Token ids of `B` prompts; each distinct one is read once.
        lengths: The largest number of tokens in each row's completion.
        pad_token_id: For prompts that are shorter than others.

    Attributes:
        first: Logits ``(B, V)`` of the first tokens.
    """

    def __init__(
        self,
        network: Any,
        prompts: Sequence[Sequence[int]],
        lengths: Sequence[int],
        pad_token_id: int,
    ) -> None:
        model, read = language_model(network), read_prompts(network, prompts, pad_token_id)
        self.first = read.first
        body, mask = model.transformer, read.mask
        self._embed, self._embed_position = body.wte, body.wpe
        self._layers = [_Layer(block) for block in body.h]
        self._norm, self._head = body.ln_f, _linear(model.lm_head)
        self._positions = mask.sum(1)  # (B,), of the next tokens
        self._last = self._positions + torch.tensor(lengths, device=mask.device) - 1
        self._width = mask.size(1)  # places of the cache in use
        keys = read.cache[0].keys
        self._heads, room = keys.size(1), self._width + max(lengths)
        shape = (2, len(prompts), self._heads, room, keys.size(3))
        self._cache = [keys.new_empty(shape) for _ in self._layers]  # keys, values: (2, B, H, M, D)
        for ours, theirs in zip(self._cache, read.cache, strict=True):
            ours[0, :, :, : self._width] = theirs.keys[read.distinct]
            ours[1, :, :, : self._width] = theirs.values[read.distinct]
        padding = (mask == 0).repeat_interleave(self._heads, 0).unsqueeze(1)  # (B*H, 1, T)
        self._bias = keys.new_zeros(len(padding), 1, room)
        self._bias[..., : self._width].masked_fill_(padding, -torch.inf)

    def keep(self, slots: torch.Tensor) -> None:
        """Go on with the rows in some slots ``(n,)``; a row keeps its slot or moves to an earlier."""
        moved = (slots != torch.arange(len(slots), device=slots.device)).nonzero().flatten()
        for layer in self._cache:
            used = layer[..., : self._width, :]
            used[:, moved] = used[:, slots[moved]]
        self._cache = [layer[:, : len(slots)] for layer in self._cache]
        self._positions, self._last = self._positions[slots], self._last[slots]
        self._bias = self._bias.unflatten(0, (-1, self._heads))[slots].flatten(0, 1)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``(n, V)`` of the next token, given the rows' last tokens ``(n,)``."""
        self._width += 1
        states = self._embed(tokens) + self._embed_position(self._positions)  # (n, E)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            mixed = layer.mix(layer.norm_1(states)).unflatten(1, (3, self._heads, -1))
            states = states + layer.project(self._attend(mixed, cache, layer.scaling).flatten(1))
            states = states + layer.down(layer.act(layer.up(layer.norm_2(states))))
        # Rows that have ended are computed until the next `keep`; the table of positions may end there.
        self._positions = torch.minimum(self._positions + 1, self._last)
        return self._head(self._norm(states))

    def _attend(self, mixed: torch.Tensor, cache: torch.Tensor, scaling: float) -> torch.Tensor:
        """The result of attention ``(n, H, D)``; the new keys and values are put into the cache.

        Args:
            mixed: ``(n, 3, H, D)``: queries, keys, values.
            cache: ``(2, n, H, M, D)``, the layer's keys and values.
            scaling: The factor of the products of queries and keys.
        """
        width = self._width
        cache[:, :, :, width - 1] = mixed[:, 1:].transpose(0, 1)
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
        self.act, self.scaling = block.mlp.act, block.attn.scaling


def is_changed(module: Any) -> bool:
    """Whether a module computes more than its class does: it has hooks, or another forward.

    FSDP's hooks gather weights, which are gathered for all of sampling already.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks
    is_gathered = isinstance(module, FSDPModule)
    return bool(hooks and not is_gathered) or "forward" in vars(module)


def _linear(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear layer as a function; under autocast its weights are cast once, not at every token."""
    if is_changed(module) or type(module) not in (Conv1D, torch.nn.Linear):
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
    """A `Chooser` for `generate`: scales and cuts scores, and leaves one token if rows draw by seed."""

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
        scores = self.chooser.cut(scores)
        if self.chooser.needs_draw:
            return scores
        drawn = self.chooser.draw(scores).unsqueeze(1)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)

    def logps(self, last: torch.Tensor) -> list[list[float]]:
        """Log-probs of all drawn tokens, `C` per row; `last` ``(B,)`` is the last of them."""
        self._take(last)
        return torch.stack(self._drawn, dim=1).tolist()

    def _take(self, drawn: torch.Tensor) -> None:
        if self._last is not None:
            self._drawn.append(self._last.gather(1, drawn.unsqueeze(1)).squeeze(1))
            self._last = None


class _RowLength(StoppingCriteria):
    """Ends each row at its own number of new tokens, beyond which there may be no positions.

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
) -> DecodedBatch:
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
    is_end = torch.isin(completions, ends_of(options, completions.device))
    first = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, completions.size(1))
    sizes = [min(size, bound) for size, bound in zip(first.tolist(), lengths, strict=True)]
    logps = processor.logps(completions[:, -1]) if chooser.keep_logps else [[] for _ in sizes]
    return completions.tolist(), logps, sizes
