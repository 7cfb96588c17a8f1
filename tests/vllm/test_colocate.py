"""vLLM inside of the training process: what it samples, with which weights, and how it ends."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from rookworld_rlvr.models.loading import PLAYING_MODEL
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.training.measurements import sample_heldout
from rookworld_rlvr.training.preflight import measure_parity, mixed_length_prompts

from ..support import RECIPES, REPOSITORY, first_batch, history, ran
from .conftest import SETTINGS

Make = Callable[..., Any]


@contextmanager
def changed_weights(trainer: Any) -> Iterator[None]:
    """Noise on what is trained, in front of which vLLM has not synchronised its weights."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in filter(lambda each: each.requires_grad, trainer.model.parameters()):
            weights.add_(0.05 * torch.randn_like(weights))
    engine = trainer.vllm_generation
    synchronise, engine.sync_weights = engine.sync_weights, lambda: None
    try:
        yield
    finally:
        engine.sync_weights = synchronise


def gap(trainer: Any) -> float:
    """The largest difference between vLLM's log-probs and the trainer's, in nats."""
    return measure_parity(trainer, mixed_length_prompts(trainer)).sampler_gap


CUT = {"temperature": 0.7, "top_p": 0.5, "top_k": 3}
BY_TASK = {
    "policy": {"top_k": 1, "max_completion_length": 5},
    "environment": {"temperature": 2.0, "top_p": 1.0, "max_completion_length": 9},
}


@pytest.mark.parametrize("options", [{}, CUT, {"task_sampling": BY_TASK}], ids=["", "cut", "task"])
def test_the_preflight_asks_vllm(vllm_trainer: Make, options: dict[str, Any]) -> None:
    trainer = vllm_trainer(preflight=False, **options)
    prompts = mixed_length_prompts(trainer)
    assert measure_parity(trainer, prompts).faults(1e-4) == []

    def half(*given: Any) -> Any:
        scores = trainer.score(*given)
        return scores._replace(logps=0.5 * scores.logps)

    assert measure_parity(trainer, prompts, score=half).sampler_gap > 0.1


def test_a_file_in_half_precision_is_computed_in_single(vllm_trainer: Make) -> None:
    trainer = vllm_trainer(PLAYING_MODEL, preflight=False)
    trainer.vllm_generation.sync_weights = lambda: None  # vLLM keeps what it read from the file
    assert gap(trainer) < 1e-4


@pytest.mark.parametrize("kind", ["all weights", "adapters"])
def test_what_is_sampled_follows_the_weights(vllm_trainer: Make, kind: str) -> None:
    adapters = LoraConfig(target_modules=["c_attn"], r=8) if kind == "adapters" else None
    trainer = vllm_trainer(peft_config=adapters, preflight=False)
    names = [name for name, _ in trainer.model.named_parameters()]
    with changed_weights(trainer):
        assert gap(trainer) > 0.1, "the old weights"
    changed = {name: weights.clone() for name, weights in trainer.model.named_parameters()}
    assert gap(trainer) < 1e-4, "the new ones"
    after = dict(trainer.model.named_parameters())
    assert names == list(after)
    for name, weights in after.items():
        torch.testing.assert_close(weights, changed[name], rtol=0, atol=1e-6)


def test_each_task_is_sampled_in_its_own_way(vllm_trainer: Make) -> None:
    trainer = vllm_trainer(
        task_sampling=BY_TASK, per_device_train_batch_size=32, num_generations=8, preflight=False
    )
    batch = first_batch(trainer)
    texts: dict[str, list[list[int]]] = {"policy": [], "environment": []}
    groups: dict[str, set[str]] = {"policy": set(), "environment": set()}
    for place, ids in enumerate(batch["completion_ids"]):
        prompt = batch["prompt_ids"][place][batch["prompt_mask"][place].bool()]
        text = trainer.processing_class.decode(prompt)
        groups[task_of(text)].add(text)
        texts[task_of(text)].append(ids[batch["completion_mask"][place].bool()].tolist())
    longest = {task: max(map(len, rows)) for task, rows in texts.items()}
    assert longest == {"policy": 5, "environment": 9}
    distinct = {task: len(set(map(tuple, rows))) for task, rows in texts.items()}
    assert distinct["policy"] == len(groups["policy"]), "top-k 1 draws alike"
    assert distinct["environment"] > len(groups["environment"]), "temperature 2 does not"
    hot = batch["temperature"] == 2.0
    ratio = batch["importance_sampling_ratio"]
    assert (ratio[hot] - 1).abs().max() < 1e-3, "scored at the temperature of sampling"


def test_rounds_of_sampling_and_what_is_logged(vllm_trainer: Make) -> None:
    trainer = vllm_trainer(max_steps=2, temperature=0.3, zero_variance="resample")
    trainer.train()

    def logged(name: str) -> list[float]:
        return [log[name] for log in trainer.state.log_history if name in log]

    assert max(logged("zero_variance/extra_prompts")) > 0
    for name, bound in (("mean", 1e-4), ("max", 1e-3)):
        gaps = logged(f"sampling/sampling_logp_difference/{name}")
        assert len(gaps) == 2 and max(gaps) < bound


def test_held_out_rows_are_answered_as_without_vllm(vllm_trainer: Make) -> None:
    found = []
    for use_vllm in (False, True):
        trainer = vllm_trainer(use_vllm=use_vllm, pass_samples=2)
        trainer.evaluate()
        rows = trainer.eval_dataset
        counts = sample_heldout(trainer, rows, trainer.heldout.completions)
        found.append((trainer.heldout.completions, counts))
    assert found[0] == found[1]


def test_the_seed_says_what_is_drawn(vllm_trainer: Make) -> None:
    def completions(seed: int) -> list[str]:
        trainer = vllm_trainer(seed=seed, preflight=False, data_seed=0)
        trainer.train()
        return sorted(trainer.completion_log()["completion", ""])

    assert completions(1) == completions(1) != completions(2)


def test_twenty_steps_of_the_packaged_recipe(tmp_path: Path) -> None:
    """As a user runs it: vLLM needs a terminal's own streams, and its exit shows."""
    words = "--max_steps 20 --eval_steps 20 --save_steps 20 --heldout_rows 200 --learning_rate 4e-4"
    words += " --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.1"
    words += " --report_to none --output_dir run"
    own = {"PYTHONPATH": str(REPOSITORY), "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, str(RECIPES / "grpo.py"), *words.split()]
    found = ran(*command, cwd=tmp_path, env={**os.environ, **SETTINGS, **own})
    print(found.stdout)
    assert "Traceback" not in found.stderr
    state = history(tmp_path / "run")
    before, *_, after = (log["eval_overall"] for log in state if "eval_overall" in log)
    assert after > before
    (preflight,) = (log for log in state if "preflight/sampler_gap" in log)
    assert preflight["preflight/sampler_gap"] < 1e-4
