"""Log-probs and gradients with shared prompts are those of whole rows, as TRL's own method has them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig
from transformers import PreTrainedTokenizerBase

from rookworld_rlvr.training import scoring
from rookworld_rlvr.training.rollouts import in_rows, whole
from rookworld_rlvr.training.scoring import Sequences
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..models.test_architectures import length, tiny
from ..support import NOT_KEPT, first_batch, loss_of, on_two

LENGTH = 7
ADAPTERS = {"task_type": "CAUSAL_LM", "r": 2, "init_lora_weights": False}
Build = Callable[..., Any]
Scored = dict[str, Any]


def rows_of(prompts: list[int], lengths: list[int], order: list[int] | None = None) -> Sequences:
    """Rows of random tokens, from the tokens of prompts and completions; `order` is of the prompts."""
    chance = torch.Generator().manual_seed(len(prompts))
    order = order or [index for index in range(len(prompts)) for _ in lengths]
    width = max(prompts)
    texts = torch.randint(5, 200, (len(prompts), width), generator=chance)
    completions = torch.randint(5, 200, (len(order), LENGTH), generator=chance)
    taken = torch.tensor([lengths[row % len(lengths)] for row in range(len(order))])
    before = torch.arange(width) >= width - torch.tensor(prompts).unsqueeze(1)
    mask = torch.cat([before[order], torch.arange(LENGTH) < taken.unsqueeze(1)], dim=1)
    ids = torch.cat([texts[order], completions], dim=1).masked_fill(~mask, 0)
    return Sequences(ids, mask.long(), LENGTH)


ROWS = {
    "groups": rows_of([9, 4, 6], [7, 3, 1, 5]),
    "one completion a prompt": rows_of([9, 4, 6], [5]),
    "torn groups": rows_of([9, 4, 6], [7, 2, 5], [0, 1, 0, 2, 2, 2, 1, 0]),
    "prompts of one token": rows_of([1, 1], [7, 3]),
    "one of them of one token": rows_of([1, 5], [7, 3]),
    "an empty completion": rows_of([4, 6], [7, 0, 4]),
    "nothing to score": rows_of([4, 6], [0, 0]),
}


def scored(trainer: Any, rows: Sequences, **options: Any) -> Scored:
    trainer.model.zero_grad()
    scores = trainer.score(trainer.model, rows, compute_entropy=True, **options)
    total = (scores.logps * torch.linspace(0.5, 1.5, LENGTH)).sum() + 0.1 * scores.entropies.sum()
    total.backward()
    found = {"logps": scores.logps, "entropies": scores.entropies}
    for name, weight in trainer.model.named_parameters():
        if weight.grad is not None:
            found[f"gradient of {name}"] = weight.grad.clone()
    return found


def assert_same(ours: Scored, theirs: Scored) -> None:
    assert ours.keys() == theirs.keys()
    for name, numbers in theirs.items():
        gap, size = (ours[name] - numbers).abs().max().item(), numbers.abs().max().item()
        assert gap < 1e-5 * max(1, size), (name, gap, size)


def assert_parity(trainer: Any, rows: Sequences, **options: Any) -> None:
    """What comes of shared prompts is what comes of whole rows."""
    trainer.model.train()
    ours = scored(trainer, rows, **options)
    trainer.scorer.shares_prompts = False
    theirs = scored(trainer, rows, **options)
    trainer.scorer.shares_prompts = True
    assert_same(ours, theirs)
    if rows.mask[:, -LENGTH:].any():
        assert max(n.abs().max() for name, n in theirs.items() if "gradient" in name) > 1e-2


@pytest.fixture
def build(make_trainer: Build, random_gpt2: Any, tokenizer: PreTrainedTokenizerBase) -> Build:
    """A trainer of a tiny model by its name, or of one that is given."""

    def make(model: Any = "gpt2", **options: Any) -> Any:
        if isinstance(model, str):
            model = copy.deepcopy(random_gpt2) if model == "gpt2" else tiny(model, tokenizer)
        return make_trainer(model, tokenizer, reward_funcs=[length], preflight=False, **options)

    return make


@pytest.mark.parametrize("head", ["the model's", "TRL's"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_rows_of_all_sorts(
    kind: str, head: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []
    monkeypatch.setattr(scoring, "SMALL", 4096 if head == "the model's" else 0)
    trainer = build(kind, temperature=0.8)
    trainer.model.register_forward_pre_hook(
        lambda _, args, given: heads.append("fused_lm_head" in given), with_kwargs=True
    )
    trainer.score(trainer.model, ROWS["groups"])
    assert heads == [head == "TRL's"]
    for rows in ROWS.values():
        assert_parity(trainer, rows)
        assert_parity(trainer, rows, batch_size=3)


def watch_sizes(trainer: Any) -> list[tuple[int, int]]:
    """Rows and tokens of what reaches the first layer."""
    sent: list[tuple[int, int]] = []
    trainer.model.transformer.h[0].register_forward_pre_hook(
        lambda _, passed: sent.append(tuple(passed[0].shape[:2]))
    )
    return sent


def test_a_prompt_is_sent_once_and_padding_never(build: Build) -> None:
    trainer = build()
    sent = watch_sizes(trainer)
    trainer.score(trainer.model, ROWS["groups"])
    assert sent == [(1, (9 + 4 + 6 - 3) + 3 * (7 + 3 + 1 + 5))]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradient_checkpointing(kind: str, reentrant: bool, build: Build) -> None:
    trainer = build(kind)
    ours = scored(trainer, ROWS["groups"])
    trainer.model.train()
    trainer.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    trainer.model.enable_input_require_grads()
    assert_same(scored(trainer, ROWS["groups"]), ours)
    assert_parity(trainer, ROWS["torn groups"])


@pytest.mark.parametrize(("kind", "targets"), [("gpt2", ["c_attn"]), ("llama", ["q_proj"])])
def test_adapters_with_and_without_them(kind: str, targets: list[str], build: Build) -> None:
    trainer = build(kind, peft_config=LoraConfig(**ADAPTERS, target_modules=targets), beta=0.1)
    assert_parity(trainer, ROWS["torn groups"])
    with trainer.model.disable_adapter():
        ours = trainer.score(trainer.model, ROWS["groups"]).logps
        trainer.scorer.shares_prompts = False
        theirs = trainer.score(trainer.model, ROWS["groups"]).logps
    torch.testing.assert_close(theirs, ours)
    assert not torch.allclose(trainer.score(trainer.model, ROWS["groups"]).logps, ours)


@pytest.mark.parametrize(
    "options",
    [
        {"num_iterations": 2, "gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True, "per_device_train_batch_size": 6, "num_generations": 4},
        {"advantage_estimator": "gae", "task_sampling": {"policy": {"temperature": 0.7}}},
        {"zero_variance": "skip", "entropy_coef": 0.01},
    ],
    ids=str,
)
def test_as_much_is_learnt(build: Build, random_gpt2: Any, options: dict[str, Any]) -> None:
    sgd = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "max_completion_length": 8}
    options = {**NOT_KEPT, **sgd, "gradient_accumulation_steps": 4, **options}
    losses, ends = [], []
    for shares in (True, False):
        trainer = build(**options)
        trainer.scorer.shares_prompts = shares
        trainer.train()
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
        ends.append({**trainer.model.state_dict()})
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    start = random_gpt2.state_dict()
    assert max((ends[1][name] - start[name]).abs().max() for name in start) > 5e-4
    torch.testing.assert_close(*ends, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "beta"), [("ddp", "0"), ("fsdp2", "0"), ("fsdp2", "0.1")])
def test_two_processes_of_which_one_learns_nothing(tmp_path: Path, layout: str, beta: str) -> None:
    for result in on_two("training.shared_on_two", tmp_path, layout, beta):
        ours, theirs = result["losses"]
        assert ours == pytest.approx(theirs, abs=1e-5)
        assert result["log_probs"] < 1e-5
        assert result["weights"] < 1e-5 < 1e-3 < result["moved"]


def micro_batch(rows: Sequences, advantages: list[float]) -> dict[str, torch.Tensor]:
    ids, mask, *_ = rows
    return {
        "prompt_ids": ids[:, :-LENGTH],
        "prompt_mask": mask[:, :-LENGTH],
        "completion_ids": ids[:, -LENGTH:],
        "completion_mask": mask[:, -LENGTH:],
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": mask[:, -LENGTH:].sum() * 2,
    }


def loss_and_gradients(trainer: Any, inputs: dict[str, Any]) -> tuple[float, torch.Tensor, Any]:
    trainer._metrics["train"].clear()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
    trainer.settle()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    return loss.item(), torch.cat(gradients), metrics


SOME = [1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize("loss_type", "grpo bnpo dr_grpo dapo luspo sapo cispo vespo".split())
@pytest.mark.parametrize("old", [False, True], ids=["on policy", "old log-probs"])
def test_the_loss_is_that_of_the_full_batch(build: Build, loss_type: str, old: bool) -> None:
    """TRL's shares of clipped tokens are not compared: they are over the rows that are scored."""
    trainer = build(loss_type=loss_type)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    sent = watch_sizes(trainer)
    for advantages in (SOME, [0.0] * 12):
        inputs = micro_batch(ROWS["groups"], advantages)
        if old:
            with torch.no_grad():
                logps = trainer.score(trainer.model, Sequences(*whole(inputs))).logps
            noise = torch.linspace(-0.4, 0.4, logps.numel()).view_as(logps)
            inputs["old_per_token_logps"] = (logps + noise) * inputs["completion_mask"]
        counted = trainer.counted(inputs)
        assert counted.sum() == max(1, sum(number != 0 for number in advantages))
        trainer.scores_all_rows = True
        loss, gradients, metrics = loss_and_gradients(trainer, inputs)
        scores: Any = loss_of(trainer, inputs).scores
        trainer.scores_all_rows = False
        ours, our_gradients, our_metrics = loss_and_gradients(trainer, inputs)
        sizes = [tokens for _, tokens in sent[-3:]]  # once more for `loss_of`
        assert sizes[0] == sizes[1] and sizes[2] < 0.7 * sizes[0]
        assert ours == pytest.approx(loss, abs=1e-6)
        torch.testing.assert_close(our_gradients, gradients, atol=1e-6, rtol=1e-5)
        assert our_metrics.keys() == metrics.keys()
        # Each is a mean over the tokens of the rows that were scored.
        for found, rows in ((metrics, torch.ones(12)), (our_metrics, counted)):
            mask = inputs["completion_mask"] * rows.unsqueeze(1)
            for name, numbers in (("entropy", scores.entropies), ("logp", scores.logps)):
                mean = ((numbers * mask).sum() / mask.sum()).item()
                assert found[f"mean_{name}"] == pytest.approx(mean, rel=1e-4)
        assert 0 < our_metrics["mean_entropy"] < 10


class WithTerm(RookWorldGRPOTrainer):
    """One with a term of a user's own, which may move any row."""

    def loss_terms(self, batch: Any, scores: Any) -> dict[str, torch.Tensor]:
        own = self.mean(scores.logps, batch)
        return {**super().loss_terms(batch, scores), "own": own}


@pytest.mark.parametrize(
    "options",
    [
        {"advantage_estimator": "gae"},
        {"entropy_coef": 0.01},
        {"top_entropy_quantile": 0.5},
        {"peft_config": LoraConfig(**ADAPTERS, target_modules=["c_attn"]), "beta": 0.1},
        {"kind": WithTerm},
        {},
    ],
    ids=lambda options: ", ".join(options) or "none",
)
def test_no_row_is_left_out_where_something_else_may_move(build: Build, options: Any) -> None:
    trainer = build(**options)
    batch = first_batch(trainer)
    batch["advantages"].zero_()
    is_all = bool(trainer.counted(batch).all())
    assert is_all == bool(options), "nothing else moves by default"
    loss = loss_of(trainer, batch)
    assert torch.equal(loss.scores.counted, trainer.counted(batch))
    if not options:
        trainer.scorer.shares_prompts = False
        assert trainer.counted(batch).all(), "TRL's own forward takes whole batches"


def test_a_term_of_ones_own_moves_rows_without_advantage(build: Build) -> None:
    trainer = build(kind=WithTerm)
    batch = first_batch(trainer)
    batch["advantages"].zero_()
    loss = loss_of(trainer, batch)
    logps = trainer.score(trainer.model, Sequences(*whole(batch))).logps
    mask = batch["completion_mask"]
    assert loss.terms["policy"].item() == 0
    assert loss.total.item() == pytest.approx(((logps * mask).sum() / mask.sum()).item(), rel=1e-5)


@pytest.mark.parametrize(("rows", "unit"), [(4, 4), (8, 4), (6, 2), (2, 2), (3, 1)])
def test_training_gets_whole_groups(build: Build, rows: int, unit: int) -> None:
    """If micro-batches tear groups, their parts are as large as both allow."""
    trainer = build(per_device_train_batch_size=rows, gradient_accumulation_steps=4)
    first_batch(trainer)
    batches = trainer._buffered_inputs
    assert len(batches) == 4
    for units in batches:
        assert units["prompt_ids"].shape[:2] == (rows // unit, unit)
        assert all(len(prompts.unique(dim=0)) == 1 for prompts in units["prompt_ids"])
        assert len(in_rows(units)["advantages"]) == rows
    taken = torch.cat([in_rows(units)["row"] for units in batches])
    assert taken.sort().values.tolist() == [*range(4 * rows)], "each of them once"
    if len(taken) // unit >= 8:
        assert taken.tolist() != [*range(4 * rows)], "TRL shuffles the units"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gpt_neo", "GPTNeoForCausalLM has its own attention"),
        ("eager", "the attention is 'eager', not 'sdpa'"),
        ("prompt tuning", "the adapters add tokens to the prompts"),
    ],
)
def test_what_cannot_share_says_so_once(
    kind: str, reason: str, build: Build, random_gpt2: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    random_gpt2.set_attn_implementation("eager" if kind == "eager" else "sdpa")
    tuned = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = kind if kind == "gpt_neo" else random_gpt2
    adapters = tuned if kind == "prompt tuning" else None
    assert not build(model, peft_config=adapters).scorer.shares_prompts
    line = f"prompts are not shared: {reason}; each row is scored whole, as TRL does"
    assert capsys.readouterr().out.count(line) == 1
