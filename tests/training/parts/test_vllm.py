"""What can be said of vLLM without it; `tests/vllm` has the engine itself."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from datasets import Dataset
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.tasks.task import Sampling
from rookworld_rlvr.training import preflight
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts import vllm
from rookworld_rlvr.training.parts.vllm import VLLM
from rookworld_rlvr.training.preflight import Parity


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"installed": False}, r"pip install 'rookworld-rlvr\[vllm\]'"),
        ({"vllm_mode": "server"}, "vllm_mode: server needs a GPU"),
        ({"pass_samples": 4, "generation_kwargs": {"stop": ["+"]}}, "not sampled by vLLM"),
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
    asks, client = VLLMGeneration.generate, VLLMClient.generate
    expected = ["self", "prompts", "images", "num_generations", "profiler"]
    assert list(inspect.signature(asks).parameters) == expected
    assert list(inspect.signature(VLLMGeneration.sync_weights).parameters) == ["self"]
    source = inspect.getsource(asks)
    assert "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm" in source
    assert "self.vllm_client.generate(" in source
    names = {"prompts", "n", "temperature", "top_p", "top_k", "min_p", "max_tokens"}
    assert names <= set(inspect.signature(client).parameters)


def part(**attributes: Any) -> VLLM:
    """The part without an engine."""
    made = object.__new__(VLLM)
    made._uncut = False
    accelerator = SimpleNamespace(reduce=lambda sums, reduction: sums)
    made._trainer = SimpleNamespace(accelerator=accelerator, **attributes)
    return made


@pytest.mark.parametrize(
    ("weights", "share"),
    [([1.0, 1.0], 1.0), ([2.0, 2.0], 1.0), ([1.0, 3.0], 0.8), ([1.0, float("nan")], 1.0)],
)
def test_the_effective_share_is_kish_s(weights: list[float], share: float) -> None:
    """(sum w)^2 / (n sum w^2); a taught answer has no log-prob of vLLM and does not count."""
    ours = torch.log(torch.tensor(weights)).unsqueeze(1) / 2 * torch.tensor([[1.0, 1.0, 7.0]])
    batch = {
        "old_per_token_logps": ours,
        "sampling_per_token_logps": torch.zeros(2, 3),
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 0]]),
    }
    found = part().metrics(batch)["sampling/effective_share"]
    assert found == pytest.approx(share)
    del batch["old_per_token_logps"]
    assert part().metrics(batch) == {}, "TRL corrects nothing"


def test_a_request_for_each_way_of_sampling_and_answers_in_order() -> None:
    asked: list[dict[str, Any]] = []

    def generate(prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        asked.append({"prompts": prompts, **settings})
        answers = [[*ids, turn] for ids in prompts for turn in range(n)]
        return {"prompt_ids": prompts, "completion_ids": answers, "logprobs": answers}

    ways = {"a": Sampling(0.5, 0.9), "b": Sampling(1.0, 1.0, 5, max_completion_length=7)}
    made = part(
        task_samplings=ways,
        processing_class=SimpleNamespace(batch_decode=lambda ids, **_: ["ab"[i[0]] for i in ids]),
        samplings=lambda texts: [ways[text] for text in texts],
        max_completion_length=32,
    )
    prompts = [[0, 10], [1, 11], [0, 12]]
    found = made._by_requests(generate, prompts, n=2, temperature=9.0, logprobs=0)
    assert found["prompt_ids"] == prompts
    assert found["completion_ids"] == [[*ids, turn] for ids in prompts for turn in (0, 1)]
    assert [one["prompts"] for one in asked] == [[[0, 10], [0, 12]], [[1, 11]]]
    assert [one["temperature"] for one in asked] == [0.5, 1.0]
    assert [one["max_tokens"] for one in asked] == [32, 7]
    made._trainer.task_samplings = None
    made._by_requests(generate, prompts, n=2, temperature=9.0)
    assert [one["temperature"] for one in asked[2:]] == [9.0], "one request, as TRL says"
    made._uncut = True
    made._by_requests(generate, prompts, n=1)
    assert {(one["top_p"], one["top_k"], one["min_p"]) for one in asked[3:]} == {(1.0, 0, 0.0)}


@pytest.mark.parametrize(
    ("rounding", "use_vllm", "allowed"),
    [(0.01, True, 0.5), (0.12, True, 0.5), (0.8, True, 0.8), (0.12, False, 0.12)],
)
def test_half_precision_allows_another_engine_more_and_large_logits_do_not_allow_it_less(
    monkeypatch: pytest.MonkeyPatch, rounding: float, use_vllm: bool, allowed: float
) -> None:
    monkeypatch.setattr(preflight, "_rounding", lambda trainer: rounding)
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(use_vllm=use_vllm),
        accelerator=SimpleNamespace(mixed_precision="bf16"),
    )
    tolerance = preflight.preflight_tolerance(trainer)
    assert preflight.sampler_tolerance(trainer, tolerance) == allowed
    parity = Parity(alone_gap=0.01, sampler_gap=0.2, reference_kl=0.0)
    assert parity.faults(0.05) == ["sampler_gap = 0.2"]
    assert parity.faults(0.05, sampler=0.5) == []
    assert Parity(0.2, 0.2, 0.0).faults(0.05, sampler=0.5) == ["alone_gap = 0.2"]


def test_the_lengths_of_a_stream_are_not_looked_at_before() -> None:
    rows = Dataset.from_list([{"prompt": "P: "}]).to_iterable_dataset()
    made = part(train_dataset=rows)
    made._engine = SimpleNamespace(mode="colocate", llm=MagicMock())
    made._check_lengths()
