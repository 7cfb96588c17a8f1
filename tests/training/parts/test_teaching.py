"""Right answers in hopeless groups, and the supervised term: what is taught, and its gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from trl.trainer.utils import split_tensor_dict

from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.registry import TASKS, score_row, task_of
from rookworld_rlvr.tasks.types import values_by_move
from rookworld_rlvr.training.parts.part import Batch, Scores, whole
from rookworld_rlvr.training.parts.registry import PARTS_STATE
from rookworld_rlvr.training.parts.teaching import answer_tokens, right_answer

from ...conftest import launch, mixed_rows

REWARDS = [{"name": "environment_exact"}, {"name": "policy_best_move"}]
QUIET = {
    "rewards": REWARDS,
    "preflight": False,
    "eval_steps": 100,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "logging_steps": 1,
    "max_completion_length": 96,
}


@pytest.fixture
def build(make_trainer: Callable[..., Any], random_gpt2: Any, tokenizer: Any) -> Callable[..., Any]:
    """A trainer whose policy has random weights, so that none of its completions is right."""

    def make(model: Any = None, shares: bool = True, **options: Any) -> Any:
        trainer = make_trainer(model or random_gpt2, tokenizer, **{**QUIET, **options})
        if not shares:
            del trainer.parts["shared_prompts"]
        return trainer

    return make


def batch_of(trainer: Any) -> Batch:
    """What the trainer samples for its first batch."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    with trainer.accelerator.accumulate(trainer.model):
        return trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))


def texts(trainer: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[str]:
    rows = [row[kept.bool()] for row, kept in zip(ids, mask, strict=True)]
    return trainer.processing_class.batch_decode(rows, skip_special_tokens=True)


# --------------------------------------------------------------------------------------------------
# Right answers
# --------------------------------------------------------------------------------------------------
def test_an_answers_tokens_are_those_that_the_policy_would_write(
    packaged: Any, tokenizer: Any
) -> None:
    for row in mixed_rows(packaged.train):
        answer = right_answer(row, "0")
        assert answer is not None
        tokens = answer_tokens(tokenizer, row["prompt"], answer)
        assert tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens, skip_special_tokens=True) == answer
        whole_row = tokenizer(row["prompt"] + answer)["input_ids"]
        assert tokenizer(row["prompt"])["input_ids"] + tokens[:-1] == whole_row


# --------------------------------------------------------------------------------------------------
# Groups
# --------------------------------------------------------------------------------------------------
def test_a_hopeless_group_gets_a_right_answer(build: Callable[..., Any]) -> None:
    trainer = build(zero_variance="teach")
    batch = batch_of(trainer)
    taught = trainer.parts["teaching"].scored(batch).nonzero().flatten().tolist()
    assert taught == [3, 7], "the last completion of each group"
    prompts = texts(trainer, batch["prompt_ids"], batch["prompt_mask"])
    completions = texts(trainer, batch["completion_ids"], batch["completion_mask"])
    for row in taught:
        stored = trainer.sampled[prompts[row]]
        values = values_by_move(stored["action_values"])
        score = score_row(prompts[row], completions[row], values)
        assert TASKS[task_of(prompts[row])].is_right(score)
        assert batch["taught_advantages"][row] > 0 and batch["advantages"][row] == 0
        assert list(trainer._logs["completion"])[row] == completions[row]
        assert list(trainer._logs["advantages"])[row] == pytest.approx(
            batch["taught_advantages"][row].item()
        )
    others = [row for row in range(8) if row not in taught]
    assert not batch["taught_advantages"][others].any() and (batch["advantages"][others] < 0).all()
    logged = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert logged["teach/hopeless"] == logged["teach/share"] == 1
    assert logged["teach/right"] == 0 and logged["teach/still_hopeless"] == 2


def test_without_teach_no_group_does(build: Callable[..., Any]) -> None:
    batch = batch_of(build(zero_variance="keep"))
    assert "taught_advantages" not in batch and not batch["advantages"].any()


def test_a_group_with_a_right_completion_is_left_alone(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*_: Any) -> torch.Tensor:
        return torch.tensor([0.0, 1, 0, 0, 0, 0, 0, 0])

    monkeypatch.setattr("rookworld_rlvr.training.parts.teaching.right", found)
    trainer = build(zero_variance="teach")
    batch = batch_of(trainer)
    assert trainer.parts["teaching"].scored(batch).nonzero().flatten().tolist() == [7]


def test_a_group_whose_truth_is_not_known_is_left_alone(
    build: Callable[..., Any], packaged: Any
) -> None:
    rows = [{**row, "action_values": None} for row in mixed_rows(packaged.train)]
    trainer = build(zero_variance="teach", train_dataset=type(packaged.train).from_list(rows))
    batch = batch_of(trainer)
    taught = trainer.parts["teaching"].scored(batch)
    prompts = texts(trainer, batch["prompt_ids"], batch["prompt_mask"])
    assert {task_of(prompts[row]) for row in taught.nonzero().flatten()} == {"environment"}


def test_prompts_that_leave_the_hopeless_state_are_counted(build: Callable[..., Any]) -> None:
    teaching = build(zero_variance="teach").parts["teaching"]
    first = teaching._remember([("a", "answer", 0), ("b", "answer", 0), ("c", None, 1)])
    assert first["teach/still_hopeless"] == 2 and first["teach/left_hopeless"] == 0
    assert first["teach/right"] == pytest.approx(1 / 12)
    again = teaching._remember([("a", None, 2), ("b", "answer", 0), ("d", None, None)])
    assert again["teach/still_hopeless"] == 1 and again["teach/left_hopeless"] == 1
    assert again["teach/hopeless"] == 0.5, "of the groups whose truth is known"


# --------------------------------------------------------------------------------------------------
# Gradients
# --------------------------------------------------------------------------------------------------
def gradient_of_loss(trainer: Any, batch: Batch) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer.loss(trainer.model, batch).total.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("shares", [True, False], ids=["shared prompts", "whole rows"])
def test_the_gradient_of_a_batch_is_that_of_its_formula(
    build: Callable[..., Any], shares: bool
) -> None:
    trainer = build(zero_variance="teach", shares=shares)
    batch = batch_of(trainer)
    ours = gradient_of_loss(trainer, batch)
    ids, mask, length = whole(batch)
    trainer.model.zero_grad()
    logps = trainer.log_probs(trainer.model, ids, mask, length).logps
    by_token = (batch["advantages"] + batch["taught_advantages"]).unsqueeze(1) * logps
    tokens = batch["completion_mask"].sum()
    (-(by_token * batch["completion_mask"]).sum() / tokens).backward()
    theirs = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"shares": True},
        {"shares": False},
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
        {"zero_variance": "skip", "loss_type": "grpo"},
        {"sft_extra": 1},
        {"sft_extra": 5, "shares": False, "gradient_accumulation_steps": 2},
        {"sft_extra": 5, "zero_variance": "skip"},
    ],
    ids=[
        "shared prompts",
        "whole rows",
        "accumulation",
        "half a generation a step",
        "skip",
        "one more prompt",
        "five more prompts",
        "five more prompts, skip",
    ],
)
def test_the_supervised_terms_gradient_is_that_of_the_answers_likelihood(
    build: Callable[..., Any], options: dict[str, Any]
) -> None:
    trainer = build(sft_coef=0.7, **options)
    batch = batch_of(trainer)
    assert not batch["advantages"].any(), "nothing but the supervised term moves the weights"
    # As many steps as a generation has, each with as many micro-batches as it accumulates.
    micro_batches = split_tensor_dict(batch, trainer.args.steps_per_generation)
    steps = len(micro_batches) / trainer.args.gradient_accumulation_steps
    ours = sum(gradient_of_loss(trainer, micro_batch) for micro_batch in micro_batches) / steps
    trainer.model.zero_grad()
    rows = batch["answer_mask"].any(1)
    assert rows.nonzero().flatten().tolist() == [*range(0, len(rows), 4)]
    pairs = answer_pairs(batch)
    assert len(pairs) == sum(rows) * (1 + options.get("sft_extra", 0))
    total, tokens = torch.tensor(0.0), 0
    for prompt, answer in pairs:
        logits = trainer.model(input_ids=torch.cat([prompt, answer]).unsqueeze(0)).logits[0]
        chosen = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, answer.unsqueeze(1))
        total, tokens = total - chosen.sum(), tokens + len(answer)
    (0.7 * total / tokens).backward()
    theirs = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def answer_pairs(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tokens of the prompts and answers of the supervised term."""
    columns = [
        [batch[name] for name in ("prompt_ids", "prompt_mask", "answer_ids", "answer_mask")],
        [
            batch[f"extra_{name}"].flatten(0, 1)
            for name in ("prompt_ids", "prompt_mask", "ids", "mask")
            if "extra_ids" in batch
        ],
    ]
    return [
        (prompt[before.bool()], answer[after.bool()])
        for prompts in filter(None, columns)
        for prompt, before, answer, after in zip(*prompts, strict=True)
        if after.any()
    ]


def test_further_prompts_of_the_supervised_term_are_others_at_each_step(
    build: Callable[..., Any],
) -> None:
    trainer = build(sft_coef=0.7, sft_extra=2)
    seen = []
    for step in (0, 1):
        trainer.state.global_step = step
        batch = batch_of(trainer)
        ids, mask = batch["extra_prompt_ids"], batch["extra_prompt_mask"].bool()
        assert ids.shape[:2] == (len(batch["prompt_ids"]), 1)
        seen.append(
            {tuple(row[kept].tolist()) for row, kept in zip(ids[:, 0], mask[:, 0], strict=True)}
        )
    assert seen[0] != seen[1]
    trained = {
        tuple(trainer.processing_class(p)["input_ids"]) for p in trainer.train_dataset["prompt"]
    }
    assert seen[0] | seen[1] <= trained


# --------------------------------------------------------------------------------------------------
# In runs
# --------------------------------------------------------------------------------------------------
BOTH = {"zero_variance": "teach", "sft_coef": 0.1}
ADAPTERS = {"task_type": "CAUSAL_LM", "r": 2, "init_lora_weights": False}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shares": False},
        {"num_iterations": 2},
        {"gradient_accumulation_steps": 2},
        {"task_sampling": {"environment": {}, "policy": {}}},
        {"peft_config": LoraConfig(**ADAPTERS, target_modules=["c_attn"]), "beta": 0.1},
        {"loss_type": "grpo", "zero_variance": "skip"},
        {"zero_variance": "resample"},
        {"sft_extra": 2, "task_sampling": {"environment": {"temperature": 0.7}, "policy": {}}},
    ],
    ids=[
        "shared",
        "whole rows",
        "iterations",
        "accumulation",
        "tasks",
        "lora",
        "skip",
        "resample",
        "further prompts",
    ],
)
def test_answers_scored_with_a_batch_have_the_log_probs_of_rows_alone(
    build: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Log-probs of taught answers and of the supervised term's, with those of each row by itself."""
    trainer = build(**{**BOTH, "max_steps": 2, **options})
    found: list[float] = []
    loss = trainer.loss

    def watch(model: Any, batch: Batch) -> Any:
        terms = loss(model, batch)
        found.extend(gaps(trainer, batch, terms.call.scores))
        return terms

    trainer.loss = watch
    trainer.train()
    assert len(found) >= 4 and max(found) < 1e-4


def gaps(trainer: Any, batch: Batch, scores: Scores) -> list[float]:
    heats = batch.get("temperature", torch.full((len(batch["prompt_ids"]),), trainer.temperature))
    prompts = [batch["prompt_ids"], batch["prompt_mask"]]
    sets = []
    if "taught_advantages" in batch:
        taught = trainer.parts["teaching"].scored(batch)
        columns = [*prompts, batch["completion_ids"], batch["completion_mask"], heats]
        sets += list(
            zip(*(column[taught] for column in columns), scores.logps[taught], strict=True)
        )
    if "answer_ids" in batch:
        columns = [*prompts, batch["answer_ids"], batch["answer_mask"], heats]
        answers = list(
            zip(*(column[batch["answer_mask"].any(1)] for column in columns), strict=True)
        )
        if "extra_ids" in batch:
            names = ("prompt_ids", "prompt_mask", "ids", "mask", "temperature")
            columns = [batch[f"extra_{name}"].flatten(0, 1) for name in names]
            answers += list(zip(*(column[columns[3].any(1)] for column in columns), strict=True))
        sets += [
            (*one, logps)
            for one, logps in zip(answers, trainer.parts["supervised"].logps, strict=True)
        ]
    found = []
    for prompt, prompt_mask, ids, mask, heat, logps in sets:
        kept = mask.bool()
        sequence = torch.cat([prompt[prompt_mask.bool()], ids[kept]]).unsqueeze(0)
        ones, count = torch.ones_like(sequence), int(kept.sum())
        alone = trainer.log_probs(trainer.model, sequence, ones, count, heat.view(1)).logps[0]
        found.append((logps[: len(kept)][kept] - alone).abs().max().item())
    return found


def test_a_policy_learns_what_it_is_taught(build: Callable[..., Any]) -> None:
    gains = {}
    for way in ("keep", "teach"):
        trainer = build(
            loading.load_model(loading.PACKAGED_MODEL),
            zero_variance=way,
            max_steps=6,
            learning_rate=1e-3,
            train_dataset=hopeless_rows(),
        )
        rows = list(trainer.train_dataset)
        before = log_likelihood(trainer, rows)
        trainer.train()
        gains[way] = log_likelihood(trainer, rows) - before
    assert gains["teach"] > 10 > gains["keep"] + 5


def hopeless_rows() -> Any:
    """Castling rights that the packaged model gets wrong, eight times."""
    from datasets import Dataset

    prompt = "A: 4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1+e1g1+e1g1+"
    task = TASKS["environment"]
    row = task.row(prompt, task.truth(prompt), task.position(prompt))
    return Dataset.from_list([row] * 8)


@torch.no_grad()
def log_likelihood(trainer: Any, rows: list[Any]) -> float:
    prompt, tokenizer = rows[0]["prompt"], trainer.processing_class
    answer = answer_tokens(tokenizer, prompt, right_answer(rows[0], "0"))
    ids = torch.tensor([[*tokenizer(prompt)["input_ids"], *answer]])
    logps = trainer.log_probs(trainer.model, ids, torch.ones_like(ids), len(answer)).logps
    return float(logps.sum())


def test_taught_answers_are_not_in_the_kl(
    build: Callable[..., Any], random_gpt2: Any, tmp_path: Path
) -> None:
    random_gpt2.save_pretrained(tmp_path / "start")
    start = loading.load_model(str(tmp_path / "start"))
    trainer = build(start, zero_variance="teach", beta=0.1)
    batch = batch_of(trainer)
    taught = batch["taught"]
    logps = torch.zeros_like(batch["ref_per_token_logps"])
    kl, held = trainer.parts["kl"].per_token(trainer, logps, batch)
    assert not kl[taught].any() and not held[taught].any() and (kl[~taught] > 0).any()
    shares = []
    ours = batch["taught_advantages"]
    for advantages in (ours, torch.zeros_like(ours)):
        changed = {"ref_per_token_logps": logps, "taught_advantages": advantages}
        trainer.loss(trainer.model, {**batch, **changed})
        shares.append(trainer._metrics["train"]["kl/share_of_loss"][-1])
    assert 0 < shares[0] < shares[1] < 1


def test_a_resumed_run_goes_on_byte_for_byte(
    build: Callable[..., Any], tmp_path: Path, random_gpt2: Any
) -> None:
    options = {
        **BOTH,
        "learning_rate": 1e-3,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    start = {name: weight.clone() for name, weight in random_gpt2.state_dict().items()}
    trainer = build(**options)
    trainer.train()
    state = trainer.parts["teaching"].state()
    kept = json.loads((tmp_path / "run" / "checkpoint-2" / PARTS_STATE).read_text())
    assert kept["teaching"]["open"]
    random_gpt2.load_state_dict(start)
    again = build(**options)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert again.parts["teaching"].state() == state
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


@pytest.mark.slow
def test_two_processes_teach_and_remember_alike(tmp_path: Path) -> None:
    done = launch("--module", "tests.training.parts.taught_on_two", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"process{rank}.json").read_text()) for rank in (0, 1))
    assert first["state"] == second["state"] and first["weights"] == second["weights"]
    assert first["state"]["teaching"]["left"] or first["state"]["teaching"]["open"]
    for process in (first, second):
        assert process["taught"] > 0 and len(process["gaps"]) > 2 and max(process["gaps"]) < 1e-4
