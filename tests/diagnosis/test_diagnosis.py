"""What a diagnosis is made of: named terms against TRL's own loss, the step's notes, the findings."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.html import marked, pair_bars
from rookworld_rlvr.diagnosis.phases import DiagnoseArguments, analysis, comparison, run_diagnosis
from rookworld_rlvr.diagnosis.report import findings
from rookworld_rlvr.diagnosis.trainer import DiagnosedTrainer
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.sampling import rollout

from ..conftest import NOT_KEPT

STEP: dict[str, Any] = {
    "kind": DiagnosedTrainer,
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
def made(build: Callable[..., Any], start: str) -> Callable[..., Any]:
    """Make a trainer whose policy and reference are loaded from a folder."""
    return lambda **options: build(loading.load_model(start), **{**STEP, **options})


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")),
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "vespo"},
        {"entropy_coef": 0.01},
        {"top_entropy_quantile": 0.3},
        {"advantage_estimator": "gae"},
        {"gradient_accumulation_steps": 2},
        {"task_sampling": {"policy": {"temperature": 0.5}}},
        {"zero_variance": "skip", "loss_type": "grpo"},
        {**TAUGHT, "gradient_accumulation_steps": 2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_named_terms_add_up_to_the_loss_and_rows_to_their_terms(
    options: dict[str, Any], made: Callable[..., Any]
) -> None:
    """In the second step, another iteration, KL and ratio are no longer trivial."""
    trainer = made(**{"beta": 0.1, "max_steps": 2, "num_iterations": 2, **options})
    trainer.train()
    first, second = (entry for entry in trainer.state.log_history if "loss" in entry)
    for log in (first, second):
        terms = {name: value for name, value in log.items() if name.startswith("loss/")}
        # What transformers logs is rounded.
        assert sum(terms.values()) == pytest.approx(log["loss"], rel=1e-3, abs=2e-4)
    assert second["loss/kl"] > 0 == first["loss/kl"]
    assert ("loss/entropy" in first) == ("entropy_coef" in options)
    if "entropy_coef" in options:
        assert first["loss/entropy"] == pytest.approx(-0.01 * first["entropy"], rel=1e-3)
    rows = [row["policy_term"] for row in trainer.completions if row["total"] is not None]
    whole = first["loss/policy"] + first.get("loss/taught", 0.0)
    assert sum(rows) == pytest.approx(whole, rel=1e-3, abs=1e-5)

    # What is computed after the first step is what the trainer computes when it goes on.
    expected = trainer.one_step_on
    for name in ("kl", "kl/share_of_loss", "entropy", "clip_ratio/region_mean"):
        if name in expected:
            assert expected[name] == pytest.approx(second[name], rel=1e-3, abs=1e-6), name


def test_recording_changes_no_weight(made: Callable[..., Any]) -> None:
    ends = []
    for kind in (DiagnosedTrainer, DiagnosedTrainer.__base__):
        trainer = made(kind=kind, max_steps=2, beta=0.1)
        trainer.rollout_func = partial(rollout, keep_logps=True)
        if "shared_prompts" in trainer.parts:
            trainer.parts["shared_prompts"].leaves_out_idle = False
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        ends.append((losses, trainer.model.transformer.h[0].mlp.c_fc.weight.detach().clone()))
    # To the last bit: the same shapes in the same process, and that is what is promised.
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


def test_taught_answers_are_in_the_terms_and_marked(made: Callable[..., Any]) -> None:
    record = run_diagnosis(made(**TAUGHT, beta=0.1), "taught")
    assert {"loss/taught", "loss/supervised"} <= set(record["policy"])
    assert record["generation"]["taught"] == 2
    for group in record["generation"]["groups_of_texts"]:
        *sampled, taught = group["completions"]
        assert taught["taught"] and taught["sampler"] is None and taught["policy_term"]
        assert not any(row["taught"] for row in sampled)
        advantages = [row["advantage"] for row in group["completions"]]
        assert sum(advantages) == pytest.approx(0, abs=1e-3)
    for name in ("gradient/taught", "gradient/supervised"):
        assert record["policy"]["one_step_on"][name] > 0


LOG = {"step": 1, "loss": 0.1, "grad_norm": 0.5, "reward": 0.5, "health/unreadable": 0.05}
HELD_OUT = [{"metric": "policy/format", "share": 0.9}]


def judged(
    gaps: dict[str, float] | None = None, heldout: Any = HELD_OUT, steps: Any = (), **log: float
) -> dict[str, Any]:
    """The analysis of a healthy step of 32 completions of 4 prompts, with some numbers replaced."""
    names = ("alone_gap", "sampler_gap", "reference_kl")
    pair = {"metric": "policy/best_move", "n": 60, "difference": -1 / 60, "p": 0.5}
    trainer: Any = type("Trainer", (), {})()
    trainer.probes = {**dict.fromkeys(names, 1e-6), "tolerance": 1e-3, **(gaps or {})}
    trainer.layers = pd.DataFrame({"gradient_norm": [0.1, 0.2]}, index=["wte", "wpe"])
    trainer.networks = lambda: [object()]
    trainer.one_step_on = {"drift": 0.01, "kl/share_of_loss": 0.1, "kl/share_of_gradient": 0.1}
    trainer.args = type("Args", (), {"max_grad_norm": 1.0})
    model = {"active_dropout": 0, "parameters": 8, "trained_parameters": 8}
    whole = {**LOG, **{name.replace("__", "/"): value for name, value in log.items()}}
    record = {
        "setup": {**model, "gaps": trainer.probes},
        "initial": {"heldout": heldout},
        "generation": {"completions": 32, "groups_of_texts": [{}] * 4, "pairs_of_one_text": 0.1},
        "rewards": {"failures": []},
        "after": {"paired": [pair]},
        "log_history": [whole, *steps],
    }
    return analysis(trainer, record)


def rules(found: dict[str, Any]) -> dict[str, str | None]:
    return {finding["rule"]: finding["consequence_of"] for finding in found["findings"]}


def test_what_may_be_chance_is_no_finding() -> None:
    assert rules(judged()) == {} and judged()["verdict"].startswith("healthy")
    assert rules(judged(health__unreadable=7 / 32)) == {}, "over a fifth, by chance"
    assert list(rules(judged(health__unreadable=12 / 32))) == ["unreadable"]


FLAT = {"health__reward_constant": 1.0, "health__advantage_std": 0.0, "grad_norm": 0.0}


@pytest.mark.parametrize(
    ("greedy", "rule"), [(0.1, "mostly_unreadable"), (0.9, "unreadable_when_sampled")]
)
def test_answers_that_cannot_be_read_come_first_and_alone(greedy: float, rule: str) -> None:
    heldout = [{"metric": "policy/format", "share": greedy}]
    found = judged(heldout=heldout, health__unreadable=0.9, **FLAT)
    assert found["cause"] == rule
    ((finding, text),) = findings(found)
    assert (
        finding["rule"] == rule and "explains: unreadable_most, unreadable, reward_constant" in text
    )


def test_gaps_and_gradients_that_are_not_finite_stop() -> None:
    found = judged(grad_norm=float("nan"))
    severities = {finding["rule"]: finding["severity"] for finding in found["findings"]}
    assert severities["gradient_not_finite"] == "stop"
    found = judged({"sampler_gap": 0.3})
    assert found["cause"] == "preflight_gap" and "sampler_gap is 0.3 nats" in found["verdict"]


def test_a_batch_that_is_not_learnt_by_heart() -> None:
    flat = [{"reward": 0.5}] * 19
    assert list(rules(judged(steps=flat))) == ["batch_not_learnt"]
    assert rules(judged(steps=[{"reward": 0.5 + step / 20} for step in range(19)])) == {}
    assert rules(judged(steps=flat[:18])) == {}, "too few to tell"


def test_a_step_is_compared_with_a_log(tmp_path: Path) -> None:
    log = [{"step": step, "loss": 0.1, "kl": float(step)} for step in range(1, 21)]
    state = {"log_history": [*log, {"step": 20, "eval_overall": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    found = DiagnoseArguments(compare=str(tmp_path)).log()
    assert found == log
    assert comparison({"step": 1, "kl": 0.5, "new": 1.0}, found) == [
        {"metric": "kl", "here": 0.5, "first": 1.0, "last_ten": 15.5}
    ]
    assert DiagnoseArguments().log() == [] == comparison({"kl": 0.5}, [])
    with pytest.raises(RookWorldError, match="has no log"):
        DiagnoseArguments(compare=str(tmp_path / "none")).log()
    last = {"step": 3, "reward": 0.1, "kl": 0.2}  # of a run that is shorter than its logging_steps
    for history, steps in (([last], 1), ([{"step": 3, "eval_overall": 0.5}], 0)):
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        if steps:
            assert DiagnoseArguments(compare=str(tmp_path)).log() == history
        else:
            with pytest.raises(RookWorldError, match="has no log of a step"):
                DiagnoseArguments(compare=str(tmp_path)).log()


def test_what_differs_is_marked_word_by_word() -> None:
    fen = "8/8/4K3/8/8/8/8/8 w - e3 0 1+0.001+0+0"
    drawn = marked(fen, "8/8/3K4/8/8/8/8/8 w - - 0 1+0.001+0+0")
    assert re.findall(r"<mark[^>]*>([^<]*)</mark>", drawn) == ["4K3", "e3"]
    assert re.sub("<[^>]*>", "", drawn) == fen, "nothing is lost"
    assert "<mark" not in marked("M: e2e4     E:", "M: e2e4 E:"), "padding"
    assert marked("<b>", "") == '<mark title="">&lt;b&gt;</mark>'
    assert marked("", '"') == '<mark title="&#34;"></mark>', "what is missing can be read"


def test_bars_hold_nothing_else_of_the_text() -> None:
    assert "<b>" not in pair_bars([("<b>", 1.0, 1.0, "one")])
