"""Each task is sampled in its own way, and scored as it was sampled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    GPT2LMHeadModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.tasks.registry import TASKS, task_of
from rookworld_rlvr.tasks.task import Sampling
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.part import whole
from rookworld_rlvr.training.parts.sampling import RowSampler, draw, rollout
from rookworld_rlvr.training.preflight import measure_parity, mixed_length_prompts

BOTH: dict[str, dict[str, Any]] = {"policy": {}, "environment": {}}
REWARDS = [{"name": "graduated"}]


def by_transformers(row: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """One row as transformers' own warpers cut it."""
    warpers: list[Any] = [TemperatureLogitsWarper(row.temperature)]
    warpers += [TopKLogitsWarper(row.top_k)] if row.top_k else []
    warpers += [TopPLogitsWarper(row.top_p)] if row.top_p < 1 else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


def test_rows_are_cut_as_transformers_cuts_a_batch() -> None:
    rows = [
        Sampling(),
        Sampling(0.5, 0.9),
        Sampling(0.95, 0.95),
        Sampling(1.7, top_k=3),
        Sampling(0.8, 0.4, top_k=7),
        Sampling(0.01, 0.01),
    ]
    logits = 3 * torch.randn(len(rows), 50, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(len(rows), 1, dtype=torch.long)
    ours = RowSampler(rows, torch.device("cpu"))(tokens, logits)
    for index, row in enumerate(rows):
        theirs = by_transformers(row, logits[index : index + 1])
        torch.testing.assert_close(ours[index : index + 1], theirs)
    assert ours[5].isfinite().sum() == 1, "the likeliest token always stays"


def test_rows_end_at_their_own_length_or_end_of_text(
    random_gpt2: GPT2LMHeadModel, tokenizer: Any
) -> None:
    random_gpt2.eval()
    prompts = tokenizer(["P: 8", "A: 8/8+e2e4", "P: 8/8/8"])["input_ids"]
    rows = [Sampling(max_completion_length=3), Sampling(), Sampling(max_completion_length=7)]
    end = tokenizer.eos_token_id
    config = GenerationConfig(
        do_sample=True,
        max_new_tokens=12,
        pad_token_id=end,
        eos_token_id=[end],
        disable_compile=True,
    )
    torch.manual_seed(0)
    ids, logps = draw(random_gpt2, prompts, rows, config, keep_logps=True)
    assert logps is not None
    assert [len(row) for row in ids] == [len(row) for row in logps] == [3, 12, 7]
    random_gpt2.transformer.ln_f.weight.data.zero_()  # every state now asks for the end of text
    random_gpt2.transformer.ln_f.bias.data.copy_(100 * random_gpt2.lm_head.weight.data[end])
    ids, _ = draw(random_gpt2, prompts, rows, config)
    assert ids == [[end]] * 3, "the end of text belongs to the completion, the padding does not"


@pytest.fixture
def sampled(make_trainer: Callable[..., Any], random_gpt2: Any, tokenizer: Any) -> Any:
    """A trainer on mixed rows and a batch that carries the sampler's log-probs."""

    def build(**options: Any) -> tuple[Any, dict[str, Any]]:
        trainer = make_trainer(random_gpt2, tokenizer, **{"rewards": REWARDS, **options})
        trainer.rollout_func = partial(rollout, keep_logps=True)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        return trainer, batch

    return build


def gaps(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Largest |trainer's - sampler's log-prob| of each row ``(B,)``, scored as the loss does."""
    trainer.parts.shared.leaves_out_idle = False
    _, call = trainer.loss(trainer.model, batch)
    ours = call.scores.logps.detach()
    gap = (ours - batch["sampling_per_token_logps"]).abs() * batch["completion_mask"]
    return gap.amax(dim=1)


def test_a_mixed_batch_is_scored_at_the_temperature_of_each_row(sampled: Any) -> None:
    trainer, batch = sampled(task_sampling=BOTH, per_device_train_batch_size=16)
    assert sorted(set(batch["temperature"].tolist())) == pytest.approx([0.5, 0.95])
    assert gaps(trainer, batch).max() < 1e-4
    batch["temperature"] = batch["temperature"].flip(0)
    assert gaps(trainer, batch).max() > 0.1, "another row's temperature shows"
    del batch["temperature"]
    assert gaps(trainer, batch).max() > 0.1, "and so does the trainer's own"


def test_without_it_all_rows_have_the_trainers_temperature(sampled: Any) -> None:
    trainer, batch = sampled(temperature=0.7)
    assert "temperature" not in batch
    assert gaps(trainer, batch).max() < 1e-4


def test_log_probs_in_chunks_are_those_of_the_whole(sampled: Any) -> None:
    trainer, batch = sampled(task_sampling=BOTH)
    rows = (*whole(batch), batch["temperature"])
    with torch.no_grad():
        at_once = trainer.log_probs(trainer.model, *rows, compute_entropy=True)
        parts = trainer.log_probs(trainer.model, *rows, batch_size=3, compute_entropy=True)
    for one, other in zip(at_once[:2], parts[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


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
    distinct = [
        len({tuple(row) for row in batch["completion_ids"][rows].tolist()}) for rows in (~hot, hot)
    ]
    prompts = len({tuple(row) for row in batch["prompt_ids"][~hot].tolist()})
    assert distinct == [prompts, int(hot.sum())], "top-k 1 draws alike, temperature 2 does not"


@pytest.mark.parametrize("options", [{"task_sampling": BOTH}, {"temperature": 0.6}])
def test_the_preflight_covers_the_tasks_temperatures(
    make_trainer: Callable[..., Any], random_gpt2: Any, tokenizer: Any, options: Any
) -> None:
    trainer = make_trainer(random_gpt2, tokenizer, rewards=REWARDS, **options)
    prompts = mixed_length_prompts(trainer)
    assert {task_of(prompt) for prompt in prompts} == {"policy", "environment"}
    parity = measure_parity(trainer, prompts)
    assert parity.faults(1e-4) == []

    def without_temperatures(*batch: Any) -> Any:
        return trainer.log_probs(*batch[:4])

    found = measure_parity(trainer, prompts, log_probs=without_temperatures)
    assert bool(found.faults(1e-2)) == ("task_sampling" in options), "scored as it was not sampled"


def test_the_defaults_are_what_the_authors_settled_on() -> None:
    assert TASKS["policy"].sampling == Sampling(0.5, 0.9)
    assert TASKS["environment"].sampling == Sampling(0.95, 0.95)


def test_faults_are_found_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RookWorldGRPOConfig(
            rewards=REWARDS,
            use_cpu=True,
            bf16=False,
            max_completion_length=32,
            task_sampling='{"polcy": {}, "environment": {"temperature": 0, "top_p": 2,'
            ' "top_k": -1, "max_completion_length": 64}}',
        )
    faults = str(caught.value)
    for words in (
        "'polcy' is not a valid task; did you mean policy?",
        "temperature: 0 is not above 0",
        "top_p: 2 is not in (0, 1]",
        "top_k: -1 is too small",
        "max_completion_length is 64, over the trainer's 32",
    ):
        assert words in faults
    for bad, words in (
        ("{", "not valid JSON"),
        ("[1]", "not a mapping"),
        ('{"policy": 3}', "not a mapping"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            RookWorldGRPOConfig(rewards=REWARDS, use_cpu=True, bf16=False, task_sampling=bad)
    with pytest.raises(ConfigurationError, match="no option 'top_q'; did you mean"):
        RookWorldGRPOConfig(
            rewards=REWARDS, use_cpu=True, bf16=False, task_sampling={"policy": {"top_q": 1}}
        )
