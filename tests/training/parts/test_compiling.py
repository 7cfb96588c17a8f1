"""Buckets of lengths, compiled graphs and their count, and what is said of whether they pay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.models.gpt2 import new_model
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.health.monitor import HEALTH_FILE, HealthCallback
from rookworld_rlvr.training.health.rules import HealthArguments
from rookworld_rlvr.training.parts.buckets import Buckets
from rookworld_rlvr.training.parts.compiling import payoff

REWARDS = [{"name": "environment_exact"}]
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "sapo", "cispo", "vespo")
BY_TASK = {"policy": {"temperature": 0.7}, "environment": {"temperature": 1.3}}
COMPILED = {
    "torch_compile": True,
    "torch_compile_backend": "eager",
    "shape_buckets": [32, 48],
    "max_completion_length": 8,
}
SHORT_RUN = {
    "max_steps": 5,
    "compile_warmup_steps": 2,
    "logging_steps": 1,
    "save_steps": 5,
    "eval_steps": 5,
}
QUICK = {"eval_strategy": "no", "load_best_model_at_end": False, "preflight": False}


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def saved_model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights in a folder, from where a reference is loaded too."""
    torch.manual_seed(0)
    shape = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 256}
    model = new_model(tokenizer, **shape)
    torch.nn.init.normal_(model.transformer.wpe.weight, std=0.2)  # wrong positions show
    folder = str(tmp_path_factory.mktemp("model"))
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def build(make_trainer: Callable[..., Any], saved_model: str, tokenizer: Any) -> Callable[..., Any]:
    """A trainer whose rewards follow from the completions' texts."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(text))) for text in completions]

    def make(**options: Any) -> Any:
        model = GPT2LMHeadModel.from_pretrained(saved_model)
        options = {"rewards": REWARDS, **options}
        trainer = make_trainer(model, tokenizer, reward_funcs=[reward], **options)
        trainer.lengths = []  # of the batches that are trained on, before they are padded
        compute_loss = trainer.compute_loss

        def recorded(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            trainer.lengths.append(inputs["prompt_ids"].size(1) + inputs["completion_ids"].size(1))
            return compute_loss(model, inputs, *args, **kwargs)

        trainer.compute_loss = recorded
        return trainer

    return make


def numbers(trainer: Any, name: str) -> list[float]:
    return [log[name] for log in trainer.state.log_history if name in log]


# --------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"shape_buckets": [64, 0]}, "shape_buckets: 0 is too small; give at least 1"),
        (
            {"shape_buckets": [64, 32]},
            "shape_buckets: [64, 32] is not in ascending order; sort it, each length once",
        ),
        (
            {"shape_buckets": [64, 64]},
            "shape_buckets: [64, 64] is not in ascending order; sort it, each length once",
        ),
        ({"compile_warmup_steps": 0}, "compile_warmup_steps: 0 is too small; give at least 1"),
    ],
)
def test_bad_values_are_faults(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RookWorldGRPOConfig(rewards=REWARDS, use_cpu=True, **options)
    assert caught.value.faults == [fault]


def test_a_sharded_model_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    options: dict[str, Any] = {"rewards": REWARDS, "use_cpu": True}
    RookWorldGRPOConfig(**options)
    with pytest.raises(ConfigurationError, match="torch_compile: sharded models are not supported"):
        RookWorldGRPOConfig(**options, torch_compile_backend="eager")


def test_the_largest_bucket_must_hold_the_longest_text(build: Callable[..., Any]) -> None:
    with pytest.raises(RookWorldError, match=r"the largest bucket has 40; add \d+"):
        build(shape_buckets=[32, 40])


def test_without_compiling_nothing_is_padded(build: Callable[..., Any]) -> None:
    trainer = build()
    assert trainer.parts.buckets is None and trainer.parts.compiling is None


# --------------------------------------------------------------------------------------------------
# Padding
# --------------------------------------------------------------------------------------------------
def loss_and_gradients(trainer: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor, Any]:
    trainer._metrics["train"].clear()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    gradients = [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(gradients), dict(trainer._metrics["train"])


@pytest.mark.parametrize("estimator", ["group", "gae"])
def test_padding_changes_neither_loss_nor_gradients_nor_metrics(
    build: Callable[..., Any], estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build(
        shape_buckets=[],
        beta=0.1,
        task_sampling=BY_TASK,
        advantage_estimator=estimator,
        share_prompts=False,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(1)
    rows = [trainer.train_dataset[index] for index in (0, 0, 0, 0, 1, 1, 1, 1)]
    batch = trainer._generate_and_score_completions(rows)
    batch["completion_mask"][0, 5:] = 0  # completions of several lengths
    with torch.no_grad():  # away from the reference, so that the KL term has a gradient
        for weight in trainer.model.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    width = batch["prompt_ids"].size(1) + batch["completion_ids"].size(1)
    pad = trainer.processing_class.pad_token_id
    shapes = []
    hook = trainer.model.base_model.register_forward_hook(
        lambda *passed: shapes.append(tuple(passed[2].last_hidden_state.shape[:2]))
    )
    for loss_type in [kind for kind in LOSS_TYPES if estimator == "group" or kind != "vespo"]:
        trainer.loss_type = loss_type
        trainer.parts.buckets = None
        loss, gradients, metrics = loss_and_gradients(trainer, batch)
        assert gradients.abs().max() > 1e-3
        trainer.parts.buckets = Buckets((width - 3, width + 29, width + 60), 8, pad, (1, width), 24)
        shapes.clear()
        loss_padded, gradients_padded, metrics_padded = loss_and_gradients(trainer, batch)
        assert shapes == [(8, width + 29)]
        assert loss_padded == pytest.approx(loss, abs=1e-5)
        torch.testing.assert_close(gradients_padded, gradients, atol=1e-5, rtol=1e-4)
        assert metrics_padded.keys() == metrics.keys()
        for name, values in metrics.items():
            assert metrics_padded[name] == pytest.approx(values, abs=1e-5), name
    hook.remove()


def test_a_batch_of_too_few_rows_is_filled_up(build: Callable[..., Any]) -> None:
    trainer = build(shape_buckets=[], task_sampling=BY_TASK, share_prompts=False)
    ids = torch.randint(5, 100, (11, 30))
    mask = torch.ones_like(ids)
    mask[3, :7] = 0
    temperatures = torch.linspace(0.5, 1.5, 11)
    shapes = []
    trainer.model.base_model.register_forward_hook(
        lambda *passed: shapes.append(tuple(passed[2].last_hidden_state.shape[:2]))
    )
    scores = []
    pad = trainer.processing_class.pad_token_id
    for buckets in (None, Buckets([64], 8, pad, (1, 50), 24)):
        trainer.parts.buckets = buckets
        with torch.no_grad():
            scores.append(
                trainer.log_probs(trainer.model, ids, mask, 10, temperatures, compute_entropy=True)
            )
    assert shapes == [(11, 30), (8, 64), (8, 64)]
    (logps, entropies, _), (logps_padded, entropies_padded, _) = scores
    torch.testing.assert_close(logps_padded, logps, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies_padded, entropies, atol=1e-5, rtol=1e-5)


# --------------------------------------------------------------------------------------------------
# Compiling
# --------------------------------------------------------------------------------------------------
def test_with_buckets_nothing_is_compiled_after_the_warmup_and_as_much_is_learnt(
    build: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SHORT_RUN, "beta": 0.1, "task_sampling": BY_TASK, "learning_rate": 1e-3}
    plain = build(**options, **QUICK, max_completion_length=8)
    start = {name: weight.clone() for name, weight in plain.model.state_dict().items()}
    plain.train()
    trainer = build(**options, **COMPILED)
    trainer.add_callback(HealthCallback(HealthArguments()))
    trainer.train()
    assert len(set(trainer.lengths)) > 2
    # The policy with gradient, and the reference, whose graph the preflight shares.
    assert numbers(trainer, "compile/graphs") == [2 * len(trainer.parts.buckets.lengths)] * 5
    assert numbers(trainer, "compile/recompilations") == [0] * 5
    assert numbers(trainer, "compile/seconds")[0] > 0
    assert len(numbers(trainer, "compile/speedup")) == 4, "from the end of the warm-up on"
    out = capsys.readouterr().out
    assert "torch_compile: 4 graphs for 32, 48 tokens, compiled in" in out
    assert "times the plain speed" in out
    assert "recompiling" not in (tmp_path / "run" / HEALTH_FILE).read_text()
    # Compiled against eager, row by row, and by what was learnt.
    assert trainer.preflight.alone_gap < 1e-3
    assert numbers(trainer, "loss") == pytest.approx(numbers(plain, "loss"), abs=1e-5)
    end = plain.model.state_dict()
    assert max((end[name] - start[name]).abs().max() for name in start) > 1e-3
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-5").state_dict()
    for name, weight in end.items():
        torch.testing.assert_close(kept[name], weight, atol=1e-5, rtol=1e-4)


def test_without_buckets_graphs_are_compiled_as_lengths_come(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    options = {**SHORT_RUN, "compile_warmup_steps": 1, "max_steps": 4}
    trainer = build(**{**COMPILED, "shape_buckets": []}, **options, **QUICK)
    trainer.add_callback(HealthCallback(HealthArguments()))
    trainer.train()
    assert len(set(trainer.lengths)) > 2
    recompilations = numbers(trainer, "compile/recompilations")
    assert recompilations[0] == 0 and sum(recompilations) > 0
    graphs = numbers(trainer, "compile/graphs")
    assert sum(recompilations) == graphs[-1] - graphs[0], (
        "those of the first step are the warm-up's"
    )
    findings = (tmp_path / "run" / HEALTH_FILE).read_text().splitlines()
    finding = next(f for line in findings if (f := json.loads(line))["rule"] == "recompiling")
    assert finding["severity"] == "warning"
    assert "shape_buckets" in finding["message"] and "torch_compile" in finding["message"]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("lora", marks=pytest.mark.slow),
        pytest.param("gae", marks=pytest.mark.slow),
        "old log-probs",
    ],
)
def test_every_way_to_score_is_compiled_in_the_warmup(build: Callable[..., Any], way: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "lora": {
            "peft_config": LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]),
            "beta": 0.1,
        },
        "gae": {"advantage_estimator": "gae"},
        "old log-probs": {"num_iterations": 2, "zero_variance": "resample"},
    }
    short = {**SHORT_RUN, "max_steps": 3, "compile_warmup_steps": 1}
    trainer = build(**{**COMPILED, "shape_buckets": [48]}, **short, **QUICK, **options[way])
    trainer.train()
    assert numbers(trainer, "compile/graphs") == [2] * 3
    assert numbers(trainer, "compile/recompilations") == [0] * 3


def test_a_run_too_short_for_compiling_to_pay_is_told() -> None:
    told = payoff(plain=1.0, compiled=0.5, updates=1, compiling=60, steps=100)
    assert "does not pay in this run of 100 steps" in told
    assert "60 s of compiling pay off in 120 steps" in told


@pytest.mark.slow
def test_inductor_compiles_once_a_bucket(build: Callable[..., Any]) -> None:
    options = {**COMPILED, "torch_compile_backend": "inductor", "shape_buckets": None}
    trainer = build(**options, **SHORT_RUN, beta=0.1, gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.parts.buckets.lengths == (24, 32, 40, 48), "from prompts of 15 to 34 tokens"
    assert trainer.preflight.alone_gap < 1e-3
    assert numbers(trainer, "compile/recompilations") == [0] * 5
    assert trainer.parts.compiling.watch.seconds > 1
