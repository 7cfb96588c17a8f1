"""What a diagnosis is made of: named terms against TRL's own loss, the step's notes, the findings."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.html import marked, pair_bars
from rookworld_rlvr.diagnosis.phases import DiagnoseArguments, analysis, comparison, run_diagnosis
from rookworld_rlvr.diagnosis.report import findings
from rookworld_rlvr.diagnosis.trainer import DiagnosedTrainer
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.sampling import rollout

from ..support import NOT_KEPT

Made = Callable[..., Any]
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
    trainer.train()
    first, second = (entry for entry in trainer.state.log_history if "loss" in entry)
    for log in (first, second):
        terms = sum(value for name, value in log.items() if name.startswith("loss/"))
        assert terms == pytest.approx(log["loss"], rel=1e-3, abs=2e-4), "that is rounded"
    assert second["loss/kl"] > 0 == first["loss/kl"]
    assert ("loss/entropy" in first) == ("entropy_coef" in options)
    if "entropy_coef" in options:
        assert first["loss/entropy"] == pytest.approx(-0.01 * first["entropy"], rel=1e-3)
    rows = [row["policy_term"] for row in trainer.completions if row["total"] is not None]
    whole = first["loss/policy"] + first.get("loss/taught", 0.0)
    assert sum(rows) == pytest.approx(whole, rel=1e-3, abs=1e-5)
    after = [row["total_after"] for row in trainer.completions if row["total"] is not None]
    whole = sum(second.get(f"loss/{name}", 0.0) for name in ("policy", "taught", "kl"))
    assert sum(after) == pytest.approx(whole, rel=1e-3, abs=1e-5)

    # What is computed after the first step is what the trainer computes when it goes on.
    expected = trainer.one_step_on
    for name in ("kl", "kl/share_of_loss", "entropy", "clip_ratio/region_mean"):
        if name in expected:
            assert expected[name] == pytest.approx(second[name], rel=1e-3, abs=1e-6), name


def test_recording_changes_no_weight(made: Made) -> None:
    ends = []
    for kind in (DiagnosedTrainer, DiagnosedTrainer.__base__):
        trainer = made(kind=kind, max_steps=2, beta=0.1)
        trainer.rollout_func = partial(rollout, keep_logps=True)
        trainer.parts["shared_prompts"].leaves_out_idle = False
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        ends.append((losses, trainer.model.transformer.h[0].mlp.c_fc.weight.tolist()))
    # To the last bit: the same shapes in the same process, and that is what is promised.
    assert ends[0] == ends[1]


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
    trainer: Any = SimpleNamespace(
        probes=gaps,
        layers=pd.DataFrame({"gradient_norm": [0.1, 0.2]}, index=["wte", "wpe"]),
        networks=lambda: [object()],
        one_step_on={**one_step_on, **dict(later)},
        args=SimpleNamespace(max_grad_norm=1.0),
    )
    record = {
        "setup": {"active_dropout": 0, "parameters": 8, "trained_parameters": 8, "gaps": gaps},
        "initial": {"heldout": [{"metric": "policy/format", "share": readable}]},
        "generation": {"completions": 32, "groups_of_texts": [{}] * 4, "pairs_of_one_text": 0.1},
        "rewards": {"failures": []},
        "after": {"paired": [pair]},
        "log_history": [{**healthy, **dict(log)}, *steps],
    }
    return analysis(trainer, record)


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
