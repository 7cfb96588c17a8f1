import copy
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl.trainer.utils import split_tensor_dict

from rookworld_rlvr.common.errors import EngineError
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.registry import TASKS, score_row, task_of
from rookworld_rlvr.tasks.types import values_by_move
from rookworld_rlvr.training import sampling, step
from rookworld_rlvr.training.rollouts import Batch, whole
from rookworld_rlvr.training.sampling import answer_tokens
from rookworld_rlvr.training.scoring import Sequences
from rookworld_rlvr.training.terms.right_answers import ask_ahead, right, right_answer, truth_of

from ...engines import FakeLabeller, fake_values
from ...support import NOT_KEPT, loss_of, mixed_rows, on_two, sampled
from ..test_rollouts import tasks_in, texts

REWARDS = [{"name": "environment_exact"}, {"name": "policy_best_move"}]
QUIET = {**NOT_KEPT, "rewards": REWARDS, "preflight": False, "max_completion_length": 96}
Build = Callable[..., Any]


@pytest.fixture
def build(make_trainer: Build, random_gpt2: Any, tokenizer: Any) -> Build:
    """A trainer whose policy has random weights, so that none of its completions is right."""

    def make(model: Any = None, shares: bool = True, **options: Any) -> Any:
        model = model or copy.deepcopy(random_gpt2)
        trainer = make_trainer(model, tokenizer, **{**QUIET, **options})
        trainer.scorer.shares_prompts = shares
        return trainer

    return make


def batch_of(trainer: Any) -> Batch:
    return sampled(trainer, next(iter(trainer.get_train_dataloader())))


def test_right_goes_by_the_headline_of_each_rows_task(packaged: Any) -> None:
    environment, policy = mixed_rows(packaged.train, each=1)
    answers = {row["task"]: TASKS[row["task"]].reference(row) for row in (environment, policy)}
    rows = [environment, policy, environment, policy, {**policy, "action_values": None}]
    texts = [answers["environment"], answers["policy"], "", "?", answers["policy"]]
    found = right(rows, texts).tolist()
    assert found[:4] == [1, 1, 0, 0] and math.isnan(found[4]), "no values, no truth"
    # An answer that is partly right is not right.
    assert right([environment], [answers["environment"].replace(" b ", " w ")]).tolist() == [0]
    assert right([{"prompt": environment["prompt"]}], [answers["environment"]]).tolist() == [1]


def test_an_engine_is_asked_while_completions_are_sampled(
    packaged: Any, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither goes on before the other has begun; what the engine cannot value fails in the reward."""
    begun = {name: threading.Event() for name in ("engine", "sampling")}
    labeller, values, draw = FakeLabeller(), FakeLabeller.values, sampling.draw
    asked: list[str] = []

    def valued(self: Any, fens: Any) -> Any:
        asked.append(threading.current_thread().name)
        begun["engine"].set()
        assert begun["sampling"].wait(60)
        return values(self, fens)

    def drawn(*given: Any) -> Any:
        begun["sampling"].set()
        assert begun["engine"].wait(60)
        return draw(*given)

    monkeypatch.setattr(FakeLabeller, "values", valued)
    monkeypatch.setattr(step, "draw", drawn)
    rewards = [{"name": "policy_best_move"}]
    funcs = get_reward_funcs(rewards, PolicyTruth(labeller))
    trainer = build(rewards=rewards, reward_funcs=funcs)
    policy = [
        {**row, "action_values": None}
        for row in mixed_rows(packaged.train)
        if row["task"] == "policy"
    ]
    batch = sampled(trainer, [row for row in policy[:2] for _ in range(4)])
    assert not trainer.rollouts.rewards.isnan().any() and len(batch["completion_ids"]) == 8
    assert asked[0] != threading.main_thread().name == asked[1]

    def fails(self: Any, fens: Any) -> Any:
        raise EngineError("it is gone")

    monkeypatch.setattr(FakeLabeller, "values", fails)
    thread = ask_ahead(funcs, policy[:1])
    assert thread is not None
    thread.join(60)
    with pytest.raises(EngineError, match="it is gone"):
        funcs[0](prompts=[policy[0]["prompt"]], completions=[""])
    assert ask_ahead([lambda **_: [0.0]], policy[:1]) is None


def test_values_come_from_where_the_rewards_take_them(packaged: Any, build: Build) -> None:
    _, policy = mixed_rows(packaged.train, each=1)
    answer = TASKS["policy"].truth(policy["prompt"], fake_values(policy["fen"]))
    assert answer is not None
    bare, truth = {**policy, "action_values": None}, PolicyTruth(FakeLabeller())
    rewards = [{"name": "policy_best_move"}]
    trainer = build(rewards=rewards, reward_funcs=get_reward_funcs(rewards, truth))
    assert truth_of(trainer.reward_funcs) is truth, "although the trainer guards its rewards"
    assert right([bare], [answer], truth).tolist() == [1]
    assert truth_of([lambda **_: [0.0], torch.nn.Linear(1, 1)]) is None
    assert right([bare], [answer]).isnan().all()


def test_an_answers_tokens_are_those_the_policy_would_write(
    packaged: Any, tokenizer: Any, build: Build
) -> None:
    trainer = build()
    for row in mixed_rows(packaged.train):
        answer = right_answer(row, "0")
        assert answer is not None
        tokens = answer_tokens(trainer, row["prompt"], answer)
        assert tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens, skip_special_tokens=True) == answer
        whole_row = tokenizer(row["prompt"] + answer)["input_ids"]
        assert tokenizer(row["prompt"])["input_ids"] + tokens[:-1] == whole_row


def test_a_hopeless_group_gets_a_right_answer(build: Build, monkeypatch: Any) -> None:
    trainer = build(zero_variance="teach")
    batch = batch_of(trainer)
    taught = batch["taught"].nonzero().flatten().tolist()
    assert taught == [3, 7], "the last completion of each group"
    advantages = batch["advantages"]
    prompts, completions = texts(trainer, batch), texts(trainer, batch, "completion")
    for row in taught:
        values = values_by_move(trainer.sampled[prompts[row]]["action_values"])
        score = score_row(prompts[row], completions[row], values)
        assert TASKS[task_of(prompts[row])].is_right(score)
        assert advantages[row] > 0
        assert list(trainer._logs["completion"])[row] == completions[row]
        assert list(trainer._logs["advantages"])[row] == pytest.approx(advantages[row].item())
    others = [row for row in range(8) if row not in taught]
    assert (advantages[others] < 0).all()
    logged = trainer._metrics["train"]
    assert logged["teach/hopeless"] == logged["teach/share"] == [1] and logged["teach/right"] == [0]
    # A group with a right completion is left alone.
    first = torch.tensor([0.0, 1, 0, 0, 0, 0, 0, 0])
    monkeypatch.setattr("rookworld_rlvr.training.terms.right_answers.right", lambda *_: first)
    batch = batch_of(trainer)
    assert batch["taught"].nonzero().flatten().tolist() == [7]
    batch = batch_of(build(zero_variance="keep"))
    assert "taught" not in batch and not batch["advantages"].any(), "without `teach`"


def test_a_group_whose_truth_is_not_known_is_left_alone(build: Build, packaged: Any) -> None:
    rows = [{**row, "action_values": None} for row in mixed_rows(packaged.train)]
    trainer = build(zero_variance="teach", train_dataset=Dataset.from_list(rows))
    batch = batch_of(trainer)
    taught, tasks = batch["taught"], tasks_in(trainer, batch)
    assert {tasks[row] for row in taught.nonzero().flatten()} == {"environment"}


def gradient_of(trainer: Any, loss: torch.Tensor) -> torch.Tensor:
    trainer.model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo"])
def test_the_gradient_of_a_batch_is_that_of_its_formula(build: Build, loss_type: str) -> None:
    """Taught answers have a term of their own, which has the place of TRL's in the mean."""
    trainer = build(zero_variance="teach", loss_type=loss_type)
    batch = batch_of(trainer)
    kept, taught = batch["completion_mask"], batch["taught"].unsqueeze(1)

    def mean(per_token: torch.Tensor) -> torch.Tensor:
        by_row = (per_token * kept).sum(1)
        return (by_row / kept.sum(1)).mean() if loss_type == "grpo" else by_row.sum() / kept.sum()

    logps = trainer.score(trainer.model, Sequences(*whole(batch))).logps
    pulled = -batch["advantages"].unsqueeze(1) * logps
    theirs = gradient_of(trainer, mean(pulled))
    assert theirs.abs().max() > 1e-3
    for shares in (True, False):
        trainer.scorer.shares_prompts = shares
        loss = loss_of(trainer, batch)
        ours = gradient_of(trainer, loss.total)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
        assert loss.terms["taught"].item() == pytest.approx(mean(pulled * taught).item(), rel=1e-5)
        # On policy TRL's ratios are 1.
        sampled_ones = mean(-batch["advantages"].unsqueeze(1) * ~taught)
        assert loss.terms["policy"].item() == pytest.approx(sampled_ones.item(), rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
        {"zero_variance": "skip", "loss_type": "grpo"},
        {"sft_extra": 1, "task_sampling": {"environment": {"temperature": 0.7}, "policy": {}}},
        {"zero_variance": "resample"},
        {"sft_extra": 5, "shares": False, "gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_the_supervised_terms_gradient_is_that_of_the_answers_likelihood(
    build: Build, options: dict[str, Any]
) -> None:
    trainer = build(sft_coef=0.7, **options)
    batch = batch_of(trainer)
    assert not batch["advantages"].any(), "nothing but the supervised term moves the weights"
    # As many steps as a generation has, each with as many micro-batches as it accumulates.
    micro_batches = split_tensor_dict(batch, trainer.args.steps_per_generation)
    steps = len(micro_batches) / trainer.args.gradient_accumulation_steps
    losses = (loss_of(trainer, micro_batch).total for micro_batch in micro_batches)
    ours = sum(gradient_of(trainer, loss) for loss in losses) / steps
    answers = [answer for row in batch["answers"] for answer in row if answer]
    assert len(answers) == len(batch["answers"]) // 4 * (1 + options.get("sft_extra", 0))
    total, tokens = torch.tensor(0.0), 0
    for prompt, answer, heat in answers:
        prompt, answer = torch.tensor(prompt), torch.tensor(answer)
        logits = trainer.model(input_ids=torch.cat([prompt, answer]).unsqueeze(0)).logits[0]
        logps = (logits[len(prompt) - 1 : -1] / heat).log_softmax(-1)
        total, tokens = total - logps.gather(1, answer[:, None]).sum(), tokens + len(answer)
    theirs = gradient_of(trainer, 0.7 * total / tokens)
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_further_prompts_of_the_supervised_term_are_others_at_each_step(build: Build) -> None:
    trainer = build(sft_coef=0.7, sft_extra=2)
    seen = []
    for trainer.state.global_step in (0, 1):
        batch = batch_of(trainer)
        prompts = [asked for row in batch["answers"] for asked, *_ in row[1:]]
        assert len(prompts) == len(batch["prompt_ids"]) // 4 * 2
        seen.append({*trainer.processing_class.batch_decode(prompts)})
    assert seen[0] != seen[1] and seen[0] | seen[1] <= set(trainer.train_dataset["prompt"])


def test_taught_answers_are_not_in_the_kl(build: Build, start: str) -> None:
    trainer = build(loading.load_model(start), zero_variance="teach", beta=0.1)
    batch = batch_of(trainer)
    taught, ours = batch["taught"], batch["advantages"]
    logps = torch.zeros_like(batch["ref_per_token_logps"])
    kl, clamped = trainer.kl.per_token(batch, logps)
    assert not kl[taught].any() and not clamped[taught].any() and (kl[~taught] > 0).any()
    for advantages in (ours, ours.masked_fill(taught, 0)):
        changed = {"ref_per_token_logps": logps, "advantages": advantages}
        trainer.compute_loss(trainer.model, {**batch, **changed})
        trainer.settle()
    less, more = trainer._metrics["train"]["kl/share_of_loss"]
    assert 0 < less < more < 1


def test_a_resumed_run_goes_on_byte_for_byte(build: Build, tmp_path: Path) -> None:
    options = {"zero_variance": "teach", "sft_coef": 0.1, "learning_rate": 1e-3, "max_steps": 3}
    options |= {"save_strategy": "steps", "save_steps": 2, "max_completion_length": 16}
    trainer = build(**options)
    trainer.train()
    again = build(**options)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    weights = again.model.state_dict()
    assert all(torch.equal(one, weights[name]) for name, one in trainer.model.state_dict().items())


@pytest.mark.slow
def test_two_processes_teach_alike(tmp_path: Path) -> None:
    first, second = on_two("training.taught_on_two", tmp_path)
    assert first["weights"] == second["weights"]
    assert first["taught"] > 0 and second["taught"] > 0
