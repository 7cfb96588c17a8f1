import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.choices import choice_logps
from rookworld_rlvr.tasks.policy import POLICY, win_probability
from rookworld_rlvr.tasks.types import values_by_move

from ...conftest import NOT_KEPT, mixed_rows

Build = Callable[..., Any]
ON = {"expected_score_coef": 2.0, "soft_moves_coef": 0.5}


def constant(completions: list[str], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture
def made(build: Build, packaged: LoadedData) -> Callable[..., Any]:
    """A trainer of the packaged model whose rewards teach nothing."""

    def make(**options: Any) -> Any:
        rows = mixed_rows(packaged.train, each=8)
        model = loading.load_model(loading.PACKAGED_MODEL)
        defaults = {"rewards": None, "reward_funcs": [constant], "train_dataset": rows}
        options = {**defaults, **NOT_KEPT, **options}
        return build(model, max_completion_length=64, num_generations=2, **options)

    return make


def sampled(trainer: Any, rows: list[Any]) -> dict[str, torch.Tensor]:
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    batch: dict[str, torch.Tensor] = trainer.sample([row for row in rows for _ in range(2)])
    return batch


def test_the_term_is_that_of_the_values_one_move_at_a_time(made: Any) -> None:
    trainer = made(**ON, gradient_accumulation_steps=1)
    rows = [trainer.train_dataset[place] for place in range(4)]
    assert [row["task"] for row in rows] == ["environment", "policy"] * 2
    batch = sampled(trainer, rows)
    assert batch["moves_rows"].tolist() == [0, 0, 1, 0] * 2 and batch["moves_items"] == 2
    loss = trainer.loss(trainer.model, batch)
    texts = list(trainer._logs["completion"])[-8:]
    expected, encode = [], trainer.processing_class
    for place in (1, 3):
        row, text = rows[place], texts[2 * place]
        values = values_by_move(row["action_values"]) or {}
        head = row["prompt"] + text[: text.index(" B:") + 3]
        before = encode(head)["input_ids"]
        logps = []
        for move in values:
            ids = torch.tensor([[*before, *encode(f" {move}")["input_ids"]]])
            steps = trainer.model(input_ids=ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
            logps.append(steps.gather(1, ids[0, len(before) :, None]).sum())
        kept = torch.tensor([win_probability(cp) for cp in values.values()])
        logp = torch.stack(logps)
        score, target = (logp.exp() * kept).sum(), (kept / 0.03).softmax(0)
        expected.append(-2.0 * score.log() - 0.5 * (target * logp).sum())
    assert loss.terms["moves"].item() == pytest.approx(
        torch.stack(expected).mean().item(), abs=1e-4
    )


def test_steps_raise_the_expected_score_though_no_group_has_signal(made: Any) -> None:
    trainer = made(expected_score_coef=1.0, max_steps=6, learning_rate=1e-3, eval_strategy="no")
    rows = [row for row in trainer.train_dataset if row["task"] == "policy"]
    contexts, moves, worths = [], [], []
    encode = trainer.processing_class
    for row in rows:
        values = values_by_move(row["action_values"])
        head, worth = POLICY.choices(POLICY.truth(row["prompt"], values) or "", values) or ("", {})
        contexts.append(encode(row["prompt"] + head)["input_ids"])
        moves.append(encode(list(worth))["input_ids"])
        worths.append(torch.tensor([*worth.values()]))

    @torch.no_grad()
    def expected() -> float:
        logps = choice_logps(trainer.model, contexts, moves)
        return sum((p.exp() @ w).item() for p, w in zip(logps, worths, strict=True)) / len(rows)

    before = expected()
    trainer.train()
    assert expected() > before + 0.01
    logs = [log for log in trainer.state.log_history if "moves/expected_score" in log]
    assert logs and all(0 < log["moves/expected_score"] < log["moves/legal"] <= 1 for log in logs)
    # A logarithm's mean is at most the logarithm of the mean.
    gaps = [log["loss/moves"] + math.log(log["moves/expected_score"]) for log in logs]
    assert all(gap > -1e-6 for gap in gaps), gaps


def test_replaced_groups_bring_their_moves(made: Any) -> None:
    """Groups of the same prompts in two rounds: the batch holds those that were chosen."""
    turn = iter(range(100))

    def later_differ(completions: list[str], **columns: Any) -> list[float]:
        is_later = next(turn) > 0
        return [float(place % 2) * is_later for place in range(len(completions))]

    trainer = made(reward_funcs=[later_differ], zero_variance="resample", expected_score_coef=1.0)
    trainer.prompt_sampler = trainer._get_train_sampler()
    batch = sampled(trainer, [row for row in trainer.train_dataset if row["task"] == "policy"][:4])
    groups = batch["moves_rows"].view(-1, 2)
    assert batch["moves_items"] == groups.sum() > 0 and not groups[:, 1].any()
    tasks = [text.startswith("P:") for text in list(trainer._logs["prompt"])[-8::2]]
    assert groups[:, 0].bool().tolist() == tasks


def test_a_batch_without_policy_rows_has_no_term(made: Any) -> None:
    trainer = made(**ON, gradient_accumulation_steps=1)
    rows = [row for row in trainer.train_dataset if row["task"] == "environment"][:2]
    loss = trainer.loss(trainer.model, sampled(trainer, rows))
    assert loss.terms["moves"].item() == 0 and loss.total.requires_grad


def test_a_network_with_an_attention_of_its_own_is_refused(build: Build, random_gpt2: Any) -> None:
    random_gpt2.set_attn_implementation("eager")
    with pytest.raises(RookWorldError, match="soft_moves_coef: the attention is 'eager'"):
        build(random_gpt2, **ON, **NOT_KEPT)
