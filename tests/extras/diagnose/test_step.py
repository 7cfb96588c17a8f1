"""What a diagnosis is made of: named terms against TRL's own loss, the step's notes, the findings."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.common.html import marked, pair_bars
from rookworld_rlvr.extras.diagnose.phases import (
    DiagnoseArguments,
    analysis,
    comparison,
    run_diagnosis,
)
from rookworld_rlvr.extras.diagnose.report import findings
from rookworld_rlvr.extras.diagnose.step import Diagnosis
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ...support import NOT_KEPT

Made = Callable[..., Any]
STEP: dict[str, Any] = {
    "reward_funcs": [lambda prompts, completions, **_: [float(len(set(t))) for t in completions]],
    "max_completion_length": 10,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    **NOT_KEPT,
    "eval_strategy": "no",
    "preflight": False,
}
TAUGHT: dict[str, Any] = {"zero_variance": "teach", "sft_coef": 0.1, "max_completion_length": 96}


@pytest.fixture
def made(build: Made, start: str) -> Made:
    """Make a trainer whose policy and reference are loaded from a folder."""
    return lambda **options: build(loading.load_model(start), **{**STEP, **options})


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": name} for name in ("dr_grpo", "sapo", "vespo")),
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "bnpo", "gradient_accumulation_steps": 2},
        {"loss_type": "cispo", "top_entropy_quantile": 0.3},
        {"loss_type": "dapo", "entropy_coef": 0.01, "gradient_accumulation_steps": 2},
        {"loss_type": "grpo", "task_sampling": {"policy": {"temperature": 0.5}}},
        {"loss_type": "grpo", "zero_variance": "skip"},
        {"advantage_estimator": "gae"},
        {**TAUGHT, "gradient_accumulation_steps": 2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_terms_add_up_to_the_loss_and_rows_to_terms(options: dict[str, Any], made: Made) -> None:
    """In the second step, another iteration, KL and ratio are no longer trivial."""
    trainer = made(beta=0.1, max_steps=2, num_iterations=2, **options)
    diagnosis = Diagnosis(trainer)
    trainer.train()
    first, second = (entry for entry in trainer.state.log_history if "loss" in entry)
    for log in (first, second):
        terms = sum(value for name, value in log.items() if name.startswith("loss/"))
        assert terms == pytest.approx(log["loss"], rel=1e-3, abs=2e-4), "that is rounded"
    assert second["loss/kl"] > 0 == first["loss/kl"]
    rows = [row["policy_term"] for row in diagnosis.completions if row["total"] is not None]
    bonus = (
        options.get("entropy_coef", 0.0) * first["entropy"]
    )  # is in TRL's loss, of no completion
    whole = bonus + first["loss/policy"] + first.get("loss/taught", 0.0)
    assert sum(rows) == pytest.approx(whole, rel=1e-3, abs=1e-5)
    after = [row["total_after"] for row in diagnosis.completions if row["total"] is not None]
    bonus = options.get("entropy_coef", 0.0) * second["entropy"]
    whole = bonus + sum(second.get(f"loss/{name}", 0.0) for name in ("policy", "taught", "kl"))
    assert sum(after) == pytest.approx(whole, rel=1e-3, abs=1e-5)

    # What is computed after the first step is what the trainer computes when it goes on.
    expected = diagnosis.one_step_on
    for name in ("kl", "kl/share_of_loss", "entropy", "clip_ratio/region_mean"):
        if name in expected:
            assert expected[name] == pytest.approx(second[name], rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 9.0},
        {"keep_coef": 0.1, "keep_rows": {"environment": 2}},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_diagnosis_changes_no_weight(options: dict[str, Any], made: Made) -> None:
    """Neither what a step computes nor what is random changes, such as a reward or dropout."""
    ends = []
    for is_diagnosed in (False, True):
        trainer = made(max_steps=3, beta=0.1, reward_funcs=[any_reward], **options)
        trainer.scores_all_rows = trainer.keeps_logps = True
        if is_diagnosed:
            Diagnosis(trainer)
        random.seed(0)
        np.random.seed(0)
        trainer.model.transformer.drop.p = 0.1
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        ends.append((losses, trainer.model.transformer.h[0].mlp.c_fc.weight.tolist()))
    # To the last bit: the same shapes in the same process, and that is what is promised.
    assert ends[0] == ends[1]


def any_reward(prompts: list[str], **_: Any) -> list[float]:
    return [random.random() + np.random.rand() for _ in prompts]


def test_the_step_keeps_its_gradients(made: Made) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Gradients(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, *_: Any, model: Any, **__: Any) -> None:
            weights = dict(model.named_parameters())
            seen.append({name: weights[name].grad.clone() for name in weights})

    trainer = made(beta=0.1, gradient_accumulation_steps=2)
    Diagnosis(trainer)
    trainer.callback_handler.callbacks.insert(0, Gradients())
    trainer.add_callback(Gradients())
    trainer.train()
    before, after = seen
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_term_of_ones_own_is_diagnosed(made: Made) -> None:
    class Own(RookWorldGRPOTrainer):
        def loss_terms(self, batch: Any, scores: Any) -> dict[str, torch.Tensor]:
            own = self.mean(0.01 * scores.logps.exp(), batch)
            return {**super().loss_terms(batch, scores), "own": own}

    record = run_diagnosis(made(kind=Own, beta=0.1), "own")
    assert record["policy"]["loss/own"] > 0 < record["policy"]["one_step_on"]["gradient/own"]
    assert record["policy"]["groups"][0]["policy_term"]


def test_deepspeed_is_refused(made: Made) -> None:
    trainer = made()
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ConfigurationError, match="launch without DeepSpeed"):
        Diagnosis(trainer)


def test_micro_batches_that_are_sampled_one_by_one(made: Made) -> None:
    options = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}
    record = run_diagnosis(made(**options), "one by one")
    assert record["setup"]["gaps"]["reference_kl"] is None, "without beta there is no reference"
    groups = record["generation"]["groups_of_texts"]
    rows = [row for group in groups for row in group["completions"]]
    assert len(groups) == len({group["prompt"] for group in groups}) == 4
    assert len(rows) == 16 and all(row["total"] is not None for row in rows)
    assert len(record["after"]["prompts"]) == 4
    total = sum(row["total"] for row in rows)
    assert total == pytest.approx(record["update"]["loss"], abs=1e-4)


def test_taught_answers_are_in_the_terms_and_marked(made: Made) -> None:
    record = run_diagnosis(made(**TAUGHT, beta=0.1), "taught")
    assert {"loss/taught", "loss/supervised"} <= set(record["policy"])
    assert record["generation"]["taught"] == 2
    for group in record["generation"]["groups_of_texts"]:
        *sampled, taught = group["completions"]
        assert taught["taught"] and taught["sampler"] is None and taught["policy_term"]
        assert not any(row["taught"] for row in sampled)
        assert sum(r["advantage"] for r in group["completions"]) == pytest.approx(0, abs=1e-3)
    for name in ("gradient/taught", "gradient/supervised"):
        assert record["policy"]["one_step_on"][name] > 0


def test_a_group_that_teaches_nothing_is_said_so(made: Made) -> None:
    """Every other prompt's completions all get the same reward."""

    def every_other(prompts: list[str], **_: Any) -> list[float]:
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        return [float(places[prompt] % 2 and row % 4 == 0) for row, prompt in enumerate(prompts)]

    groups = run_diagnosis(made(reward_funcs=[every_other], beta=0.1), "kept")["advantages"][
        "groups"
    ]
    assert groups[0]["advantages"] == [0.0] * 4
    assert groups[0]["verdict"] == (
        "the range is below 0.01 and the deviation is below 0.01: hardly anything to learn"
    )
    assert groups[1]["positive"] == 0.25 and groups[1]["verdict"] == "enough to learn from"


def test_of_groups_that_a_later_step_trains_on_nothing_is_said(made: Made) -> None:
    options = {"steps_per_generation": 2, "per_device_train_batch_size": 4, "beta": 0.1}
    record = run_diagnosis(made(max_steps=1, **options), "two steps")
    advantages = record["advantages"]
    assert [group["verdict"] for group in advantages["groups"]].count("not trained on") == 1
    (trained,) = (group for group in advantages["groups"] if group["verdict"] != "not trained on")
    assert advantages["positive"] == trained["positive"]
    for phase in ("policy", "kl", "update"):
        figures = record[phase]["groups"]
        assert len(figures) == 2
        assert [group["group"] for group in figures] == [0, 1]
    total = {group["group"]: group["total"] for group in record["update"]["groups"]}
    assert sum(total.values()) == pytest.approx(record["update"]["loss"], abs=1e-5)


def judged(
    log: Any = (), steps: Any = (), gap: float = 1e-6, readable: float = 0.9, later: Any = ()
) -> dict[str, Any]:
    """The analysis of a healthy step of 32 completions of 4 prompts, with some numbers replaced."""
    healthy = {"step": 1, "loss": 0.1, "grad_norm": 0.5, "reward": 0.5, "health/unreadable": 0.05}
    pair = {"metric": "policy/best_move", "n": 60, "difference": -1 / 60, "p": 0.5}
    one_step_on = {"drift": 0.01, "kl": 0.01}
    one_step_on |= {"kl/share_of_loss": 0.1, "kl/share_of_gradient": 0.1}
    gaps = {"alone_gap": 1e-6, "sampler_gap": gap, "reference_kl": 1e-6, "tolerance": 1e-3}
    diagnosis: Any = SimpleNamespace(
        probes=gaps,
        layers=pd.DataFrame({"gradient_norm": [0.1, 0.2]}, index=["wte", "wpe"]),
        one_step_on={**one_step_on, **dict(later)},
        trainer=SimpleNamespace(networks=lambda: [object()]),
    )
    record = {
        "setup": {"active_dropout": 0, "parameters": 8, "trained_parameters": 8, "gaps": gaps},
        "initial": {"heldout": [{"metric": "policy/format", "share": readable}]},
        "generation": {"completions": 32, "groups_of_texts": [{}] * 4, "pairs_of_one_text": 0.1},
        "rewards": {"failures": []},
        "after": {"paired": [pair]},
        "log_history": [{**healthy, **dict(log)}, *steps],
    }
    return analysis(diagnosis, record)


def rules(*given: Any) -> list[str]:
    return [finding["rule"] for finding in judged(*given)["findings"]]


def test_a_step_is_judged_by_its_numbers_and_not_by_chance() -> None:
    assert judged()["findings"] == [] and judged()["verdict"].startswith("healthy")
    assert rules({"health/unreadable": 7 / 32}) == [], "over a fifth, by chance"
    assert rules({"health/unreadable": 12 / 32}) == ["unreadable"]
    found = judged({"grad_norm": float("nan")})["findings"]
    assert ("gradient_not_finite", "stop") in [(one["rule"], one["severity"]) for one in found]
    found = judged(gap=0.3)
    assert found["cause"] == "preflight_gap" and "sampler_gap is 0.3 nats" in found["verdict"]
    # The KL is 0 in the step itself, so its share of the loss is, too.
    far = {"kl": 5.0, "kl/share_of_loss": 0.2, "kl/share_of_gradient": 0.95}
    found = judged({"kl": 0.0, "kl/share_of_loss": 0.0}, later=far)
    assert found["cause"] == "kl_exploding" and "only 20% of the loss" in found["verdict"]
    assert found["findings"][0]["explains"] == ["kl_dominates"]
    # Of one batch over and over, that it is not learnt by heart.
    flat = [{"reward": 0.5}] * 19
    assert rules((), flat) == ["batch_not_learnt"]
    assert rules((), [{"reward": 0.5 + step / 20} for step in range(19)]) == []
    assert rules((), flat[:18]) == [], "too few to tell"


@pytest.mark.parametrize(
    ("greedy", "rule"), [(0.1, "mostly_unreadable"), (0.9, "unreadable_when_sampled")]
)
def test_answers_that_cannot_be_read_come_first_and_alone(greedy: float, rule: str) -> None:
    flat = {"health/reward_constant": 1.0, "health/advantage_std": 0.0, "grad_norm": 0.0}
    found = judged({**flat, "health/unreadable": 0.9}, readable=greedy)
    ((finding, text),) = findings(found)
    assert found["cause"] == finding["rule"] == rule
    assert "explains: unreadable_most, unreadable, reward_constant" in text


def test_a_step_is_compared_with_a_log(tmp_path: Path) -> None:
    def read(*history: Any) -> list[Any]:
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        return list(DiagnoseArguments(compare=str(tmp_path)).log())

    log = [{"step": step, "loss": 0.1, "kl": float(step)} for step in range(1, 21)]
    evaluation = {"step": 20, "eval_overall": 0.5}
    assert read(*log, evaluation) == log
    assert comparison({"step": 1, "kl": 0.5, "new": 1.0}, log) == [
        {"metric": "kl", "here": 0.5, "first": 1.0, "last_ten": 15.5}
    ]
    assert DiagnoseArguments().log() == [] == comparison({"kl": 0.5}, [])
    last = {"step": 3, "reward": 0.1, "kl": 0.2}  # of a run that is shorter than its logging_steps
    assert read(last) == [last]
    with pytest.raises(RookWorldError, match="has no log of a step"):
        read(evaluation)


def test_what_differs_is_marked_word_by_word() -> None:
    fen = "8/8/4K3/8/8/8/8/8 w - e3 0 1+0.001+0+0"
    drawn = marked(fen, "8/8/3K4/8/8/8/8/8 w - - 0 1+0.001+0+0")
    assert re.findall(r"<mark[^>]*>([^<]*)</mark>", drawn) == ["4K3", "e3"]
    assert re.sub("<[^>]*>", "", drawn) == fen, "nothing is lost"
    assert "<mark" not in marked("M: e2e4     E:", "M: e2e4 E:"), "padding"
    assert marked("<b>", "") == '<mark title="">&lt;b&gt;</mark>'
    assert marked("", '"') == '<mark title="&#34;"></mark>', "what is missing can be read"
    assert "<b>" not in pair_bars([("<b>", 1.0, 1.0, "one")])
