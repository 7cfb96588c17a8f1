"""Steps that CUDA could record, shown on a CPU to draw the loop's tokens and to wait for nothing."""

import ast
import inspect
import random
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.models import decoding, graphs
from rookworld_rlvr.models.decoding import decode
from rookworld_rlvr.models.graphs import Graphs, State, Ways, Weights, network_obstacle, obstacle
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.tasks.task import Sampling

from .test_decoding import CONTROLS, END, PROMPTS, VOCABULARY, expected_of, options, tiny

LONGEST = 100


def model_of(kind: str = "gpt2", **shape: Any) -> Any:
    return tiny(kind, n_positions=256, **shape)


def batch(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of many lengths, of which some come twice."""
    chance = random.Random(seed)
    prompts = [chance.choices(range(1, VOCABULARY), k=1 + place % 30) for place in range(count)]
    return [*prompts[: count - 4], *prompts[:4]]


def ways_of(count: int, lengths: bool = True) -> list[Sampling]:
    """How rows are drawn: controls of all sorts, and rows that end early and late."""
    ways = [*CONTROLS, *(task.sampling for task in TASKS.values())]
    ends = [3, 12, 20, 40, None, 5, 8, 30] if lengths else [None]
    return [
        Sampling(way.temperature, way.top_p, way.top_k, ends[place % len(ends)])
        for place, way in ((place, ways[place % len(ways)]) for place in range(count))
    ]


def both(model: Any, recorded: Graphs, count: int, **given: Any) -> tuple[Any, Any]:
    """What the loop draws, and what the steps draw, by the same streams."""
    rows = given.pop("rows", None) or ways_of(count)
    how = {"seeds": [*range(count)], "keep_logps": True, **given}
    prompts = batch(count)
    config = options(LONGEST)
    loop = decode(model, prompts, rows, config, **how)
    return loop, decode(model, prompts, rows, config, graphs=recorded, **how)


def assert_same(found: tuple[Any, Any]) -> None:
    loop, ours = found
    assert ours.ids == loop.ids
    if loop.logps is not None:
        for row, other in zip(ours.logps, loop.logps, strict=True):
            assert row == pytest.approx(other, abs=1e-4)


def quiet(record: Any = None) -> Graphs:
    return Graphs(lambda line: None, record)


def sizes_of(recorded: Graphs) -> set[tuple[int, int]]:
    return {(rows, width) for rows, width, _ in recorded._recordings}


# --------------------------------------------------------------------------------------------------
# (a) The loop's tokens
# --------------------------------------------------------------------------------------------------
def test_tokens_are_the_loop_s_through_changes_of_bucket_and_of_weights() -> None:
    model, recorded, before = model_of(), quiet(), None
    for _ in range(3):
        found = both(model, recorded, 36)
        assert_same(found)
        lengths = {len(row) for row in found[0].ids}
        assert len(lengths) > 8, "rows end early and late"
        assert found[0].ids != before, "the weights count"
        before = found[0].ids
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(1.05)
    rows, widths = ({*sizes} for sizes in zip(*sizes_of(recorded), strict=True))
    assert rows == {64, 32, 16, 8} and widths == {64, 128, 192}


@pytest.mark.parametrize("kind", ["gpt2", "gpt2 of other scales"])
def test_greedy_tokens_are_the_loop_s(kind: str) -> None:
    model, recorded = model_of(kind), quiet()
    for given in ({"keep_logps": False}, {"batch_size": 7}, {}):
        rows = [
            Sampling(0.0, max_completion_length=way.max_completion_length) for way in ways_of(21)
        ]
        assert_same(both(model, recorded, 21, rows=rows, **given))


@pytest.mark.parametrize("way", [*CONTROLS, *(task.sampling for task in TASKS.values())])
def test_each_way_of_sampling_alone(way: Sampling) -> None:
    assert_same(both(model_of(), quiet(), 12, rows=[way] * 12))


def test_small_batches_after_large_ones_and_larger_ones_after_that() -> None:
    model, recorded = model_of(), quiet()
    for count in (12, 4, 36, 5):
        assert_same(
            both(model, recorded, count, rows=ways_of(8)[4:] * (count // 4) + ways_of(count % 4))
        )
    assert recorded._state is not None and recorded._state.rows == 64


def test_ends_of_text_end_rows() -> None:
    model = model_of()
    found = both(model, quiet(), 40, rows=[Sampling(3.0)] * 40)
    assert_same(found)
    ended = [row for row in found[1].ids if row[-1] == END]
    assert len(ended) > 10 and all(END not in row[:-1] for row in ended)
    config, several = options(20, eos_token_id=[3, 4, 5]), {"seeds": [*range(6)]}
    loop, ours = (
        decode(model, PROMPTS, [Sampling(2.0)] * 6, config, graphs=how, **several).ids
        for how in (None, quiet())
    )
    assert loop == ours and {row[-1] for row in ours} <= {3, 4, 5}


def test_it_stops_when_all_rows_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    advance = State.advance

    def counted(self: State, rows: int, *rest: Any) -> None:
        taken.append(rows)
        advance(self, rows, *rest)

    monkeypatch.setattr(State, "advance", counted)
    rows = [Sampling(1.0, max_completion_length=5)] * 29 + [Sampling(1.0, max_completion_length=60)]
    config = options(LONGEST, eos_token_id=[VOCABULARY])
    decode(model_of(), [[1, 2]] * 30, [Sampling(1.0, max_completion_length=5)] * 30, config)
    ours = decode(model_of(), [[1, 2]] * 30, rows, config, graphs=quiet()).ids
    assert [len(row) for row in ours] == [5] * 29 + [60]
    assert taken[0] == 32 and taken[-1] == 8 and taken.count(32) <= 2 * graphs.LATE
    taken.clear()
    decode(model_of(), [[1, 2]] * 30, rows[:1] * 30, options(LONGEST), graphs=quiet())
    assert len(taken) <= 4, "no more than the longest row asks for"


def test_adapters_are_folded_into_the_copies() -> None:
    model = get_peft_model(
        model_of(), LoraConfig(target_modules=["c_attn", "c_fc", "c_proj"], r=4, lora_alpha=7)
    )
    for name, weights in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(weights, std=0.1)
    recorded = quiet()
    assert network_obstacle(model) is None
    adapted = both(model, recorded, 20)
    assert_same(adapted)
    with model.disable_adapter():
        plain = both(model, recorded, 20)
    assert_same(plain)
    assert adapted[0].ids != plain[0].ids
    assert_same(both(model, recorded, 20))


def test_half_precision_is_near_the_model_s_own() -> None:
    """Autocast's rounding depends on shapes, so that tokens need not be the loop's."""
    model, recorded = model_of(spread=0.1), quiet()
    rows = [Sampling(1.0)] * 20
    for change in (1.0, 1.1):
        with torch.no_grad():
            model.transformer.h[0].mlp.c_fc.weight.mul_(change)
        with torch.autocast("cpu", torch.bfloat16):
            drawn = decode(model, batch(20), rows, options(30), keep_logps=True, graphs=recorded)
        assert recorded._weights is not None and recorded._weights.head.dtype == torch.bfloat16
        assert drawn.logps is not None
        for prompt, ids, logps in zip(batch(20), drawn.ids, drawn.logps, strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                expected = expected_of(model, prompt, ids)
            torch.testing.assert_close(torch.tensor(logps), expected, rtol=0.05, atol=0.1)
    assert decode(model.bfloat16(), PROMPTS, rows[:6], options(6), graphs=quiet()).ids


def test_scores_that_are_no_numbers_are_told_and_leave_nothing_behind() -> None:
    model, recorded = model_of(), quiet()
    sound = model.transformer.ln_f.weight.detach().clone()
    for part in (model.transformer.ln_f.weight, model.transformer.h[0].attn.c_attn.weight):
        kept = part.detach().clone()
        part.data.fill_(torch.nan)
        with pytest.raises(RookWorldError, match="not numbers"):
            decode(model, batch(20), ways_of(20), options(), graphs=recorded)
        part.data.copy_(kept)
        assert_same(both(model, recorded, 20))
    assert torch.equal(model.transformer.ln_f.weight, sound)


# --------------------------------------------------------------------------------------------------
# Which networks, and how much memory
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "part", ["wte", "ln_f", "h.0.ln_1", "h.0.attn.c_attn", "h.0.mlp.act", "h.1"]
)
def test_networks_with_hooks_are_left_to_the_loop(part: str) -> None:
    model = model_of()
    assert network_obstacle(model) is None
    said = obstacle(model)
    assert said is not None and "CUDA" in said, "on a CPU there are none"
    model.transformer.get_submodule(part).register_forward_hook(lambda *_: None)
    assert network_obstacle(model) is not None


def test_other_networks_and_adapters_are_left_to_the_loop() -> None:
    assert "GPT-2" in str(network_obstacle(tiny("llama")))
    dora = LoraConfig(target_modules=["c_attn"], r=2, use_dora=True)
    biased = LoraConfig(target_modules=["c_attn"], r=2, lora_bias=True)
    for config in (dora, biased):
        assert "plain LoRA" in str(network_obstacle(get_peft_model(model_of(), config)))


def test_what_would_take_too_much_memory_is_left_to_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    recorded, model = Graphs(said.append), model_of()
    expected = both(model, recorded, 20)
    assert len(said) == 1 and "32 rows of 128 tokens" in said[0]
    monkeypatch.setattr(Graphs, "_has_room", lambda *_: False)
    monkeypatch.setattr(State, "advance", lambda *_: pytest.fail("no step"))
    assert both(model, recorded, 20)[1] == expected[0]


def test_the_memory_that_is_said_is_what_is_kept() -> None:
    recorded = quiet()
    both(model_of(), recorded, 20)
    state, weights = recorded._state, recorded._weights
    assert state is not None and weights is not None
    kept = sum(layer.nbytes for layer in state.cache) + sum(copy.nbytes for copy in weights.all)
    assert recorded._bytes(state.rows, state.columns) == kept


# --------------------------------------------------------------------------------------------------
# (b) Nothing in a step waits
# --------------------------------------------------------------------------------------------------
EVERY_WAY = [
    Ways(draws, most_k, has_top_p, keeps_logps, ends)
    for draws in (False, True)
    for most_k in (0, 5)
    for has_top_p in (False, True)
    for keeps_logps in (False, True)
    for ends in ((), (0, 3))
]


class WithoutGuards(TorchFunctionMode):
    """What looks for a GPU before it reaches FakeTensorMode, where torch was built without CUDA."""

    SAME: ClassVar[dict[Any, Any]] = {
        torch.Tensor.__invert__: torch.bitwise_not,
        torch.Tensor.nonzero: torch.ops.aten.nonzero,
        **dict.fromkeys(
            (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__int__, torch.Tensor.__bool__),
            torch.ops.aten._local_scalar_dense,
        ),
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return self.part(*args)
        if func in (torch.Tensor.__setitem__, torch.Tensor.copy_):
            into = args[0] if len(args) == 2 else self.part(*args[:2])
            value = torch.as_tensor(args[-1], device=into.device)
            return torch.ops.aten.copy_(into, value)
        return self.SAME.get(func, func)(*args, **(kwargs or {}))

    def part(self, tensor: torch.Tensor, place: Any) -> torch.Tensor:
        """``tensor[place]``"""
        place = list(place) if isinstance(place, tuple) else [place]
        if Ellipsis in (key for key in place if not isinstance(key, torch.Tensor)):
            at = place.index(Ellipsis)
            missing = tensor.dim() - len(place) + 1 + place.count(None)
            place[at : at + 1] = [slice(None)] * missing
        axis, indices = 0, []
        for key in place:
            if isinstance(key, int):
                tensor = tensor.select(axis, key)
                continue
            if key is None:
                tensor = tensor.unsqueeze(axis)
            elif isinstance(key, slice) and key != slice(None):
                tensor = torch.ops.aten.slice(tensor, axis, key.start, key.stop)
            elif isinstance(key, torch.Tensor) and key.dtype == torch.bool:
                (key,) = torch.ops.aten.nonzero(key).unbind(1)
            indices.append(key if isinstance(key, torch.Tensor) else None)
            axis += 1
        has_tensors = any(index is not None for index in indices)
        return torch.ops.aten.index(tensor, indices) if has_tensors else tensor


def test_parts_of_tensors_are_those_of_brackets() -> None:
    numbers, at = torch.arange(120).view(2, 3, 4, 5), torch.tensor([1, 0])
    places: list[Any] = [
        1,
        slice(0, 2),
        (..., slice(0, 2)),
        (slice(None), at),
        (at[:1], at),
        (0, ..., 1),
    ]
    places += [
        (slice(None), at, slice(None), slice(0, 3)),
        (slice(None), None),
        (..., slice(-1, None)),
    ]
    places += [torch.tensor([False, True])]
    for place in places:
        assert torch.equal(WithoutGuards().part(numbers, place), numbers[place]), place


@pytest.fixture
def on_a_gpu() -> Iterator[Callable[[int], State]]:
    """A state whose tensors say that they are on a GPU; they have no numbers."""
    weights = Weights(model_of(vocab_size=9000))
    with FakeTensorMode(), WithoutGuards(), torch.no_grad():
        fake = [torch.empty(copy.shape, device="cuda") for copy in weights.all]
        weights.all, (weights.tokens, weights.positions) = fake, fake[:2]
        weights.blocks = [fake[2 + 12 * number :][:12] for number in range(2)]
        weights.norm, weights.norm_bias, weights.head = fake[-3:]
        yield lambda rows: State(weights, rows, 64, torch.empty(1, 16, device="cuda"))


@pytest.mark.parametrize("way", EVERY_WAY)
def test_nothing_in_a_step_waits_for_the_gpu(way: Ways, on_a_gpu: Callable[[int], State]) -> None:
    state = on_a_gpu(16)
    ends = torch.tensor(way.ends, dtype=torch.long, device="cuda")
    state.advance(8, 64, way, ends)
    assert all(tensor.device.type == "cuda" for tensor in state.tensors())
    state.shrink(16, 8, 64)


WAITS: dict[str, Callable[[State], object]] = {
    "item": lambda state: state.counts[0].item(),
    "tolist": lambda state: state.counts.tolist(),
    "int": lambda state: int(state.counts[0]),
    "if": lambda state: bool(state.counts[0] > 0),
    "nonzero": lambda state: state.used.nonzero(),
    "booleans": lambda state: state.tokens[state.used > 0],
    "unique": lambda state: state.tokens.unique(),
    "repeat": lambda state: state.tokens.repeat_interleave(state.used),
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_refused(
    wait: str, on_a_gpu: Callable[[int], State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the same step with one wait more."""
    take = State.take

    def waiting(self: State, *rest: Any) -> None:
        take(self, *rest)
        WAITS[wait](self)

    monkeypatch.setattr(State, "take", waiting)
    state, ends = on_a_gpu(16), torch.tensor((0, 3), device="cuda")
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        state.advance(8, 64, EVERY_WAY[-1], ends)


OF_A_STEP = [
    *(State.advance, State.logits, State.take, State._block, State._attend, State._normed),
    *(
        State._choose,
        State.shrink,
        decoding.logps_of,
        decoding.inverted,
        decoding._inside,
        decoding._in_blocks,
        decoding.within_top_k,
    ),
]


def copies_to_the_host(source: str) -> list[str]:
    """Calls in a source that bring a tensor to the host, which FakeTensorMode lets pass."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = {
        ast.unparse(call): call.func.attr for call in calls if isinstance(call.func, ast.Attribute)
    }
    moves = {"cpu", "numpy", "tolist", "item", "synchronize", "cuda", "pin_memory", "tensor"}
    return [
        text for text, name in named.items() if name in moves or (name == "to" and "cpu" in text)
    ]


def test_nothing_in_a_step_copies_to_the_host() -> None:
    for function in OF_A_STEP:
        assert copies_to_the_host(textwrap.dedent(inspect.getsource(function))) == [], function
    assert copies_to_the_host(inspect.getsource(decoding.decode_batch)), "the loop does"
    assert copies_to_the_host("x = y.cpu()") and copies_to_the_host("x.to('cpu')")


# --------------------------------------------------------------------------------------------------
# (c) A recording of the operators, replayed without Python
# --------------------------------------------------------------------------------------------------
class Tape(TorchDispatchMode):
    """Operators as they are called, with the tensors that they read and write, as a graph has them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Call them again on the same tensors; what is new goes where it went the first time."""
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            pairs = (
                [(out, again)] if isinstance(out, torch.Tensor) else zip(out, again, strict=True)
            )
            for before, now in pairs:
                if now.data_ptr() != before.data_ptr():  # else a view, or written in place
                    before.copy_(now)


class Taped:
    """Records a step when it is first taken, and replays it from then on."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, step: Callable[[], object]) -> Callable[[], object]:
        tape = Tape()

        def run() -> None:
            if tape.calls:
                self.replays += 1
                return tape.replay()
            with tape:
                step()

        return run


def test_the_operators_alone_draw_the_loop_s_tokens() -> None:
    model, taped = model_of(), Taped()
    recorded = quiet(taped)
    for _ in range(2):
        assert_same(both(model, recorded, 20))
        with torch.no_grad():
            model.transformer.wte.weight.mul_(1.1)
    steps = taped.replays
    assert steps > LONGEST, "most steps are replayed"
    rows = [Sampling(0.0)] * 20
    assert_same(both(model, recorded, 20, rows=rows, keep_logps=False))
    assert taped.replays > steps


BROKEN = ["step", "column", "counts", "tokens"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_tensor_that_is_replaced_and_not_written_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a recording such a step is right, so that only the recording can tell."""
    advance = State.advance

    def replacing(self: State, *rest: Any) -> None:
        setattr(self, name, getattr(self, name).clone())
        advance(self, *rest)

    monkeypatch.setattr(State, "advance", replacing)
    assert_same(both(model_of(), quiet(), 20))
    loop, ours = both(model_of(), quiet(Taped()), 20)
    if name == "counts":  # which only says when to stop
        assert ours.ids == loop.ids
    else:
        assert ours.ids != loop.ids


def test_the_loop_s_own_step_cannot_be_recorded() -> None:
    """It has the cache's width as a number."""
    model = model_of()
    steps, again = (decoding._Steps(model, PROMPTS, [20] * 6, END) for _ in range(2))
    tokens, tape = torch.tensor([3, 4, 5, 6, 7, 8]), Tape()
    with torch.no_grad(), tape:
        steps(tokens)
    out = tape.calls[-1][3]
    with torch.no_grad():
        again(tokens)
        tape.replay()
        assert not torch.allclose(out, again(tokens))


# --------------------------------------------------------------------------------------------------
# (d) One graph for torch's compiler
# --------------------------------------------------------------------------------------------------
def compiled(step: Callable[[], object]) -> Callable[[], object]:
    torch._dynamo.reset()
    made: Callable[[], object] = torch.compile(step, fullgraph=True, backend="eager")
    return made


def test_torch_compiles_a_step_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Sampling(way.temperature, way.top_p, way.top_k) for way in ways_of(8)]
    assert_same(both(model_of(), quiet(compiled), 8, rows=rows))
    take = State.take

    def waiting(self: State, *rest: Any) -> None:
        take(self, *rest)
        if self.counts[0] == 0:
            self.counts.zero_()

    monkeypatch.setattr(State, "take", waiting)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        both(model_of(), quiet(compiled), 8, rows=rows)


# --------------------------------------------------------------------------------------------------
# How CUDA is asked
# --------------------------------------------------------------------------------------------------
def test_recordings_share_one_pool_and_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's CUDA functions replaced: on a GPU the rest is `benchmarks/graph_check.py`'s."""
    recorded: list[dict[str, Any]] = []

    @contextmanager
    def graph(made: Any, **how: Any) -> Iterator[None]:
        recorded.append(how)
        yield

    made = SimpleNamespace(replay=lambda: None)
    for name, function in {
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": lambda device: object(),
        "CUDAGraph": lambda: made,
        "device": lambda device: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    record, steps = graphs.Recorder(torch.device("cuda", 0)), []
    for number in range(2):
        assert record(lambda number=number: steps.append(number)) is made.replay  # type: ignore[misc]
    assert steps == [0, 1] and recorded[0] == recorded[1]
    assert recorded[0].keys() == {"pool", "stream", "capture_error_mode"}
    assert recorded[0]["capture_error_mode"] == "thread_local", "other threads may use the GPU"
