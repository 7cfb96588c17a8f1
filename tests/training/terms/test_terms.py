"""The terms of the loss that go by other rows than the rewards: values of moves, kept answers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.policy import win_probability
from rookworld_rlvr.tasks.types import values_by_move

from ...support import loss_of
from ...support import sampled as batch_of

MOVES = {"expected_score_coef": 2.0, "soft_moves_coef": 0.5}


def sampled(trainer: Any, rows: list[Any]) -> Any:
    return batch_of(trainer, [row for row in rows for _ in range(2)])


def test_the_term_is_that_of_the_values_one_move_at_a_time(made: Any) -> None:
    trainer = made(**MOVES, gradient_accumulation_steps=1)
    rows = [trainer.train_dataset[place] for place in range(4)]
    assert [row["task"] for row in rows] == ["environment", "policy"] * 2
    batch = sampled(trainer, rows)
    assert batch["moves_rows"].tolist() == [0, 0, 1, 0] * 2 and batch["moves_items"] == 2
    loss = loss_of(trainer, batch)
    texts = list(trainer._logs["completion"])[-8:]
    expected, scores, legal = [], [], []
    encode = trainer.processing_class
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
        logp = torch.stack(logps)
        kept = torch.tensor([win_probability(cp) for cp in values.values()])
        target = (kept / 0.03).softmax(0)
        scores.append((logp.exp() * kept).sum())
        legal.append(logp.exp().sum())
        expected.append(-2.0 * scores[-1].log() - 0.5 * (target * logp).sum())
    mean = torch.stack(expected).mean().item()
    assert loss.terms["moves"].item() == pytest.approx(mean, abs=1e-4)
    trainer.settle()
    for name, numbers in (("expected_score", scores), ("legal", legal)):
        mean = torch.stack(numbers).mean().item()
        assert trainer._metrics["train"][f"moves/{name}"] == pytest.approx([mean], abs=1e-5)
    loss = loss_of(trainer, sampled(trainer, rows[::2] * 2))
    assert loss.terms["moves"].item() == 0 and loss.total.requires_grad, "without policy rows"


def test_further_prompts_bring_their_moves_after_one_completion_each(made: Any) -> None:
    trainer = made(**MOVES, moves_extra=3)
    batches = [sampled(trainer, list(trainer.train_dataset)[:4]) for _ in range(2)]
    decode, prompts = trainer.processing_class.decode, []
    for batch in batches:
        assert (
            batch["moves_rows"].tolist() == [2, 2, 3, 2, 1, 1, 2, 1] and batch["moves_items"] == 14
        )
        extra = [found[-1] for found in batch["moves"]]
        texts = [decode(before) for before, *_ in extra]
        assert all(text.startswith("P: ") and text.endswith(" B:") for text in texts)
        prompts.append([text.partition(" M:")[0] for text in texts])
        assert all(len(moves) == len(worth) > 1 for _, moves, worth, _ in extra)
    assert prompts[0] == prompts[1], "a step draws its own, so that a resumed run goes on alike"
    with_all = loss_of(trainer, batch).terms["moves"].item()
    parts = []
    for place, choices in ((place, one) for place, its in enumerate(batch["moves"]) for one in its):
        alone: list[Any] = [[] for _ in batch["moves"]]
        alone[place] = [choices]
        parts.append(loss_of(trainer, {**batch, "moves": alone}).terms["moves"].item())
    assert with_all == pytest.approx(sum(parts), rel=1e-4)
    rows = trainer.train_dataset.filter(lambda row: row["task"] == "environment")
    with pytest.raises(RookWorldError, match="moves_extra: no training row has moves to choose"):
        made(**MOVES, moves_extra=3, train_dataset=rows)
    trainer._step = 1
    after = sampled(trainer, list(trainer.train_dataset)[:4])
    assert [decode(found[-1][0]).partition(" M:")[0] for found in after["moves"]] != prompts[0]


@pytest.fixture
def replacing(made: Callable[..., Any]) -> Callable[..., Any]:
    """A trainer that replaces all groups of its first round, and a batch of policy prompts."""

    def make(**options: Any) -> tuple[Any, Any, list[str]]:
        turn = iter(range(100))

        def later_differ(completions: list[str], **columns: Any) -> list[float]:
            is_later = next(turn) > 0
            return [float(place % 2) * is_later for place in range(len(completions))]

        trainer = made(reward_funcs=[later_differ], zero_variance="resample", **options)
        trainer.prompt_sampler = trainer._get_train_sampler()
        rows = [row for row in trainer.train_dataset if row["task"] == "policy"][:4]
        return trainer, sampled(trainer, rows), [row["prompt"] for row in rows]

    return make


def test_replaced_groups_bring_their_moves(replacing: Any) -> None:
    """Groups of the same prompts in two rounds: the batch holds those that were chosen."""
    trainer, batch, _ = replacing(expected_score_coef=1.0)
    groups = batch["moves_rows"].view(-1, 2)
    assert batch["moves_items"] == groups.sum() > 0 and not groups[:, 1].any()
    tasks = [text.startswith("P:") for text in list(trainer._logs["prompt"])[-8::2]]
    assert groups[:, 0].bool().tolist() == tasks


def test_replaced_groups_bring_answers_and_further_prompts_too(replacing: Any) -> None:
    coefs = {"expected_score_coef": 1.0, "sft_coef": 0.5}
    trainer, batch, first = replacing(**coefs, sft_extra=2, moves_extra=1)
    decode = trainer.processing_class.decode
    prompts = [
        decode(ids[mask.bool()])
        for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
    ]
    assert len(prompts) == 8 and not {*prompts} & {*first}, "all of them were replaced"
    assert batch["advantages"].all() and not trainer._metrics["train"]["zero_variance/trained"][0]
    own = [decode(answers[0][0]) for answers in batch["answers"][::2]]
    assert own == prompts[::2] and not any(answers[0] for answers in batch["answers"][1::2])
    further = [one for answers in batch["answers"] for one in answers[1:]]
    assert len(further) == 4 * 2 and all(further)
    found = [one for answers in batch["answers"] for one in answers if one]
    lengths = sum(len(answer) for _, answer, _ in found)
    assert batch["answer_items"] == batch["answer_tokens"].sum() == lengths
    of_groups = [float(prompt.startswith("P:")) for prompt in prompts[::2]]
    assert batch["moves_items"] == batch["moves_rows"].sum() == sum(of_groups) + 4
    loss = loss_of(trainer, batch)
    assert loss.terms.keys() == {"policy", "supervised", "moves"}
    assert all(term.item() != 0 and term.requires_grad for term in loss.terms.values())
    total = torch.tensor(0.0)
    for prompt, answer, _ in found:  # at the trainer's temperature of 1
        logps = trainer.model(input_ids=torch.tensor([[*prompt, *answer]])).logits.log_softmax(-1)
        steps = logps[0, len(prompt) - 1 : -1]
        total = total - steps.gather(1, torch.tensor(answer)[:, None]).sum()
    assert loss.terms["supervised"].item() == pytest.approx(0.5 * total.item() / lengths, rel=1e-4)


KEEP: dict[str, Any] = {"keep_coef": 3.0, "keep_rows": {"environment": 5}, "beta": 0.01}


@pytest.fixture
def moved(made: Callable[..., Any]) -> Callable[..., Any]:
    """A trainer whose policy has moved away from the start."""

    def make(noise: float = 0.4, **options: Any) -> Any:
        trainer = made(num_generations=4, **KEEP, **options)
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight += noise * torch.randn_like(weight) * weight.std()
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        return trainer

    return make


def term_of(trainer: Any) -> float:
    return trainer.kept.term().item()


def test_the_term_is_the_kl_of_whole_distributions_one_answer_at_a_time(
    moved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = moved(gradient_accumulation_steps=2)
    drawn, right_answer = [], ENVIRONMENT.right_answer

    def noted(self: Any, prompt: str, *how: Any) -> Any:
        drawn.append(prompt)
        return right_answer(prompt, *how)

    monkeypatch.setattr(type(ENVIRONMENT), "right_answer", noted)
    term = term_of(trainer)
    start = loading.load_model(loading.PACKAGED_MODEL).eval()
    encode, values = trainer.processing_class, []
    for prompt in drawn:
        before = encode(prompt)["input_ids"]
        answer = encode(ENVIRONMENT.truth(prompt))["input_ids"]
        ids = torch.tensor([[*before, *answer, encode.eos_token_id]])
        with torch.no_grad():
            p, q = (
                network(input_ids=ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
                for network in (start, trainer.model)
            )
        values.append(torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    assert len(drawn) == 5 and len(set(map(len, values))) > 1
    assert term == pytest.approx(3.0 / 2 * torch.cat(values).mean().item(), rel=1e-4)
    assert term > 0.01


def test_steps_bring_the_policy_back_to_the_start(moved: Any) -> None:
    trainer = moved(max_steps=6, learning_rate=3e-4, preflight=False, eval_strategy="no")
    trainer.train()
    kls = [log["keep/kl"] for log in trainer.state.log_history if "keep/kl" in log]
    assert len(kls) == 6 and kls[-1] < 0.7 * kls[0]


def test_an_unmoved_policy_has_no_term_and_a_step_draws_its_own_rows(moved: Any) -> None:
    assert abs(term_of(moved(noise=0.0))) < 1e-6
    draws = []
    for trainer in (moved(), moved()):
        trainer.state.global_step = 3
        draws.append([term_of(trainer) for _ in range(2)])
    assert draws[0] == draws[1] and draws[0][0] != draws[0][1]
    trainer.state.global_step = 4
    assert term_of(trainer) not in draws[0]


def test_steps_raise_the_expected_score_though_no_group_has_signal(made: Any) -> None:
    trainer = made(expected_score_coef=1.0, max_steps=6, learning_rate=1e-3, eval_strategy="no")
    rows = [row for row in trainer.train_dataset if row["task"] == "policy"][:4]

    def term() -> float:
        return loss_of(trainer, sampled(trainer, rows)).terms["moves"].item()

    before = term()
    trainer.train()
    assert term() < before - 0.01
