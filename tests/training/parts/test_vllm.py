"""What can be said of vLLM without it; `tests/vllm` has the engine itself."""

import contextlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.generation.vllm_generation import VLLMGeneration

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.tasks.task import Sampling
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts import vllm
from rookworld_rlvr.training.parts.vllm import VLLM


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"installed": False}, r"pip install 'rookworld-rlvr\[vllm\]'"),
        ({"vllm_mode": "server"}, "vllm_mode: server needs a GPU"),
        ({"advantage_estimator": "gae"}, "gae does not go with use_vllm"),
        ({"task_sampling": {"policy": {}}}, None),
    ],
)
def test_what_vllm_lacks_is_said_before_anything_is_loaded(
    options: dict[str, Any], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = object() if options.pop("installed", True) else None
    monkeypatch.setattr(vllm, "find_spec", lambda name: installed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options |= {"rewards": [{"name": "graduated"}], "use_cpu": True, "bf16": False}
    refused = pytest.raises(ConfigurationError, match=words) if words else contextlib.nullcontext()
    with refused:
        assert RookWorldGRPOConfig(use_vllm=True, **options).use_vllm


def test_trl_calls_vllm_as_the_part_expects() -> None:
    """`make canary` shows when that changes."""
    asks = VLLMGeneration.generate
    expected = ["self", "prompts", "images", "num_generations", "profiler"]
    assert list(inspect.signature(asks).parameters) == expected
    assert list(inspect.signature(VLLMGeneration.sync_weights).parameters) == ["self"]
    source = inspect.getsource(asks)
    assert "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm" in source
    assert all(f"self.{name}" in source for name in ("top_p", "top_k", "min_p"))


def test_each_row_is_drawn_as_its_task_says() -> None:
    part = object.__new__(VLLM)
    ways = {"a": Sampling(0.5, 0.9), "b": Sampling(1.0, 1.0, 5, max_completion_length=7)}
    part._trainer = SimpleNamespace(
        task_samplings=ways,
        processing_class=SimpleNamespace(batch_decode=lambda ids, **_: ["ab"[i[0]] for i in ids]),
        samplings=lambda texts: [ways[text] for text in texts],
        max_completion_length=32,
    )
    prompts = [{"prompt_token_ids": [place]} for place in (0, 1)]
    for is_uncut, tails in ((False, [(0.9, 0), (1.0, 5)]), (True, [(1.0, 0)] * 2)):
        part._is_uncut = is_uncut
        plain = SimpleNamespace(top_p=1.0, top_k=0)
        plain.clone = lambda: SimpleNamespace(top_p=1.0, top_k=0)
        records = part._by_row(lambda _, sampling_params: sampling_params, prompts, plain)
        assert [(one.temperature, one.max_tokens) for one in records] == [(0.5, 32), (1.0, 7)]
        assert [(one.top_p, one.top_k) for one in records] == tails
