"""The decoder's loop as CUDA graphs: one launch for a token of all rows, and no wait for the GPU.

A token of the loop in `decoding` is some 250 operations, however many rows there are. A GPU computes
them faster than they are launched. Here, a step reads and writes tensors that stay where they are, so
that CUDA can record it once and replay it with one launch. A step is:

1. the forward pass of the rows' last tokens, which writes one column of the cache;
2. the draw of the next tokens, whether these end their rows, and whether the scores are numbers.

A recording has constant shapes, so there is one for each number of rows (a power of two) and of the
cache's columns (a multiple of 64) that comes up. All of them work on views of the same tensors. The host
reads how many rows are left some steps late, so it never waits for the step that it has just launched.

On a CPU the steps run without being recorded. That is slower than the loop, and is what tests need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from transformers import GenerationConfig
from transformers.pytorch_utils import Conv1D

from ..common.errors import RookWorldError
from .decoding import (
    NO_NUMBERS,
    Chooser,
    DecodedBatch,
    Read,
    decode_batch,
    ends_of,
    inverted,
    is_changed,
    language_model,
    logps_of,
    on_device,
    read_prompts,
    requires_generate,
    within_top_k,
    within_top_p,
)

Replay = Callable[[], object]

LATE = 8  # steps after which the number of live rows is read, and which it is behind
LEAST_ROWS, COLUMNS = 8, 64  # of a recording: the fewest rows, and what columns are a multiple of
MOST_RECORDINGS = 96
MOST_MEMORY = 0.25  # the largest share of a GPU's memory that the kept tensors take


# --------------------------------------------------------------------------------------------------
# Which networks
# --------------------------------------------------------------------------------------------------
def obstacle(network: Any) -> str | None:
    """Why a network's steps cannot be recorded, as the end of a sentence; None if they can."""
    if network.device.type != "cuda":
        return f"the model is on the {network.device.type}, and graphs are CUDA's"
    return network_obstacle(network)


def network_obstacle(network: Any) -> str | None:
    """Like `obstacle`, on any device: why the steps here would not compute what the network does."""
    if requires_generate(network):
        return "only an unchanged GPT-2 is sampled by our own loop"
    model = language_model(network)
    if any(isinstance(module, FSDPModule) for module in network.modules()):
        return "FSDP gathers the weights anew for each sampling"
    body = model.transformer
    kinds: list[tuple[Any, type]] = [(body.wte, torch.nn.Embedding), (body.wpe, torch.nn.Embedding)]
    norms = [body.ln_f, *(norm for block in body.h for norm in (block.ln_1, block.ln_2))]
    kinds += [(norm, torch.nn.LayerNorm) for norm in norms]
    plain = all(type(module) is kind and not is_changed(module) for module, kind in kinds)
    if not plain or any(is_changed(block.mlp.act) for block in body.h):
        return "an embedding, a norm or an activation has hooks or is of another class"
    if not (_is_linear(model.lm_head, torch.nn.Linear) and all(map(_is_linear, _linears(model)))):
        return "a linear layer has hooks, or adapters other than plain LoRA"
    if model.lm_head.bias is not None:
        return "the head has a bias"
    return None


def _linears(model: Any) -> Iterator[Any]:
    for block in model.transformer.h:
        yield from (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)


def _is_linear(module: Any, kind: type = Conv1D) -> bool:
    """Whether a module is a linear layer, with adapters that can be folded into its weights or none."""
    if is_changed(module):
        return False
    if not hasattr(module, "get_base_layer"):
        return type(module) is kind
    from peft.tuners.lora import Linear  # most runs have no adapters

    adds_other = getattr(module, "lora_variant", None) or any(module.lora_bias.values())
    return type(module) is Linear and not adds_other and _is_linear(module.get_base_layer(), kind)


# --------------------------------------------------------------------------------------------------
# Weights: copies that stay where they are
# --------------------------------------------------------------------------------------------------
def _weights(model: Any, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
    """The weights that a step reads, in the order in which it does, and the dtype of each copy.

    Args:
        model: A GPT-2 with its head.
        dtype: In which linear layers compute.
    """
    body = model.transformer

    def of_norm(norm: Any) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
        yield from ((part, part.dtype) for part in (norm.weight, norm.bias))

    def of_linear(module: Any) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
        yield _folded(module), dtype
        bias = getattr(module, "get_base_layer", lambda: module)().bias
        if bias is not None:
            yield bias, dtype

    yield from ((table.weight, table.weight.dtype) for table in (body.wte, body.wpe))
    for block in body.h:
        yield from of_norm(block.ln_1)
        yield from of_linear(block.attn.c_attn)
        yield from of_linear(block.attn.c_proj)
        yield from of_norm(block.ln_2)
        yield from of_linear(block.mlp.c_fc)
        yield from of_linear(block.mlp.c_proj)
    yield from of_norm(body.ln_f)
    yield from of_linear(model.lm_head)


def _folded(module: Any) -> torch.Tensor:
    """A linear layer's weight, with that of its active LoRA adapters added."""
    if not hasattr(module, "get_base_layer"):
        return module.weight  # type: ignore[no-any-return]
    weight: torch.Tensor = module.get_base_layer().weight
    if module.disable_adapters or module.merged:
        return weight
    active = [name for name in module.active_adapters if name in module.lora_A]
    return weight + sum(module.get_delta_weight(name) for name in active)


class Weights:
    """Copies of a GPT-2's weights, for a step to read.

    Args:
        network: A GPT-2, adapters included. Linear layers' copies have autocast's dtype if it is on.
    """

    def __init__(self, network: Any) -> None:
        model = language_model(network)
        copies = [weight.to(dtype, copy=True) for weight, dtype in self._now(model)]
        blocks = model.transformer.h
        self.all = copies
        self.tokens, self.positions = copies[:2]  # (V, E), (P, E)
        self.blocks = [copies[2 + 12 * number :][:12] for number in range(len(blocks))]
        self.norm, self.norm_bias, self.head = copies[-3:]  # (E,), (E,), (V, E)
        self.dtype = self.head.dtype
        self.eps = model.transformer.ln_f.eps
        self.acts = [block.mlp.act for block in blocks]
        self.scalings = [block.attn.scaling for block in blocks]
        self.heads: int = blocks[0].attn.num_heads

    @staticmethod
    def _now(model: Any) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
        kind = model.device.type
        is_on = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if is_on else model.lm_head.weight.dtype
        return _weights(model, dtype)

    def refresh(self, network: Any) -> bool:
        """Copy the weights anew, to where they are; False if there are others than before."""
        now = [*self._now(language_model(network))]
        before = [(copy.shape, copy.dtype, copy.device) for copy in self.all]
        if before != [(weight.shape, dtype, weight.device) for weight, dtype in now]:
            return False
        for copy, (weight, _) in zip(self.all, now, strict=True):
            copy.copy_(weight)
        return True


# --------------------------------------------------------------------------------------------------
# A step
# --------------------------------------------------------------------------------------------------
class Ways(NamedTuple):
    """What a recording is made for beside its shapes: as in `Chooser`, and the tokens that end a row."""

    draws: bool
    most_k: int
    has_top_p: bool
    keeps_logps: bool
    ends: tuple[int, ...]

    @classmethod
    def of(cls, chooser: Chooser, options: GenerationConfig) -> Ways:
        """Those of a batch."""
        ends = ends_of(options, "cpu").flatten().tolist()
        return cls(
            chooser.draws, chooser.most_k, chooser.has_top_p, chooser.keep_logps, tuple(ends)
        )


class State:
    """The tensors that steps read and write, for `B` rows and `M` columns of the cache at most.

    A row may change its slot, so what belongs to a slot moves with it; results stay by row.

    Args:
        weights: What the network computes with.
        rows: `B`.
        columns: `M`, more than any row has tokens.
        cache: ``(…, D)`` of the dtype and device that the cache has.
    """

    def __init__(self, weights: Weights, rows: int, columns: int, cache: torch.Tensor) -> None:
        device, heads = cache.device, weights.heads
        self.weights, self.rows, self.columns = weights, rows, columns

        def table(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        size = (2, rows, heads, columns, cache.size(-1))  # keys, values: (2, B, H, M, D)
        self.cache = [table(*size, dtype=cache.dtype) for _ in weights.blocks]
        self.bias = table(rows, heads, 1, columns, dtype=cache.dtype)  # -inf for what is not seen
        self.tokens = table(rows)  # the last ones
        self.positions, self.last = table(rows), table(rows)  # of these; the last a row may have
        self.lengths = table(rows)  # the most tokens of a completion
        self.row = table(rows)  # in each slot
        self.temperature = table(rows, 1, dtype=torch.float32)
        self.top_p = table(rows, 1, dtype=torch.float32)
        self.top_k = table(rows, 1)
        # By row
        self.drawn = table(rows, columns)
        self.logps = table(rows, columns, dtype=torch.float32)
        self.levels = table(rows, columns, dtype=torch.float64)  # uniform from 0 to 1
        self.used = table(rows)  # tokens of a completion that has ended; 0 until then
        # Of all
        self.column = table(1)  # of the cache to write next
        self.step = table(1)  # tokens drawn so far
        self.counts = table(2)  # live rows; whether scores were no numbers

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors but the weights."""
        yield from self.cache
        yield from (part for part in vars(self).values() if isinstance(part, torch.Tensor))

    def begin(self, read: Read, chooser: Chooser, lengths: Sequence[int]) -> None:
        """Take in `b` prompts, of which each row gets the slot of its number.

        Slots without a row count as ended.
        """
        count, width = read.mask.shape
        device = self.tokens.device
        for tensor in self.tensors():
            tensor.zero_()  # what is left over may be nan, and 0 times nan is nan
        for ours, theirs in zip(self.cache, read.cache, strict=True):
            ours[0, :count, :, :width] = theirs.keys[read.distinct]
            ours[1, :count, :, :width] = theirs.values[read.distinct]
        self.bias.fill_(-torch.inf)
        text = (read.mask != 0)[:, None, None]
        self.bias[:count, ..., :width].masked_fill_(text, 0.0)
        self.lengths[:count] = on_device(torch.tensor(lengths), device)
        self.positions[:count] = read.mask.sum(1) - 1
        self.last[:count] = self.positions[:count] + self.lengths[:count]
        torch.arange(self.rows, out=self.row)
        self.temperature.fill_(1.0)
        self.temperature[:count] = chooser.temperature
        self.top_p[:count], self.top_k[:count] = chooser.top_p, chooser.top_k
        self.used[count:] = 1
        self.column.fill_(width)
        self.levels[:count, : max(lengths)] = _levels(chooser, count, max(lengths), device)

    def shrink(self, rows: int, to: int, width: int) -> None:
        """Put the live rows among the first slots into the first `to`, which has room for them.

        Args:
            rows: How many slots have been in use.
            to: How many are.
            width: How many columns of the cache are.
        """
        over = self.used[self.row[:rows]] > 0
        slots = over.int().argsort(stable=True)[:to]  # live ones first
        for tensor in (
            *(self.bias, self.tokens, self.positions, self.last, self.lengths, self.row),
            *(self.temperature, self.top_p, self.top_k),
        ):
            tensor[:to] = tensor[slots]
        for layer in self.cache:
            layer[:, :to, :, :width] = layer[:, slots, :, :width]

    def advance(self, rows: int, width: int, ways: Ways, ends: torch.Tensor) -> None:
        """A step of the first `rows` slots, over the first `width` columns of the cache.

        Args:
            rows: `n`.
            width: `T`.
            ways: How tokens are drawn.
            ends: Those that end a row, on the device.
        """
        self.take(self.logits(rows, width), ways, ends)

    def logits(self, rows: int, width: int) -> torch.Tensor:
        """Logits ``(n, V)`` of the next token after the last ones, which are put into the cache."""
        weights = self.weights
        self.positions[:rows] = torch.minimum(self.positions[:rows] + 1, self.last[:rows])
        self.bias[:rows].index_fill_(3, self.column, 0.0)
        states = functional.embedding(self.tokens[:rows], weights.tokens)  # (n, E)
        states = states + functional.embedding(self.positions[:rows], weights.positions)
        for number in range(len(weights.blocks)):
            states = self._block(number, states, width)
        self.column.add_(1)
        return functional.linear(
            self._normed(states, weights.norm, weights.norm_bias), weights.head
        )

    def _normed(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        normed = functional.layer_norm(states, weight.shape, weight, bias, self.weights.eps)
        return normed.to(self.weights.dtype)

    def _block(self, number: int, states: torch.Tensor, width: int) -> torch.Tensor:
        weights = self.weights
        norm_1, bias_1, mix, mix_bias, project, project_bias, *rest = weights.blocks[number]
        norm_2, bias_2, up, up_bias, down, down_bias = rest
        mixed = torch.addmm(mix_bias, self._normed(states, norm_1, bias_1), mix)  # (n, 3E)
        attended = self._attend(number, mixed.unflatten(1, (3, weights.heads, -1)), width)
        states = states + torch.addmm(project_bias, attended.flatten(1), project)
        wide = weights.acts[number](torch.addmm(up_bias, self._normed(states, norm_2, bias_2), up))
        return states + torch.addmm(down_bias, wide, down)

    def _attend(self, number: int, mixed: torch.Tensor, width: int) -> torch.Tensor:
        """The result of attention ``(n, H, D)``; the new keys and values are put into the cache.

        Args:
            number: The layer's.
            mixed: ``(n, 3, H, D)``: queries, keys, values.
            width: `T`.
        """
        rows = mixed.size(0)
        cache = self.cache[number][:, :rows]
        latest = mixed[:, 1:].transpose(0, 1).unsqueeze(3)  # (2, n, H, 1, D)
        cache.index_copy_(3, self.column, latest.to(cache.dtype))
        keys, values = (part.flatten(0, 1)[:, :width] for part in cache)  # (n*H, T, D)
        queries = mixed[:, 0].reshape(-1, 1, mixed.size(3)).to(keys.dtype)
        bias = self.bias[:rows].flatten(0, 1)[..., :width]  # (n*H, 1, T)
        scaling = self.weights.scalings[number]
        seen = torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scaling)
        seen = seen.float().softmax(-1).to(values.dtype)
        return torch.bmm(seen, values).view(rows, *mixed.shape[2:]).to(mixed.dtype)

    def take(self, logits: torch.Tensor, ways: Ways, ends: torch.Tensor) -> None:
        """Draw the next tokens from logits ``(n, V)``, and note which rows have ended with them."""
        count, size = logits.shape
        row, step = self.row[:count], self.step.expand(count)
        drawn, logps, is_finite = self._choose(logits, ways)
        drawn = drawn.clamp(max=size - 1)  # where scores were no numbers
        self.drawn.index_put_((row, step), drawn)
        if logps is not None:
            self.logps.index_put_((row, step), logps)
        used = self.used[row]
        over = (drawn.unsqueeze(1) == ends).any(1) | (self.lengths[:count] <= step + 1)
        used = torch.where((used == 0) & over, step + 1, used)
        self.used.index_copy_(0, row, used)
        self.tokens[:count] = drawn
        self.counts[0] = (used == 0).sum()
        if is_finite is not None:
            self.counts[1] = torch.maximum(self.counts[1], (~is_finite).any().long())
        self.step.add_(1)

    def _choose(
        self, logits: torch.Tensor, ways: Ways
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Tokens ``(n,)``, their log-probs and whether their scores were numbers; as `Chooser` does."""
        if not (ways.draws or ways.keeps_logps):
            return logits.argmax(-1), None, None
        count = len(logits)
        cut = scores = logits.float() / self.temperature[:count]  # (n, V)
        if ways.most_k:
            cut = within_top_k(cut, self.top_k[:count], ways.most_k)
        if ways.has_top_p:
            cut = within_top_p(cut, self.top_p[:count], sorts_all=True)
        if ways.draws:
            levels = self.levels[self.row[:count], self.step.expand(count)].unsqueeze(1)
            drawn, is_finite = inverted(cut, levels)
        else:
            drawn, is_finite = cut.argmax(-1), None
        return drawn, logps_of(scores, drawn) if ways.keeps_logps else None, is_finite


def _levels(chooser: Chooser, count: int, longest: int, device: torch.device) -> torch.Tensor:
    """What the rows' draws are decided by, ``(b, C)``: the numbers that the loop would draw by seed."""
    if chooser.streams is None:
        return torch.rand(count, longest, dtype=torch.float64, device=device)
    rows = [torch.rand(longest, generator=stream) for stream in chooser.streams]
    return on_device(torch.stack(rows).double(), device)


# --------------------------------------------------------------------------------------------------
# Recordings
# --------------------------------------------------------------------------------------------------
class Recorder:
    """Records steps as CUDA graphs, which share the memory of what they compute in between."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        # Memory is shared only among what is recorded on one stream.
        self._stream = torch.cuda.Stream(device)

    def __call__(self, step: Replay) -> Replay:
        """Record a step, which is not computed thereby; gives what computes it."""
        with torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), self._stream
            # What other threads do on the GPU at this time must not end the recording.
            how: Any = {"pool": self._pool, "stream": stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, **how):
                step()
        return graph.replay


class _Late:
    """Numbers on a device, read some time after they were asked for."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers, on_gpu = numbers, numbers.is_cuda
        self._read = torch.zeros(numbers.shape, dtype=numbers.dtype, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None

    def ask(self) -> None:
        self._read.copy_(self._numbers, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def answer(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        return self._read.tolist()


class Graphs:
    """Decodes with one network for as long as it is kept, by recorded steps.

    Args:
        say: Told how much memory is kept, and what is left to the loop for want of it.
        record: How a step is recorded; None is as CUDA graphs on a GPU, and not at all elsewhere.
    """

    def __init__(
        self, say: Callable[[str], object] = print, record: Callable[[Replay], Replay] | None = None
    ) -> None:
        self._say, self._record = say, record
        self._weights: Weights | None = None
        self._state: State | None = None
        self._recordings: dict[tuple[int, int, Ways], Replay] = {}
        self._said: set[str] = set()

    def refresh(self, network: Any) -> None:
        """Take over the network's weights, which may have changed since."""
        if self._weights is None or not self._weights.refresh(network):
            self._drop()
            self._weights = Weights(network)

    def decode_batch(
        self,
        network: Any,
        prompts: Sequence[Sequence[int]],
        chooser: Chooser,
        lengths: Sequence[int],
        options: GenerationConfig,
    ) -> DecodedBatch:
        """Like `decoding.decode_batch`; `refresh` comes before.

        Raises:
            RookWorldError: The model's scores are not numbers.
        """
        count, longest = len(prompts), max(lengths)
        width = max(map(len, prompts))
        if not self._has_room(_rows(count), _columns(width + longest), network.device):
            return decode_batch(network, prompts, chooser, lengths, options)
        read = read_prompts(network, prompts, options.pad_token_id)
        state = self._state_of(_rows(count), _columns(width + longest), read.cache[0].keys)
        ways = Ways.of(chooser, options)
        state.begin(read, chooser, lengths)
        with torch.autocast(network.device.type, enabled=False):
            self._steps(state, read.first, width, longest, ways)
        *used, _, is_broken = torch.cat([state.used[:count], state.counts]).tolist()
        if is_broken:
            raise RookWorldError(NO_NUMBERS)
        drawn = state.drawn[:count, :longest].tolist()
        logps = state.logps[:count, :longest].tolist() if ways.keeps_logps else [[]] * count
        return drawn, logps, used

    def _steps(
        self, state: State, first: torch.Tensor, width: int, longest: int, ways: Ways
    ) -> None:
        """Draw up to `longest` tokens a row, given the logits ``(b, V)`` of the first ones.

        Args:
            state: At its beginning.
            first: The logits.
            width: Columns of the cache that the prompts take.
            longest: Tokens of the longest completion.
            ways: How tokens are drawn.
        """
        rows, late = _rows(len(first)), _Late(state.counts)
        ends = on_device(torch.tensor(ways.ends, dtype=torch.long), first.device)
        state.take(functional.pad(first, (0, 0, 0, rows - len(first))), ways, ends)
        for step in range(1, longest):
            if step % LATE == 0:
                live, is_broken = late.answer() if step > LATE else (rows, 0)
                late.ask()
                if is_broken or not live:
                    break
                if (fewer := _rows(live)) < rows:
                    state.shrink(rows, fewer, width + step - 1)
                    rows = fewer
            self._run(state, rows, min(_columns(width + step), state.columns), ways, ends)

    def _run(self, state: State, rows: int, width: int, ways: Ways, ends: torch.Tensor) -> None:
        """Take a step; it is recorded after its first time, in which libraries set things up."""
        key = rows, width, ways
        if key in self._recordings:
            self._recordings[key]()
            return

        def step() -> None:
            state.advance(rows, width, ways, ends)

        step()
        while len(self._recordings) >= MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        if self._record is None:
            self._record = Recorder(ends.device) if ends.is_cuda else lambda step: step
        self._recordings[key] = self._record(step)

    # ----------------------------------------------------------------------------------------------
    # Memory
    # ----------------------------------------------------------------------------------------------
    def _has_room(self, rows: int, columns: int, device: torch.device) -> bool:
        """Whether so many rows and columns take no more than their share of a GPU's memory."""
        if device.type != "cuda":
            return True
        needed = self._bytes(*self._grown(rows, columns))
        most = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory
        if needed > most:
            self._say_once(
                f"cuda_graphs: {rows} rows of {columns} tokens would take {needed / 2**30:.1f} GiB, "
                f"more than {MOST_MEMORY:.0%} of the GPU's memory; such batches are sampled without "
                "graphs"
            )
        return needed <= most

    def _bytes(self, rows: int, columns: int) -> int:
        """What the cache and the weights' copies take."""
        weights = self._weights
        assert weights is not None
        width, size = weights.positions.size(1), weights.dtype.itemsize
        cache = 2 * len(weights.blocks) * rows * columns * width * size
        return cache + sum(copy.nbytes for copy in weights.all)

    def _grown(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a state that also has room for these."""
        if self._state is None:
            return rows, columns
        return max(rows, self._state.rows), max(columns, self._state.columns)

    def _state_of(self, rows: int, columns: int, keys: torch.Tensor) -> State:
        """A state with room; the one before if it has, for what is recorded works on that one."""
        before, grown = self._state, self._grown(rows, columns)
        if before and grown == (before.rows, before.columns) and keys.dtype == before.bias.dtype:
            return before
        del before
        self._drop()
        assert self._weights is not None
        self._state = State(self._weights, *grown, keys)
        self._say_once(
            f"cuda_graphs: {self._bytes(*grown) / 2**30:.1f} GiB are kept for sampling, for {grown[0]} "
            f"rows of {grown[1]} tokens"
        )
        return self._state

    def _drop(self) -> None:
        self._recordings.clear()
        self._state = None

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


def _rows(count: int) -> int:
    """How many slots a recording has for so many rows."""
    return max(LEAST_ROWS, 1 << (count - 1).bit_length())


def _columns(width: int) -> int:
    """How many columns of the cache a recording reads for so many."""
    return -(-width // COLUMNS) * COLUMNS
