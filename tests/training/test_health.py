import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wandb
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl import ModelConfig

from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.engine.truth import LabelArguments
from rookworld_rlvr.training import health
from rookworld_rlvr.training.config import RookWorldGRPOConfig, RunArguments
from rookworld_rlvr.training.rollouts import task_rewards

Log = dict[str, Any]

HEALTHY: Log = {
    "grad_norm": 0.4,
    "reward": 1.2,
    "mean_entropy": 0.95,
    "frac_reward_zero_std": 0.12,
    "completions/clipped_ratio": 0.0,
    "kl": 0.05,
    "kl/share_of_loss": 0.2,
    "kl/coefficient": 0.05,
    "engine/given_up": 0.0,
    "health/advantage_std": 0.9,
    "health/advantage_range": 4.0,
    "health/identical_groups": 0.1,
    "health/unscored": 0.0,
    "health/unreadable": 0.05,
    "health/reward_constant": 0.0,
}


def observe(logs: Sequence[Log], patience: int = 1, **options: Any) -> list[health.Finding]:
    """What a monitor raises, log after log, at steps 1, 2, …"""
    monitor = health.HealthMonitor(patience, **options)
    return [found for step, log in enumerate(logs, 1) for found in monitor.observe(step, log)]


def evaluation(exact: float, score: float) -> Log:
    mean = (exact + score) / 2
    return {"eval_environment/exact": exact, "eval_policy/x": score, "eval_overall": mean}


@pytest.mark.parametrize(
    ("rule", "metric", "value", "shown", "bound", "key"),
    [
        ("kl_share_low", "kl/share_of_loss", 0.04, "4%", "10%", "beta"),
        ("kl_dominates", "kl/share_of_loss", 0.94, "94%", "90%", "beta"),
        ("zero_variance_most", "frac_reward_zero_std", 0.95, "95%", "90%", "temperature"),
        ("reward_constant", "health/reward_constant", 1.0, "100%", "50%", "rewards"),
        ("advantage_std", "health/advantage_std", 0.002, "0.002", "0.01", "temperature"),
        ("identical_completions", "health/identical_groups", 0.8, "80%", "75%", "temperature"),
        ("unreadable", "health/unreadable", 0.31, "31%", "20%", "temperature"),
        ("nothing_parses", "eval_policy/format", 0.0, "0%", "1%", "model_name_or_path"),
        ("truncated", "completions/clipped_ratio", 0.5, "50%", "10%", "max_completion_length"),
        ("unscored", "health/unscored", 0.25, "25%", "1%", "rewards"),
        ("engine_failures", "engine/given_up", 3.0, "3", "0", "engine_depth"),
        ("gradient_not_finite", "grad_norm", math.nan, "nan", "finite", "learning_rate"),
        ("gradient_zero", "grad_norm", 0.0, "0", "0", "num_generations"),
        ("judge_constant", "judge/judge_a/std", 1e-4, "0.0001", "0.001", "rewards"),
    ],
)
def test_a_rule_of_one_log_names_number_bound_and_remedy(
    rule: str, metric: str, value: float, shown: str, bound: str, key: str
) -> None:
    findings = observe([HEALTHY, {**HEALTHY, metric: value}, HEALTHY])
    (finding,) = (finding for finding in findings if finding.rule == rule)
    reason, remedy = finding.message.split("; ")
    assert shown in reason and bound in reason.split(shown, 1)[1], finding.message
    assert key in remedy and key in finding.remedy_keys
    assert finding.severity == health.RULES[rule].severity
    assert {one.step for one in findings} == {2}, "a healthy log raises none"
    assert finding.value == pytest.approx(value, nan_ok=True)


def logs_of(key: str, *values: float) -> list[Log]:
    return [{key: value} for value in values]


REWARDS_UP = logs_of("reward", 1.0, 1.1, 1.2, 1.3)
KL = {"kl/share_of_loss": 0.0, "kl/coefficient": 0.05}


def between(environment: float, policy: float, rewards: list[Log]) -> list[Log]:
    """Rewards that are logged between an evaluation with 0.8 and 0.4 and another one."""
    return [evaluation(0.8, 0.4), *rewards, evaluation(environment, policy)]


# Logs of which no rule says anything, and the patience.
QUIET: dict[str, tuple[list[Log], int]] = {
    "trained goes before": ([{"frac_reward_zero_std": 0.95, "zero_variance/trained": 0.1}], 1),
    "a reward failed": ([{"health/unscored": 0.25, "rewards/unscored": 0.25}], 1),
    "no KL term": ([{**HEALTHY, **KL, "kl/coefficient": 0.0}], 1),
    "an adaptive KL term is what its target makes it": ([{**KL, "kl/target": 0.02}] * 2, 1),
    "in the first step the policy is the reference": ([KL], 1),
    "as far from the reference as runs that learn": ([{**HEALTHY, "kl": 0.56}] * 3, 1),
    "a slow fall": (logs_of("mean_entropy", *(0.95**n for n in range(60))), 3),
    "no trend yet": (logs_of("mean_entropy", 1.0, 0.1, 0.1), 1),
    "it rises": (between(0.9, 0.4, REWARDS_UP), 1),
    "within the noise": (between(0.79, 0.39, REWARDS_UP), 1),
    "it stays": (between(0.8, 0.4, REWARDS_UP[::-1]), 1),
}
DOWN = ["by 4%", "from 0.600 at step 1 to 0.560", "3%"]
# Of the logs: the patience, which rule is raised, and what its message says.
RAISED: list[tuple[list[Log], int, str, list[str]]] = [
    ([KL, KL], 1, "kl_share_low", ["0% of the loss", "10%"]),
    ([{"eval_policy/format": 0.0}], 3, "nothing_parses", ["0%", "run rookworld sft first"]),
    (
        logs_of("mean_entropy", *[1.0] * 8, 0.4, 0.3, 0.3),
        3,
        "entropy_falling",
        ["by 70%", "1 to 0.3"],
    ),
    (between(0.76, 0.36, REWARDS_UP), 1, "heldout_down", [*DOWN, "rose by 0.2"]),
    ([evaluation(0.5, 0.4), *between(0.72, 0.38, [])], 1, "heldout_down", ["step 2"]),
    (between(0.76, 0.36, REWARDS_UP[::-1]), 1, "heldout_down", DOWN),
]


def test_no_rule_is_raised_too_soon() -> None:
    assert [name for name, given in QUIET.items() if observe(*given)] == []


@pytest.mark.parametrize(("logs", "patience", "rule", "words"), RAISED)
def test_a_rule_of_many_logs(logs: list[Log], patience: int, rule: str, words: list[str]) -> None:
    (finding,) = observe(logs, patience)
    assert finding.rule == rule and all(word in finding.message for word in words), finding.message


@pytest.mark.parametrize(
    ("share", "reason", "beta"),
    [
        (0.02, "and its term is only 2% of the loss", "if the KL stays high, raise beta"),
        (0.97, "although its term is 97% of the loss", "leave beta as it is until the KL has come"),
        (None, "", "raise beta where its term is a small share of the loss"),
    ],
)
@pytest.mark.parametrize("kl", [5.0, -5.0])  # k1 has a sign
def test_of_a_kl_that_explodes_the_cause_is_said_and_then_what_beta_can_do(
    kl: float, share: float | None, reason: str, beta: str
) -> None:
    far = {**HEALTHY, "kl": kl, "kl/share_of_loss": share}
    (finding,) = observe([HEALTHY, *[far] * 4], patience=3)  # alone: neither share is judged
    assert (finding.rule, finding.step, finding.severity) == ("kl_exploding", 4, "warning")
    said, remedy = finding.message.split("; ", 1)
    assert f"{kl:g} nats a token, beyond 1" in said and said.endswith(reason or "beyond 1")
    places = [remedy.index(word) for word in ("learning_rate", "preflight", beta)]
    assert places == sorted(places), "beta comes last"
    assert finding.remedy_keys == ("learning_rate", "max_grad_norm", "preflight", "beta")


def test_one_log_with_a_large_kl_is_a_spike() -> None:
    far = {**HEALTHY, "kl": 5.0}
    assert observe([far, far, HEALTHY, far, far], patience=3) == []
    # The case may change from log to log: what is wrong is one thing.
    changing = [{**far, "kl/share_of_loss": share} for share in (0.1, 0.5, 0.1)]
    assert [found.rule for found in observe(changing, patience=3)] == ["kl_exploding"]


def test_a_guarded_metric_is_compared_with_the_start() -> None:
    """Not with the best so far, as by the other rules, and at every evaluation at once."""
    logs = [evaluation(*pair) for pair in ((0.5, 0.4), (0.8, 0.3), (0.495, 0.2), (0.48, 0.2))]
    findings = observe(logs, 3, guard={"environment/exact": 0.01, "policy/best_move": 0.5})
    (finding,) = (finding for finding in findings if finding.rule == "guard")
    assert finding.step == 4
    assert "environment/exact has fallen from 0.5 at the start to 0.48" in finding.message


def test_every_rule_is_in_the_glossary_and_its_remedy_names_keys_that_there_are() -> None:
    kinds = (RunArguments, DataArguments, LabelArguments, ModelConfig, RookWorldGRPOConfig)
    known = {item.name for kind in kinds for item in dataclasses.fields(kind)}
    for name, rule in health.RULES.items():
        assert name == rule.name and rule.severity in ("info", "warning", "stop")
        assert len(f"{name} at step 10000000") < 64, "W&B's limit of a title"
        assert rule.bound is None or isinstance(rule.bound, float), "YAML reads 1e-3 as a text"
        assert rule.meaning.endswith(".") and len(rule.meaning) > 30
        assert set(rule.keys) <= known and all(key in rule.remedy for key in rule.keys), name


def test_a_healthy_run_gives_no_more_than_advice() -> None:
    """Numbers of the packaged recipe, seed 0: every tenth step of 150, held-out at every thirtieth."""
    columns = {
        "reward": "1.18 1.16 1.15 1.17 1.18 1.28 1.24 1.24 1.28 1.23 1.30 1.27 1.29 1.30 1.30",
        "mean_entropy": "0.88 0.88 0.98 1.04 1.09 0.84 0.94 1.01 0.89 1.02 0.98 0.93 0.90 0.88 0.90",
        "grad_norm": "0.41 0.41 0.42 0.49 0.38 0.42 0.42 0.59 0.49 0.47 0.70 0.51 0.95 0.48 0.77",
    }
    heldout = [(0.767, 0.238), (0.874, 0.257), (0.868, 0.263), (0.868, 0.273), (0.868, 0.273)]
    logs = [evaluation(0.467, 0.218)]
    for index, numbers in enumerate(zip(*(c.split() for c in columns.values()), strict=True)):
        logs.append(dict(zip(columns, map(float, numbers), strict=True)))
        # It rises to a half or so as the environment task is learnt.
        logs[-1]["frac_reward_zero_std"] = 0.15 + 0.45 * index / 14
        if index % 3 == 2:
            logs.append(evaluation(*heldout[index // 3]))
    findings = observe(logs, patience=3)
    assert {(found.rule, found.severity) for found in findings} <= {("zero_variance", "info")}


BAD = {"completions/clipped_ratio": 0.5}
GOOD = {"completions/clipped_ratio": 0.0}


def test_a_condition_must_hold_for_several_logs_in_a_row() -> None:
    (finding,) = observe([BAD, BAD, GOOD, BAD, BAD, BAD, BAD], patience=3)
    assert finding.step == 6
    # Logs without the metric neither break nor heal; the patience is 3 by default.
    logs = [BAD, {"train_runtime": 3.0}, BAD, {"completions/clipped_ratio": None}, BAD, BAD]
    by_default = health.HealthMonitor()
    assert [len(by_default.observe(*one)) for one in enumerate(logs)] == [0, 0, 0, 0, 1, 0]
    again = [BAD] * 4 + [GOOD] + [BAD] * 2 + [GOOD] * 2 + [BAD] * 4
    steps = [finding.step for finding in observe(again, patience=2)]
    assert steps == [2, 11], "raised again only after it has gone; one good log is no recovery"


def test_of_a_destroyed_model_the_cause_alone_is_said_until_its_effects_outlast_it() -> None:
    zeros = ("grad_norm", "health/advantage_std", "health/advantage_range")
    ones = ("completions/clipped_ratio", "health/unreadable", "health/reward_constant")
    destroyed = {**HEALTHY, **dict.fromkeys(zeros, 0.0), **dict.fromkeys(ones, 1.0)}
    destroyed |= {"mean_entropy": 0.05, "frac_reward_zero_std": 1.0}
    logs = [HEALTHY] * 6 + [destroyed] * 5
    (finding,) = observe(logs, patience=3)
    assert (finding.rule, finding.step) == ("unreadable_most", 9)
    assert "learning_rate" in finding.message and "temperature" not in finding.message
    read_again = {**destroyed, "health/unreadable": 0.0, "mean_entropy": 0.95}
    later = [finding.rule for finding in observe(logs + [read_again] * 4, patience=3)[1:]]
    assert later == ["reward_constant", "truncated"], "which unreadable answers do not explain now"
    # A fifth of unreadable completions does not explain a reward that is constant.
    some = observe([{**destroyed, "health/unreadable": 0.3}])
    assert "reward_constant" in {finding.rule for finding in some}


class Run:
    """A trainer's calls of a callback, by hand; `left` is what an earlier start wrote."""

    def __init__(self, folder: Path, *report_to: str, left: str = "", **state: Any) -> None:
        self.args = TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True)
        self.args.report_to = list(report_to)
        self.state = TrainerState(**{"is_world_process_zero": True, **state})
        self.callback = health.HealthCallback(patience=1)
        self.file = folder / health.HEALTH_FILE
        if left:
            self.file.write_text(left)
        self.callback.on_train_begin(self.args, self.state, TrainerControl())

    def log(self, step: int, logs: Log | None) -> None:
        self.state.global_step = step
        self.callback.on_log(self.args, self.state, TrainerControl(), logs=logs)

    def written(self) -> list[Any]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def test_findings_are_printed_written_down_and_sent_where_a_run_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    alerts: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "run", SimpleNamespace(alert=lambda **alert: alerts.append(alert)))
    run = Run(tmp_path / "run")
    run.log(5, HEALTHY)
    run.log(6, None)
    assert run.file.read_text() == "", "a healthy run leaves an empty file"
    run.log(10, {**HEALTHY, **BAD})
    run.log(11, {"grad_norm": math.nan})
    first, second = run.written()
    message = first.pop("message")
    expected = {"rule": "truncated", "severity": "warning", "step": 10, "value": 0.5, "bound": 0.1}
    assert first == {**expected, "remedy_keys": ["max_completion_length"]}
    assert (second["value"], second["bound"]) == ("nan", None), "what JSON does not have is a text"
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).startswith(f"step 10 warning truncated: {message}")
    assert max(map(len, shown.splitlines())) <= 80
    assert alerts == [], "report_to does not name it"
    Run(tmp_path, "wandb").log(5, BAD)
    (alert,) = alerts
    assert (alert["title"], alert["level"]) == ("truncated at step 5", "WARN")
    monkeypatch.setattr(wandb, "run", None)
    Run(tmp_path, "wandb").log(5, BAD)


def test_a_resumed_run_goes_on_with_its_file(tmp_path: Path) -> None:
    history = [{**evaluation(0.8, 0.4), "step": 0}, {**BAD, "step": 10}]
    # Of a step after the checkpoint, and cut by a kill.
    run = Run(tmp_path, left='{"step": 15}\n{"st', log_history=history)
    run.log(20, {**BAD, **evaluation(0.7, 0.4)})
    rules = [(finding["rule"], finding["step"]) for finding in run.written()]
    # What was said before a resume is not said again; the best before it is not forgotten.
    assert rules == [("truncated", 10), ("heldout_down", 20)]


def test_it_watches_only_while_it_trains_and_on_the_main_process(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.args.fp16 = True
    run.log(1, {"grad_norm": math.inf})  # a scaler may overflow
    run.callback.on_train_end(run.args, run.state, TrainerControl())
    run.log(1, BAD)
    assert run.written() == []
    other = Run(tmp_path / "other", is_world_process_zero=False)
    other.log(1, BAD)
    assert not other.file.exists()


MOVED = "8/8/8/8/8/4k3/8/3K4 b - - 1 1+0.001+0+0"
ANALYSED = " M: e2e4 d2d4             E: 0.3 0.2           B: e2e4"
RECORD = "F: 4k3/8/8/8/8/8/8/4K3 w - - 0 30+e1d1+e1d1+4k3/8/8/8/8/8/8/3K4 b - - 1 30+{}+1+{}+"


@pytest.mark.parametrize("by_token", [False, True])
def test_batch_health_by_hand(by_token: bool) -> None:
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    numbers = health.batch_health(
        rewards=torch.tensor([1.0, 0.5, math.nan, math.nan, 0.0, 0.0, 0.0, 0.0]),
        advantages=advantages.view(8, 1).expand(8, 3) if by_token else advantages,
        completions=[MOVED, MOVED[:20], ANALYSED, ANALYSED, MOVED, ANALYSED, " 0.5", " 0.5"],
        tasks=["environment"] * 2 + ["policy"] * 4 + ["fill_in"] * 2,
        num_generations=2,
        prompts=[""] * 6 + [RECORD.format("[MASK]", "0"), RECORD.format("0.5", "[MASK]")],
    )
    assert numbers == pytest.approx(
        {
            "health/advantage_std": math.sqrt(6 / 23 if by_token else 2 / 7),
            "health/advantage_range": 2.0,
            "health/identical_groups": 2 / 4,
            # The one cut off, the answer to another task, and a number where a flag is hidden.
            "health/unreadable": 3 / 8,
            "health/reward_constant": 0.0,
            "task/environment": 2 / 8,
            "task/policy": 4 / 8,
            "task/fill_in": 2 / 8,
        }
    )


def test_rewards_by_task_leave_out_what_has_none() -> None:
    rewards = torch.tensor([1.0, 0.5, math.nan, math.nan, 0.0, 0.0])
    found = task_rewards(rewards, ["environment", "policy", "policy"])
    assert found == {"reward/environment": 0.75, "reward/policy": 0.0}
