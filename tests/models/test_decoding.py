import random
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.nn import functional
from transformers import (
    GenerationConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.evaluation.models import LanguageModel
from rookworld_rlvr.models import decoding
from rookworld_rlvr.models.decoding import GREEDY, PLAIN, Chooser, complete, decode, inverted
from rookworld_rlvr.tasks.task import Sampling

from .test_architectures import KINDS, network

CPU = torch.device("cpu")
VOCABULARY, END = 24, 0
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [1, 2], [5], [3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 0, 5], [2, 1]]


def tiny(kind: str = "gpt2", **shape: Any) -> Any:
    return network(kind, VOCABULARY, END, **shape).eval()


def options(length: int = 20, **given: Any) -> GenerationConfig:
    ends = {"pad_token_id": END, "eos_token_id": [END], "disable_compile": True}
    return GenerationConfig(max_new_tokens=length, **{**ends, **given})


def by_generate(model: Any, prompts: Any, config: GenerationConfig) -> list[list[int]]:
    """Completions by transformers alone, each prompt by itself; end of text included."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        found.append(cut(out[0, len(prompt) :].tolist()))
    return found


def greedy(model: Any, **given: Any) -> list[list[int]]:
    return decode(model, PROMPTS, [Sampling(0.0)] * 6, options(), **given).ids


def expected_of(model: Any, prompt: list[int], ids: list[int], heat: float = 1.0) -> torch.Tensor:
    """The log-probs of a completion, by the model's own forward of the whole row."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / heat).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def cut(row: list[int]) -> list[int]:
    return row[: row.index(END) + 1] if END in row else row


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_generate(kind: str) -> None:
    model = tiny(kind)
    expected = by_generate(model, PROMPTS, options(do_sample=False))
    assert len({len(row) for row in expected}) > 1 or kind != "gpt2", "rows end at different steps"
    for size in (None, 1, 4):
        assert greedy(model, batch_size=size) == expected
    assert greedy(model, by_generate=True) == expected


def test_adapters_count() -> None:
    model = get_peft_model(tiny(), LoraConfig(target_modules=["c_attn", "c_fc"], r=4))
    for name, weights in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(weights, std=0.3)
    expected = by_generate(model, PROMPTS, options(do_sample=False))
    assert greedy(model) == expected
    with model.disable_adapter():
        assert greedy(model) != expected


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_adapters_that_put_tokens_before_a_text_count(kind: str) -> None:
    tuning = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = get_peft_model(tiny(kind), tuning).eval()
    prompts = [prompt for prompt in PROMPTS if len(prompt) == 2]
    expected = by_generate(model, prompts, options(6, do_sample=False))
    assert decode(model, prompts, [Sampling(0.0)] * 2, options(6)).ids == expected


@pytest.mark.parametrize("part", ["", ".attn", ".mlp"])
def test_hooks_count_at_every_token(part: str) -> None:
    model = tiny()

    def turned(module: Any, args: Any, output: Any) -> Any:
        return (-output[0], *output[1:]) if isinstance(output, tuple) else -output

    plain = by_generate(model, PROMPTS, options(do_sample=False))
    model.get_submodule(f"transformer.h.0{part}").register_forward_hook(turned)
    assert greedy(model) == by_generate(model, PROMPTS, options(do_sample=False)) != plain


@pytest.mark.parametrize("loop", [False, True], ids=["own loop", "generate"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_log_probs_are_the_model_s_at_the_row_s_temperature(kind: str, loop: bool) -> None:
    model = tiny(kind)
    temperatures = [0.5, 1.0, 1.5, 0.8, 1.2, 2.0]
    rows = [Sampling(t, top_p=0.9, top_k=9) for t in temperatures]
    torch.manual_seed(0)
    drawn = decode(model, PROMPTS, rows, options(), keep_logps=True, by_generate=loop)
    assert drawn.logps is not None
    for prompt, ids, logps, t in zip(PROMPTS, drawn.ids, drawn.logps, temperatures, strict=True):
        expected = expected_of(model, prompt, ids, t)
        torch.testing.assert_close(torch.tensor(logps), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decoding", [GREEDY, PLAIN])
def test_no_prompts_have_no_answers(random_gpt2: Any, tokenizer: Any, decoding: Any) -> None:
    say: Any = partial(complete, random_gpt2.eval(), tokenizer, max_new_tokens=2)
    assert say([], decoding=decoding) == []
    model = LanguageModel("tiny", say, decoding)
    assert model.answers([]) == [] and model.samples([], 2) == []


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_rows_are_the_same_in_any_company(kind: str) -> None:
    """Drawn from streams of their own, 1 and 32 at once, and the other way round."""
    model = tiny(kind)
    chance, seeds = random.Random(1), list(range(32))
    prompts = [chance.choices(range(1, VOCABULARY), k=1 + index % 11) for index in seeds]
    rows = [Sampling(*way) for way in [(0.1,), (1.0, 0.9), (1.5, 1.0, 5), (0.7, 0.95, 8)] * 8]

    def drawn(order: int, size: int) -> list[list[int]]:
        how: Any = {"seeds": seeds[::order], "batch_size": size}
        return decode(model, prompts[::order], rows[::order], options(), **how).ids

    assert drawn(1, 1) == drawn(1, 32) == drawn(-1, 7)[::-1]


def test_rows_end_at_their_own_length_or_end_of_text() -> None:
    model = tiny()
    model.transformer.wte.weight.data[END] = -100 * model.transformer.ln_f.bias.data
    rows = [Sampling(1.0, max_completion_length=n) for n in (3, None, 7, 1, 12, 5)]
    config = options(12, eos_token_id=[VOCABULARY])  # which is never drawn
    for loop in (False, True):
        drawn = decode(model, PROMPTS, rows, config, keep_logps=True, by_generate=loop)
        for parts in (drawn.ids, drawn.logps or []):
            assert [len(row) for row in parts] == [3, 12, 7, 1, 12, 5]
    ends = [row[0] for row in greedy(model)]
    drawn = decode(model, PROMPTS, [Sampling(0.0)] * 6, options(4, eos_token_id=ends))
    assert drawn.ids == [[end] for end in ends], "what ends a row belongs to it"


@pytest.mark.parametrize("kind", ["gpt2", "gpt2 upcast"])
def test_rows_end_where_the_table_of_positions_does(kind: str) -> None:
    model, config = tiny(kind, n_positions=16), options(14, eos_token_id=[VOCABULARY])
    prompts = [[3] * 12] + [[1, 2]] * 7
    rows = [Sampling(0.0, max_completion_length=16 - len(prompt)) for prompt in prompts]
    drawn = decode(model, prompts, rows, config, batch_size=8)
    assert [len(row) for row in drawn.ids] == [4] + [14] * 7
    with pytest.raises(IndexError):  # as of `generate`; no position is computed twice
        decode(model, prompts, [Sampling(0.0)] * 8, config)


CONTROLS = [Sampling(), Sampling(0.5, 0.9), Sampling(0.95, 0.95), Sampling(1.7, top_k=3)]
CONTROLS += [Sampling(0.8, 0.4, top_k=7), Sampling(0.01, 0.01), Sampling(1.0, 1e-6)]
CONTROLS += [Sampling(3.0, 0.999, 49), Sampling(1.3, 0.6)]


def by_warpers(row: Sampling, scores: torch.Tensor) -> torch.Tensor:
    """One row as transformers' own warpers cut it."""
    warpers: list[Any] = [TemperatureLogitsWarper(row.temperature)]
    warpers += [TopKLogitsWarper(row.top_k)] if row.top_k else []
    warpers += [TopPLogitsWarper(row.top_p)] if row.top_p < 1 else []
    for warper in warpers:
        scores = warper(None, scores)
    return scores


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 30.0])
def test_rows_are_cut_as_transformers_cuts_a_batch(spread: float) -> None:
    for seed in range(20):
        noise = torch.randn(len(CONTROLS), 50, generator=torch.Generator().manual_seed(seed))
        chooser, logits = Chooser(CONTROLS, CPU), spread * noise
        theirs = [by_warpers(row, one) for row, one in zip(CONTROLS, logits.split(1), strict=True)]
        torch.testing.assert_close(chooser.cut(chooser.scaled(logits)), torch.cat(theirs))


def test_what_has_no_probability_is_never_drawn() -> None:
    logits = torch.full((4000, 6), -torch.inf)
    logits[:, 2], logits[:, 4] = 0.0, -20.0
    drawn, _ = Chooser([Sampling()] * 4000, CPU)(logits)
    assert set(drawn.tolist()) <= {2, 4}
    with pytest.raises(RookWorldError, match="not numbers"):
        Chooser([Sampling()] * 4000, CPU)(logits * torch.nan)


def chi_squared(one: Counter[Any], other: Counter[Any]) -> tuple[float, int]:
    """Two samples of one size: the statistic, and its degrees of freedom. Rare cells are one."""
    cells: dict[Any, list[int]] = {}
    for cell, count in (one + other).items():
        pair = cells.setdefault(cell if count >= 20 else "rare", [0, 0])
        pair[0] += one[cell]
        pair[1] += other[cell]
    return sum((a - b) ** 2 / (a + b) for a, b in cells.values()), len(cells) - 1


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_it_samples_the_distribution_of_generate(kind: str) -> None:
    """Whole completions of up to three tokens, all controls on, rows of two kinds in a batch."""
    model, count = tiny(kind), 6000
    ways = [Sampling(0.9, 0.9, 12), Sampling(1.4, 0.8, 7, max_completion_length=2)]
    torch.manual_seed(0)
    prompts = [PROMPTS[0], PROMPTS[1]] * count
    ours = decode(model, prompts, ways * count, options(3)).ids
    wrong = decode(model, prompts, ways[::-1] * count, options(3)).ids
    for index, way in enumerate(ways):
        given = {name: getattr(way, name) for name in ("temperature", "top_p", "top_k")}
        config = options(way.max_completion_length or 3, do_sample=True, **given)
        ids = torch.tensor([PROMPTS[index]]).expand(count, -1)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        theirs = Counter(tuple(cut(row)) for row in out[:, ids.size(1) :].tolist())
        found, freedom = chi_squared(Counter(map(tuple, ours[index::2])), theirs)
        assert freedom > 10
        assert found < freedom + 4 * (2 * freedom) ** 0.5
        found, freedom = chi_squared(Counter(map(tuple, wrong[index::2])), theirs)
        assert found > freedom + 20 * (2 * freedom) ** 0.5, "another row's controls show"


def test_a_prompt_is_read_once() -> None:
    model, read = tiny(), []
    model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].shape), with_kwargs=True
    )
    decode(model, PROMPTS * 8, [Sampling()] * 48, options(5))
    assert read == [torch.Size([5, 7])]


def test_rows_that_ended_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long row among many short ones: it is computed alone."""
    sizes: list[int] = []
    norm = functional.layer_norm

    def watched(states: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(states.size(0))
        return norm(states, *rest)

    monkeypatch.setattr(functional, "layer_norm", watched)
    lengths = [2] * 30 + [3] * 29 + [10]
    rows = [Sampling(1.0, max_completion_length=n) for n in lengths]
    drawn = decode(tiny(), [PROMPTS[0]] * 60, rows, options(10, eos_token_id=[VOCABULARY]))
    assert [len(row) for row in drawn.ids] == lengths and set(sizes) == {1, 30, 60}


def test_precision_is_what_autocast_says() -> None:
    model = tiny()
    rows = [Sampling(0.0)] * 6
    full = decode(model, PROMPTS, rows, options(6), keep_logps=True)
    with torch.autocast("cpu", torch.bfloat16):
        half = decode(model, PROMPTS, rows, options(6), keep_logps=True)
    assert full.logps is not None and half.logps is not None
    for prompt, ids, logps in zip(PROMPTS, half.ids, half.logps, strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            expected = expected_of(model, prompt, ids)
        torch.testing.assert_close(torch.tensor(logps), expected, rtol=0.05, atol=0.1)
    assert half.logps != full.logps
    assert decode(model.bfloat16(), PROMPTS, rows, options(6)).ids


@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_a_large_vocabulary_is_drawn_from_in_blocks(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens at which sums over the whole vocabulary reach a level, also at the blocks' borders."""
    size, chance = 50_257, torch.Generator().manual_seed(0)
    scores = spread * torch.randn(64, size, generator=chance)
    scores[:, 1000:30_000] = -torch.inf
    levels = torch.rand(64, 1, generator=chance, dtype=torch.float64)
    ends = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    levels[0], levels[1:9] = 0.0, 1 - (ends[1:9, 255::6000][:, :1] / ends[1:9, -1:])
    drawn, is_finite = inverted(scores, levels)
    monkeypatch.setattr(decoding, "BLOCK_FROM", size)
    expected, _ = inverted(scores, levels)
    same = drawn == expected
    assert is_finite.all() and same[9:].all() and ((drawn - expected).abs() <= 1).all()
    assert scores.gather(1, drawn.unsqueeze(1)).isfinite().all()
    assert len(drawn.unique()) > 20 and not 1000 <= drawn.min() < 30_000
    broken = scores.clone()
    broken[3, 7] = torch.nan
    monkeypatch.undo()
    assert inverted(broken, levels)[1].tolist() == [row != 3 for row in range(64)]


def test_blocks_draw_by_the_probabilities() -> None:
    probs = torch.zeros(50_257)
    where, share = (
        torch.tensor([0, 255, 256, 30_000, 50_256]),
        torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]),
    )
    probs[where] = share
    torch.manual_seed(0)
    found = Counter(
        token for _ in range(20) for token in inverted(probs.log().expand(400, -1))[0].tolist()
    )
    assert {*found} == {*where.tolist()}
    for token, part in zip(where.tolist(), share.tolist(), strict=True):
        assert abs(found[token] - 8000 * part) < 4 * (8000 * part * (1 - part)) ** 0.5


@pytest.mark.parametrize(("there", "to"), [("cpu", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_only_what_is_on_the_host_is_pinned_for_a_gpu(there: str, to: str) -> None:
    """CUDA refuses to pin what is on a GPU already."""
    said: list[Any] = []
    tensor: Any = SimpleNamespace(device=torch.device(there))

    def pinned() -> Any:
        said.append("pinned")
        return tensor

    tensor.pin_memory = pinned
    tensor.to = lambda device, non_blocking: said.append((device.type, non_blocking))
    decoding.on_device(tensor, torch.device(to))
    assert said == [*(["pinned"] if there != to else []), (to, True)]
