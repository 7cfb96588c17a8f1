"""What a diagnosis is made of: the recorder against TRL's own loss, the guard, the findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.html import bars, curve, histogram, marked, pair_bars
from rookworld_rlvr.common.stats import sign_test
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.diagnosis import DiagnoseArguments, choose_heldout, run_diagnosis, split_compare
from rookworld_rlvr.diagnosis.completions import completion_groups
from rookworld_rlvr.diagnosis.findings import find
from rookworld_rlvr.diagnosis.lines import LINES, merged
from rookworld_rlvr.diagnosis.page import page
from rookworld_rlvr.diagnosis.record import PhaseMeter, RewardFault, guarded
from rookworld_rlvr.diagnosis.sections import advantages_part, loss_terms_part
from rookworld_rlvr.diagnosis.signs import LOSS_GAP
from rookworld_rlvr.diagnosis.text import print_report
from rookworld_rlvr.diagnosis.trainer import DiagnosedTrainer
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.parts.sampling import rollout

MakeTrainer = Callable[..., Any]
STEP: dict[str, Any] = {
    "kind": DiagnosedTrainer,
    "reward_funcs": [lambda prompts, completions, **_: [float(len(set(t))) for t in completions]],
    "rewards": [{"name": "environment_exact"}],
    "max_completion_length": 10,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "preflight": False,
    "logging_steps": 1,
}
TAUGHT: dict[str, Any] = {"zero_variance": "teach", "sft_coef": 0.1, "max_completion_length": 96}


def test_a_fill_in_answer_is_read_as_its_prompt_asks() -> None:
    before, after = (
        "8/8/8/8/8/4k3/8/4K3 w - - 0 1",
        "8/8/8/8/8/4k3/8/3K4 b - - 1 1",
    )
    prompt = f"F: {before}+[MASK]+[MASK]+{after}+0.001+0+0+"
    rows = [
        {"text": text, "reward": reward, "advantage": 0.0}
        for text, reward in ((" e1d1", 1.0), ("no move", 0.0))
    ]
    groups = [{"prompt": prompt, "task": "fill_in", "completions": rows}]
    trainer: Any = SimpleNamespace(
        scale_rewards="group", num_generations=2, args=SimpleNamespace(baseline="group_mean")
    )
    assert advantages_part(trainer, groups)["batch"]["health/unreadable"] == 0.5


@pytest.fixture
def start(random_gpt2: GPT2LMHeadModel, tmp_path: Path) -> str:
    """A folder that policy and reference are loaded from."""
    random_gpt2.save_pretrained(tmp_path / "start")
    return str(tmp_path / "start")


# --------------------------------------------------------------------------------------------------
# The recorder
# --------------------------------------------------------------------------------------------------
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
        {"zero_variance": "teach", "max_completion_length": 96},
        {**TAUGHT, "gradient_accumulation_steps": 2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_terms_are_the_trainers_loss(
    options: dict[str, Any],
    start: str,
    tokenizer: PreTrainedTokenizerBase,
    make_trainer: MakeTrainer,
) -> None:
    """Two steps, so that KL, and in the second iteration the ratio, are no longer trivial."""
    varied = {"beta": 0.1, "max_steps": 2, "num_iterations": 2, **STEP, **options}
    trainer = make_trainer(loading.load_model(start), tokenizer, **varied)
    trainer.train()
    for record in trainer.steps:
        ours = sum(record.terms.in_loss.values())
        assert ours == pytest.approx(record.loss, rel=1e-4, abs=1e-6)
    second = trainer.steps[1].terms
    assert second.in_loss["kl"] > 0
    assert second.by_token["mean_log_ratio"] / second.tokens > 1e-3
    (logged,) = [e["loss"] for e in trainer.state.log_history if e.get("step") == 2 and "loss" in e]
    assert trainer.steps[1].loss == pytest.approx(logged, rel=1e-4, abs=1e-6)
    groups = completion_groups(trainer, trainer.steps[0])
    assert loss_terms_part(trainer, trainer.steps[0], groups)["relative_gap"] < 1e-4


@pytest.mark.parametrize("options", [{}, TAUGHT], ids=["sampled", "taught"])
def test_one_step_on_is_the_second_iteration(
    options: dict[str, Any],
    start: str,
    tokenizer: PreTrainedTokenizerBase,
    make_trainer: MakeTrainer,
) -> None:
    """What is worked out after the step is what the trainer itself computes when it goes on."""
    varied = {**STEP, "beta": 0.5, "max_steps": 2, "num_iterations": 2, **options}
    trainer = make_trainer(loading.load_model(start), tokenizer, **varied)
    trainer.train()
    first, second = trainer.steps
    expected, actual = first.one_step_on, second.terms
    assert sum(expected.in_loss.values()) == pytest.approx(second.loss, rel=1e-4)
    for name in actual.in_loss:
        assert expected.in_loss[name] == pytest.approx(actual.in_loss[name], rel=1e-4), name
    assert set(expected.in_loss) == set(actual.in_loss)
    assert expected.by_token["clipped_share"] == pytest.approx(actual.by_token["clipped_share"])


def test_taught_answers_are_in_the_terms_and_marked(
    start: str,
    tokenizer: PreTrainedTokenizerBase,
    make_trainer: MakeTrainer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = make_trainer(loading.load_model(start), tokenizer, **{**STEP, **TAUGHT, "beta": 0.1})
    diagnosis = run_diagnosis(trainer, "taught")
    parts = diagnosis.parts
    assert "loss_terms_gap" not in {found["rule"] for found in parts["findings"]["findings"]}
    terms = parts["loss_terms"]
    for name in ("teach", "supervised"):  # the sum does not fit without it
        gap = abs(terms["sum"] - terms[name] - terms["loss"])
        others = sum(abs(terms[other]) for other in ("policy", "kl", "teach", "supervised"))
        assert gap > 10 * LOSS_GAP * others, name
        assert parts["shares"]["step"][f"{name}_gradient_norm"] > 0
        assert parts["shares"]["one_step_on"][f"{name}_gradient_norm"] > 0
    assert terms["relative_gap"] < 1e-4
    assert all(prompt["teach"] for prompt in terms["prompts"])

    assert parts["completions"]["taught"] == 2
    assert parts["completions"]["sampler_gap_largest"] < 1e-3, "of those that were sampled"
    for group in parts["completions"]["groups"]:
        *sampled, taught = group["completions"]
        assert {row["source"] for row in sampled} == {"sampled"}
        assert taught["source"] == "taught" and taught["sampler"] is None
        assert taught["advantage"] and any(taught["teach_term"])
        assert not any(taught["policy_term"]) and not any(sampled[0]["teach_term"])
        mean = sum(row["advantage"] for row in group["completions"]) / 4
        assert mean == pytest.approx(0, abs=1e-4)

    assert [group["taught"] for group in parts["advantages"]["groups"]] == [1, 1]

    print_report([diagnosis])
    printed = capsys.readouterr().out
    for words in ("taught answers  ", "supervised term  ", "taught answers a token", "source"):
        assert words in printed
    written = page([diagnosis])
    assert ">taught<" in written and "teach_term" in written
    for words in ("taught answers", "supervised term", "taught answers a token"):
        assert words in written


def test_without_right_answers_a_diagnosis_does_not_mention_them(
    start: str, tokenizer: PreTrainedTokenizerBase, make_trainer: MakeTrainer
) -> None:
    trainer = make_trainer(loading.load_model(start), tokenizer, **STEP)
    written = page([run_diagnosis(trainer, "sampled")])
    for words in ("taught", "supervised", ">source<"):
        assert words not in written


def test_recording_changes_no_weight(
    start: str, tokenizer: PreTrainedTokenizerBase, make_trainer: MakeTrainer
) -> None:
    ends = []
    for kind in (DiagnosedTrainer, DiagnosedTrainer.__base__):
        trainer = make_trainer(
            loading.load_model(start), tokenizer, **{**STEP, "kind": kind, "max_steps": 2}
        )
        trainer.rollout_func = partial(rollout, keep_logps=True)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        ends.append((losses, trainer.model.transformer.h[0].mlp.c_fc.weight.detach().clone()))
    # To the last bit: the same shapes in the same process, and that is what is promised.
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


def test_a_phase_adds_up() -> None:
    meter = PhaseMeter(torch.device("cpu"))
    for _ in range(2):
        with meter.phase("sampling") as phase:
            phase.tokens += 5
            held = torch.ones(8_000_000)  # 32 MB
        del held
    with meter.phase("rewards"):
        pass
    first, second = meter.rows()
    assert (first["name"], first["calls"], first["tokens"]) == ("sampling", 2, 10)
    assert first["tokens_per_second"] == pytest.approx(10 / first["seconds"])
    assert second["tokens_per_second"] is None
    assert first["peak_memory_bytes"] > 32_000_000


# --------------------------------------------------------------------------------------------------
# The guard
# --------------------------------------------------------------------------------------------------
def test_a_reward_that_raises_is_asked_row_by_row() -> None:
    def reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        assert columns["kept"] == "as it is"
        return [1 / number for number in columns["numbers"]]

    faults: list[RewardFault] = []
    asked = guarded(reward, faults)
    assert asked.__name__ == "reward"
    assert asked(prompts=["p"] * 2, completions=["a", "b"], numbers=[1, 2], kept="as it is") == [
        1,
        0.5,
    ]
    assert faults == []
    found = asked(
        prompts=["p"] * 3, completions=["a", "b", "c"], numbers=[1, 0, 0], kept="as it is"
    )
    assert found == [1, None, None]
    assert faults == [RewardFault("reward", "p", "b", "ZeroDivisionError: division by zero", 2)]


def test_a_reward_that_fails_on_the_batch_only_is_named_too() -> None:
    faults: list[RewardFault] = []
    asked = guarded(lambda prompts, completions, **_: [1.0], faults)
    assert asked(prompts=["p", "q"], completions=["a", "b"]) == [None, None]
    assert faults[0].error == "ValueError: 1 rewards for 2 completions"
    assert faults[0].rows == 0


# --------------------------------------------------------------------------------------------------
# Findings
# --------------------------------------------------------------------------------------------------
def parts() -> dict[str, Any]:
    """The nine parts of a healthy step, as far as the findings read them."""
    shares = {
        "kl_share": 0.1,
        "kl_share_of_gradient": 0.1,
        "kl_coefficient": 0.1,
        "mean_log_ratio": 0.01,
    }
    parity = dict.fromkeys(("alone_gap", "sampler_gap", "reference_kl", "position_gap"), 1e-6)
    pair = {"n": 60, "right_to_wrong": 3, "wrong_to_right": 2, "p_fell": 0.5}
    heldout = {"metrics": {"environment/exact": {"value": 0.5}}}
    layer = {"layer": "wte", "parameters": 8, "frozen_parameters": 0, "zero": False}
    return {
        "setup": {
            "model": {"adapters": False, "trained_parameters": 8},
            "dropout": {"active_modules": 0, "largest": 0.0, "repeat_gap": 0.0},
            "parity": {**parity, "tolerance": 1e-3},
            "step": {"temperature": {"policy": 1.0}, "num_generations": 8},
        },
        "heldout_before": heldout,
        "completions": {"completions": 32, "identical_pairs": 0.1, "groups": [{}] * 4},
        "rewards": {"faults": [], "total": {"n": 32, "mean": 0.5, "lowest": 0.0, "highest": 1.0}},
        "advantages": {"batch": {"health/unreadable": 0.05, "health/advantage_std": 0.9}},
        "loss_terms": {"relative_gap": 0.0},
        "shares": {"step": dict(shares), "one_step_on": dict(shares), "max_grad_norm": 1.0},
        "gradients": {
            "norm": 0.5,
            "finite": True,
            "learning_rate": 1e-4,
            "frozen_parameters": 0,
            "parameters": 8,
            "layers": [layer],
        },
        "heldout_after": {**heldout, "paired": {"environment/exact": pair}},
    }


LOGS = [{"step": 1, "loss": 0.1, "grad_norm": 0.5, "reward": 0.5}]


def test_nothing_is_found_in_a_healthy_step() -> None:
    found = find(parts(), LOGS)
    assert found["findings"] == []
    assert found["cause"] is None


def test_numbers_that_are_none_are_faults() -> None:
    broken = parts()
    broken["gradients"].update(norm=None, finite=False)
    broken["loss_terms"]["relative_gap"] = float("nan")
    found = find(broken, LOGS)
    assert found["cause"] == "gradient_not_finite"
    assert {f["rule"]: f["severity"] for f in found["findings"]} == {
        "gradient_not_finite": "stop",
        "loss_terms_gap": "warning",
    }


def test_a_health_rule_speaks_only_where_chance_does_not() -> None:
    broken = parts()
    broken["advantages"]["batch"]["health/unreadable"] = 7 / 32  # over a fifth, by chance
    assert find(broken, LOGS)["findings"] == []
    broken["advantages"]["batch"]["health/unreadable"] = 20 / 32
    (finding,) = find(broken, LOGS)["findings"]
    assert finding["rule"] == "unreadable"
    assert finding["keys"]


def test_a_consequence_names_the_first_cause() -> None:
    broken = parts()
    broken["rewards"]["total"].update(lowest=0.5, highest=0.5)
    broken["completions"]["identical_pairs"] = 1.0
    broken["gradients"].update(norm=0.0)
    found = find(broken, LOGS)
    assert found["cause"] == "identical_completions"
    causes = {f["rule"]: f["consequence_of"] for f in found["findings"]}
    assert causes["identical_completions"] is None
    assert causes["reward_constant"] == causes["gradient_zero"] == "identical_completions"
    assert "temperature" in found["verdict"]
    shown = dict(LINES["findings"]({"verdict": "", **found}))
    assert list(shown) == ["verdict", "warning: identical_completions"]
    assert "it explains reward_constant, gradient_zero" in shown["warning: identical_completions"]


@pytest.mark.parametrize(("greedy", "remedy"), [(0.1, "rookworld sft first"), (0.9, "lower temp")])
def test_answers_that_cannot_be_read_explain_what_they_leave_no_signal_for(
    greedy: float, remedy: str
) -> None:
    broken = parts()
    broken["heldout_before"] = {"metrics": {"policy/format": {"value": greedy}}}
    broken["advantages"]["batch"].update({"health/unreadable": 0.84, "health/advantage_std": 0.0})
    broken["rewards"]["total"].update(mean=0.0, lowest=0.0, highest=0.0)
    broken["gradients"].update(norm=0.0)
    found = find(broken, LOGS)
    shown = dict(LINES["findings"]({"verdict": "", **found}))
    assert list(shown) == ["verdict", "warning: mostly_unreadable"]
    assert "84% of the completions cannot be read" in found["verdict"]
    assert remedy in found["verdict"]


def test_a_batch_that_is_not_learnt_by_heart() -> None:
    flat = [{"reward": 0.5} for _ in range(20)]
    assert [f["rule"] for f in find(parts(), LOGS, None, flat)["findings"]] == ["batch_not_learnt"]
    rising = [{"reward": step / 20} for step in range(20)]
    assert find(parts(), LOGS, None, rising)["findings"] == []
    assert find(parts(), LOGS, None, flat[:19])["findings"] == [], "too few to tell"


def test_the_sign_test_by_hand() -> None:
    assert sign_test(8, 0) == 1 / 256
    assert sign_test(5, 1) == 7 / 64
    assert sign_test(0, 5) == 1


# --------------------------------------------------------------------------------------------------
# The rest
# --------------------------------------------------------------------------------------------------
def test_heldout_rows_are_spread_over_tasks_and_rows(packaged: LoadedData) -> None:
    rows = choose_heldout(packaged.heldout, 40)
    assert rows["task"].count("environment") == rows["task"].count("policy") == 20
    assert len(set(rows["prompt"])) == 40
    assert len(choose_heldout(packaged.heldout, 10_000)) == len(packaged.heldout)
    only = packaged.heldout.filter(lambda row: row["task"] == "policy")
    assert len(choose_heldout(only, 30)) == 30


def test_faults_of_the_arguments_are_found_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DiagnoseArguments(overfit_single_batch=-1, compare=["a"], diagnose_heldout_rows=0)
    assert len(caught.value.faults) == 3
    assert split_compare(["--seed", "1"]) == ([], ["--seed", "1"])


def test_equal_completions_are_one_and_the_best_comes_first() -> None:
    def row(text: str, reward: float | None, gap: float | None = 0.1) -> dict[str, Any]:
        return {
            "text": text,
            "reward": reward,
            "ended": True,
            "sampler_gap": gap,
            "reference_gap": None,
        }

    rows = [row("b", 0.0), row("a", None), row("b", 0.0, 0.3), row("c", 1.0, None), row("b", 0.5)]
    found = [(one["text"], one["reward"], one["count"], one["sampler_gap"]) for one in merged(rows)]
    assert found == [
        ("c", 1.0, 1, None),
        ("b", 0.5, 1, 0.1),
        ("b", 0.0, 2, 0.3),
        ("a", None, 1, 0.1),
    ]


def test_what_differs_is_marked_word_by_word() -> None:
    fen = "8/8/4K3/8/8/8/8/8 w - e3 0 1+0.001+0+0"
    drawn = marked(fen, "8/8/3K4/8/8/8/8/8 w - - 0 1+0.001+0+0")
    assert re.findall(r"<mark[^>]*>([^<]*)</mark>", drawn) == ["4K3", "e3"]
    assert re.sub("<[^>]*>", "", drawn) == fen, "nothing is lost"
    assert "<mark" not in marked("M: e2e4     E:", "M: e2e4 E:"), "padding"
    assert marked("<b>", "") == '<mark title="">&lt;b&gt;</mark>'
    assert marked("", '"') == '<mark title="&#34;"></mark>', "what is missing can be read"


def test_pairs_of_bars_share_a_scale() -> None:
    drawn = pair_bars([("a", 1, 2, "1 → 2"), ("b", 4, 0, "4 → 0")])
    assert re.findall(r'width="([\d.]+)%"', drawn) == ["25.00", "50.00", "100.00", "0.00"]
    assert re.findall(r'width="([\d.]+)%"', pair_bars([("a", 0.5, 1, "")], 2)) == ["25.00", "50.00"]
    assert 'width="0.00%"' in pair_bars([("a", 0, 0, "")])


def test_plots_hold_their_numbers_and_nothing_else_of_the_text() -> None:
    drawn = bars([("<b>", 1.0, "one"), ("half", 0.5, "half"), ("none", None, "-")])
    assert re.findall(r'width="([\d.]+)%"', drawn) == ["100.00", "50.00", "0.00"]
    assert "<b>" not in drawn
    assert histogram([0.0, 0.0, 1.0], "numbers", bins=2).count("<rect") == 2
    assert "<title>0: 2</title>" in histogram([0.0, 0.0, 1.0], "numbers", bins=2)
    assert histogram([], "none") == curve([1.0], "one point") == ""
    (drawn,) = re.findall(r'points="([^"]*)"', curve([0.0, 0.5, 1.0], "rising"))
    places = [[float(number) for number in pair.split(",")] for pair in drawn.split()]
    for rises, (first, middle, last) in zip((1, -1), zip(*places, strict=True), strict=True):
        assert rises * first < rises * last, "to the right, and upwards"
        assert middle == pytest.approx((first + last) / 2)
