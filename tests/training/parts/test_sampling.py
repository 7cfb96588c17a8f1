"""Each task is sampled in its own way, and scored as it was sampled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig

from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.training.parts.sampling import rollout
from rookworld_rlvr.training.preflight import measure_parity, mixed_length_prompts

from ...conftest import first_batch

BOTH: dict[str, dict[str, Any]] = {"policy": {}, "environment": {}}


@pytest.fixture
def sampled(build: Callable[..., Any]) -> Any:
    """A trainer on mixed rows and a batch that carries the sampler's log-probs."""

    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        trainer = build(**options)
        trainer.rollout_func = partial(rollout, keep_logps=True)
        return trainer, first_batch(trainer)

    return make


def gaps(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Largest |trainer's - sampler's log-prob| of each row ``(B,)``, scored as the loss does."""
    trainer.parts["shared_prompts"].leaves_out_idle = False
    call = trainer.loss(trainer.model, batch).call
    gap = (call.scores.logps.detach() - batch["sampling_per_token_logps"]).abs()
    return (gap * batch["completion_mask"]).amax(dim=1)


def test_a_mixed_batch_is_scored_at_the_temperature_of_each_row(sampled: Any) -> None:
    trainer, batch = sampled(task_sampling=BOTH, per_device_train_batch_size=16)
    assert sorted(set(batch["temperature"].tolist())) == pytest.approx([0.5, 0.95])
    assert gaps(trainer, batch).max() < 1e-4
    batch["temperature"] = batch["temperature"].flip(0)
    assert gaps(trainer, batch).max() > 0.1, "another row's temperature shows"
    del batch["temperature"]
    assert gaps(trainer, batch).max() > 0.1, "and so does the trainer's own"
    trainer, batch = sampled(temperature=0.7)
    assert "temperature" not in batch and gaps(trainer, batch).max() < 1e-4, "without the key"


def test_each_task_has_its_own_length_and_tail(sampled: Any) -> None:
    lengths = {"policy": {"max_completion_length": 5}, "environment": {"max_completion_length": 9}}
    trainer, batch = sampled(task_sampling=lengths, per_device_train_batch_size=32)
    tokenizer = trainer.processing_class
    longest = {"policy": 0, "environment": 0}
    for prompt, mask, text in zip(
        batch["prompt_ids"], batch["prompt_mask"], batch["completion_mask"], strict=True
    ):
        task = task_of(tokenizer.decode(prompt[mask.bool()]))
        longest[task] = max(longest[task], int(text.sum()))
    assert longest == {"policy": 5, "environment": 9}
    one = {"policy": {"top_k": 1}, "environment": {"temperature": 2.0, "top_p": 1.0}}
    _, batch = sampled(task_sampling=one, per_device_train_batch_size=32)
    hot = batch["temperature"] == 2.0
    cold, warm = (len(batch["completion_ids"][rows].unique(dim=0)) for rows in (~hot, hot))
    assert cold == len(batch["prompt_ids"][~hot].unique(dim=0)), "top-k 1 draws alike"
    assert warm == hot.sum(), "temperature 2 does not"


def test_the_preflight_covers_the_tasks_temperatures(build: Callable[..., Any]) -> None:
    trainer = build(task_sampling=BOTH)
    prompts = mixed_length_prompts(trainer)
    assert {task_of(prompt) for prompt in prompts} == {"policy", "environment"}
    assert measure_parity(trainer, prompts).faults(1e-4) == []


ASKS_FOR_MORE: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"min_p": 0.1},
    {"cache_implementation": "static"},
    {"generation_kwargs": {"no_repeat_ngram_size": 1}},
    {"of the model": {"no_repeat_ngram_size": 1}},
]


@pytest.mark.parametrize("tasks", [None, BOTH], ids=["alike", "by task"])
@pytest.mark.parametrize("options", ASKS_FOR_MORE, ids=str)
def test_generate_draws_where_more_is_asked_for_than_the_loop_knows(
    build: Callable[..., Any],
    random_gpt2: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    tasks: Any,
) -> None:
    more = bool(options)
    if "of the model" in options:
        random_gpt2.generation_config.no_repeat_ngram_size, options = 1, {}
    trainer = build(task_sampling=tasks, preflight=False, **options)
    assert (trainer.rollout_func is None) is (more and tasks is None)
    calls: list[Any] = []
    generate = type(random_gpt2).generate

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(generate(*args, **kwargs))
        return calls[-1]

    monkeypatch.setattr(type(random_gpt2), "generate", counted)
    trainer.train()
    assert bool(calls) is more
    if random_gpt2.generation_config.no_repeat_ngram_size or "generation_kwargs" in options:
        drawn = [row[row != 0] for row in calls[0][:, -8:]]  # without end of text and padding
        assert all(len(row.unique()) == len(row) for row in drawn), "no token comes twice"


def test_the_seed_says_what_is_drawn(build: Callable[..., Any]) -> None:
    """Kept adapters, gradient checkpointing and a model in training mode change nothing."""

    def completions(seed: int, **options: Any) -> list[str]:
        trainer = build(seed=seed, max_steps=1, **options)
        trainer.train()
        return list(trainer.completion_log()["completion", ""])

    first = completions(1)
    assert first == completions(1) == completions(1, gradient_checkpointing=True)
    assert first == completions(1, peft_config=LoraConfig(target_modules=["c_attn"]))
    assert first != completions(2)
