"""The rules of the health monitor: each one's severity, bound, meaning and remedy.

Pure: no torch, no I/O. `monitor` feeds the rules and says what they find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ...common.settings import Checked, setting
from . import readings
from .readings import Measure, Reading

Severity = Literal["info", "warning", "stop"]


OFF = "off"


Loudness = Literal["off", "info", "warning", "stop", False]  # YAML reads a bare `off` as false


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition of a run, and what to do about it.

    Args:
        name: Key of `health_severity`, `health_bounds` and the dashboards.
        severity: Its default.
        bound: Its default; None where there is no number to set.
        meaning: One sentence for the glossary.
        says: What is the matter, with ``{value}``, ``{bound}`` and ``{detail}``.
        remedy: What to change, by its YAML keys.
        keys: Those keys, the first remedy first.
        measure: Reads the history against a bound; None where the rule does not apply.
        share: Whether value and bound are shares, in [0, 1], that are shown as percentages.
        patient: Whether it must hold for `health_patience` logs before it is raised.
        saves: Whether a stop asks for a checkpoint.
    """

    name: str
    severity: Severity
    bound: float | None
    meaning: str
    says: str
    remedy: str
    keys: tuple[str, ...]
    measure: Measure = field(repr=False)
    share: bool = True
    patient: bool = True
    saves: bool = True

    def message(self, reading: Reading, bound: float) -> str:
        """One sentence that names the number, the bound and the remedy."""
        said = self.says.format(
            value=self._shown(reading.value), bound=self._shown(bound), detail=reading.detail
        )
        return f"{said}; {self.remedy}"

    def _shown(self, value: float) -> str:
        return f"{100 * value:.3g}%" if self.share else f"{value:.4g}"


# --------------------------------------------------------------------------------------------------
# The rules
# --------------------------------------------------------------------------------------------------
def _by_name(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    return {rule.name: rule for rule in rules}


RULES: Mapping[str, Rule] = _by_name(
    (
        # 10% to 30% is what the predecessors aimed at: a heuristic, so no more than advice.
        Rule(
            "kl_share_low",
            "info",
            0.10,
            "The KL term is so small a share of the loss that it hardly holds the policy.",
            "the KL term is {value} of the loss, under {bound}",
            "raise beta, or hold a KL with kl_control: adaptive and kl_target",
            ("beta", "kl_control", "kl_target"),
            readings.kl_share_low,
        ),
        Rule(
            "kl_share_high",
            "info",
            0.30,
            "The KL term is so large a share of the loss that it slows what the rewards ask for.",
            "the KL term is {value} of the loss, over {bound}",
            "lower beta, or hold a KL with kl_control: adaptive and kl_target",
            ("beta", "kl_control", "kl_target"),
            readings.over("kl/share_of_loss"),
        ),
        # The predecessors' failed runs stood at 94% to 100%.
        Rule(
            "kl_dominates",
            "warning",
            0.90,
            "The KL term is nearly all of the loss: the rewards hardly count.",
            "the KL term is {value} of the loss, over {bound}",
            "lower beta or learning_rate, and check that preflight passes",
            ("beta", "learning_rate", "preflight"),
            readings.over("kl/share_of_loss"),
        ),
        # The packaged recipe rises to about a half as it learns; that alone is no fault.
        Rule(
            "zero_variance",
            "info",
            0.50,
            "Share of the groups whose completions all have one reward, so that they teach nothing.",
            "{value} of the groups have no spread of rewards, over {bound}",
            "take zero_variance: resample or prompt_sampling: by_difficulty, or raise temperature",
            ("zero_variance", "prompt_sampling", "temperature"),
            readings.over("zero_variance/trained", "frac_reward_zero_std"),
        ),
        Rule(
            "zero_variance_most",
            "warning",
            0.90,
            "Nearly all groups have no spread of rewards: the run has stopped learning.",
            "{value} of the groups have no spread of rewards, over {bound}",
            "raise temperature or num_generations, add a graded reward under rewards, or end the run",
            ("temperature", "num_generations", "rewards"),
            readings.over("zero_variance/trained", "frac_reward_zero_std"),
        ),
        # Half of the batches of a log: one such batch may be chance, most of them are not.
        Rule(
            "reward_constant",
            "warning",
            0.50,
            "Share of the batches in which every completion of every prompt has the same reward.",
            "the reward is the same for all completions, of every prompt, in {value} of the batches, "
            "over {bound}",
            "check rewards and tasks with --dry_run, or raise temperature",
            ("rewards", "tasks", "temperature"),
            readings.over("health/reward_constant"),
        ),
        # 0.01 for both is the predecessors' rule; advantages scaled by group have about 1.
        Rule(
            "advantage_std",
            "warning",
            0.01,
            "The deviation of a batch's advantages is too small for the policy to move.",
            "the advantages' deviation is {value}, under {bound}",
            "raise temperature or num_generations, or set scale_rewards: group",
            ("temperature", "num_generations", "scale_rewards"),
            readings.under("health/advantage_std"),
            share=False,
        ),
        Rule(
            "advantage_range",
            "warning",
            0.01,
            "The largest and the smallest advantage of a batch are too close for the policy to move.",
            "the advantages' range is {value}, under {bound}",
            "raise temperature or num_generations, or set scale_rewards: group",
            ("temperature", "num_generations", "scale_rewards"),
            readings.under("health/advantage_range"),
            share=False,
        ),
        # The packaged recipe has up to 0.25; at three in four, a quarter of the work teaches.
        Rule(
            "identical_completions",
            "warning",
            0.75,
            "Share of the groups whose completions are one and the same text.",
            "in {value} of the groups all completions are the same text, over {bound}",
            "raise temperature or top_p, or train on harder rows",
            ("temperature", "top_p"),
            readings.over("health/identical_groups"),
        ),
        # The packaged model writes up to 0.10 when sampled at temperature 1 (three runs).
        Rule(
            "unreadable",
            "warning",
            0.20,
            "Share of the completions that the grammar of their task cannot read.",
            "{value} of the completions cannot be read, over {bound}",
            "lower temperature or top_p, raise max_completion_length, or fine-tune on the format first",
            ("temperature", "top_p", "max_completion_length"),
            readings.over("health/unreadable"),
        ),
        # Every one of them scores 0 for its format, however good it is: a tenth of all is noise.
        Rule(
            "truncated",
            "warning",
            0.10,
            "Share of the completions that were cut off at the length limit.",
            "{value} of the completions were cut off, over {bound}",
            "raise max_completion_length (a GPT-2-tokenised answer takes up to 144 tokens)",
            ("max_completion_length",),
            readings.over("completions/clipped_ratio"),
        ),
        # Truth is there for all rows but those that an engine gave up: one in a hundred, at most.
        Rule(
            "unscored",
            "warning",
            0.01,
            "Share of the completions that no reward could judge.",
            "{value} of the completions have no reward, over {bound}",
            "give a reward for each of tasks under rewards, or labels: stored_or_engine",
            ("tasks", "rewards", "labels"),
            readings.over("health/unscored"),
            patient=False,
        ),
        Rule(
            "reward_failures",
            "warning",
            0.01,
            "Share of a reward's own rows that it could not judge for want of truth.",
            "the reward {detail} has no truth for {value} of its rows, over {bound}",
            "set labels: stored_or_engine, or raise engine_timeout",
            ("labels", "engine_timeout"),
            readings.without_truth,
            patient=False,
        ),
        Rule(
            "engine_failures",
            "warning",
            0.0,
            "Positions that the engine was asked for twice and given up.",
            "the engine gave up {value} positions a process, over {bound}",
            "raise engine_timeout, lower engine_depth, or check engine_path",
            ("engine_timeout", "engine_depth", "engine_path"),
            readings.over("engine/given_up"),
            share=False,
            patient=False,
        ),
        # Each costs seconds to minutes, and the next batch may be of yet another shape.
        Rule(
            "recompiling",
            "warning",
            0.0,
            "Graphs that torch_compile compiled after its warm-up, since the last log.",
            "{value} graphs were compiled after the warm-up, over {bound}",
            "leave out shape_buckets: [], so that lengths are padded to a few, or torch_compile",
            ("shape_buckets", "torch_compile"),
            readings.over("compile/recompilations"),
            share=False,
            patient=False,
        ),
        # The update after it writes nan into every weight; a checkpoint of them is worse than none.
        Rule(
            "gradient_not_finite",
            "stop",
            None,
            "The gradient norm is nan or infinite, which destroys the weights.",
            "the gradient norm is {value}, not finite",
            "resume from an earlier checkpoint by resume_from_checkpoint, with a lower learning_rate",
            ("resume_from_checkpoint", "learning_rate"),
            readings.gradient_not_finite,
            share=False,
            patient=False,
            saves=False,
        ),
        # Timings of a few steps differ by some percent; below 1 there is nothing to gain.
        Rule(
            "compiling_slower",
            "info",
            1.0,
            "Compiled updates are no faster than plain ones.",
            "a compiled update has {value} of the speed of a plain one, under {bound}",
            "leave torch_compile out",
            ("torch_compile",),
            readings.under("compile/speedup"),
            share=False,
            patient=False,
        ),
        # Without a KL term a batch without spread gives exactly 0 now and then; not for long.
        Rule(
            "gradient_zero",
            "warning",
            0.0,
            "The gradient norm is 0: the weights do not move.",
            "the gradient norm is {value}, not over {bound}",
            "raise temperature or num_generations, and check rewards with --dry_run",
            ("temperature", "num_generations", "rewards"),
            readings.gradient_zero,
            share=False,
        ),
        # "Most", in the word's own sense. Clipping as such is common practice, hence advice.
        Rule(
            "gradient_clipped",
            "info",
            0.50,
            "Share of the last ten logs whose gradient was clipped, so that the limit sets the step.",
            "{detail}, {value}, over {bound}",
            "lower learning_rate, or raise max_grad_norm",
            ("learning_rate", "max_grad_norm"),
            readings.gradient_clipped,
        ),
        # Logs of the packaged recipe lie within 30% of the ten before (three runs).
        Rule(
            "entropy_falling",
            "warning",
            0.50,
            "How far the entropy has fallen below its median of the ten logs before.",
            "the entropy has fallen by {value} within ten logs, {detail}, over {bound}",
            "lower learning_rate, or raise temperature or entropy_coef",
            ("learning_rate", "temperature", "entropy_coef"),
            readings.entropy_falling,
        ),
        # Two standard errors of 400 held-out rows, about. The predecessors' runs lost 1.6 on average.
        Rule(
            "reward_up_heldout_down",
            "warning",
            0.03,
            "How far held-out accuracy has fallen below its best while the training reward rose.",
            "held-out overall accuracy has fallen by {value}, {detail}, over {bound}",
            "lower learning_rate, raise beta, or reconsider rewards",
            ("learning_rate", "beta", "rewards"),
            readings.reward_up_heldout_down,
            patient=False,
        ),
        Rule(
            "heldout_down",
            "warning",
            0.03,
            "How far held-out accuracy has fallen below its best and the reward did not rise.",
            "held-out overall accuracy has fallen by {value}, {detail}, over {bound}",
            "lower learning_rate, or raise beta",
            ("learning_rate", "beta"),
            readings.heldout_down,
            patient=False,
        ),
        # Of 200 rows, a difference of 5 points is about two standard errors for an accuracy near 90%.
        Rule(
            "forgetting",
            "warning",
            0.05,
            "How far one task has fallen below its best on held-out rows while another held its own.",
            "on held-out rows one task has fallen by {value}, {detail}, over {bound}",
            "change environment_share towards the task that falls, lower learning_rate, or raise beta",
            ("environment_share", "learning_rate", "beta"),
            readings.forgetting,
            patient=False,
        ),
        # Of 500 items a share of one half falls by 13% in two standard errors of a difference, about.
        Rule(
            "suite_down",
            "warning",
            0.25,
            "How far a suite's headline metric has fallen below its best, as a share of it.",
            "a suite's headline has fallen by {value}, {detail}, over {bound}",
            "lower learning_rate, raise beta, or reconsider rewards",
            ("learning_rate", "beta", "rewards"),
            readings.suite_down,
            patient=False,
        ),
        # Rewards of a few prompts a batch are noisy even as a mean of ten logs, hence advice.
        Rule(
            "task_reward_down",
            "info",
            0.25,
            "How far one task's training reward has fallen below its best while another's has not.",
            "the training reward of {detail} has fallen by {value}, over {bound}, while another task's "
            "has not",
            "change environment_share towards the task that falls, or lower learning_rate",
            ("environment_share", "learning_rate"),
            readings.task_reward_down,
        ),
        # Chance does not give a batch of different texts one score, so the first log will do.
        Rule(
            "judge_constant",
            "warning",
            1e-3,
            "The deviation of a judge's rewards in a batch is so small that they teach nothing.",
            "the judge {detail} gives all completions of a batch nearly the same reward, with a "
            "deviation of {value}, not over {bound}",
            "train it on such answers by recipes/train_judge.py, give it scale: raw under rewards, or "
            "put a verifiable reward beside it",
            ("rewards",),
            readings.judge_constant,
            share=False,
            patient=False,
        ),
        # Five logs of the packaged recipe hold 1,600 completions of a task: a share of them errs by
        # 0.03, about, but what is harder by chance does not raise the score.
        Rule(
            "judge_against_truth",
            "warning",
            0.05,
            "How far the truth has fallen while a judge's score of a task rose: a blind spot is found.",
            "{detail} has fallen by {value}, over {bound}: the policy has found the judge's blind spot",
            "give verifiable rewards more weight under rewards, raise beta, or train the judge on what "
            "the policy writes now",
            ("rewards", "beta"),
            readings.judge_against_truth,
            patient=False,
        ),
    )
)
"""Every rule by name. Names are dashboard keys; `Rule.meaning` is their glossary."""


# --------------------------------------------------------------------------------------------------
# Arguments
# --------------------------------------------------------------------------------------------------
@dataclass
class HealthArguments(Checked):
    """What the health monitor looks for, and how loud it is; see `RULES`."""

    health: bool = setting(True, "Whether to watch the run at all.")
    health_severity: dict[str, Loudness] | str | None = setting(
        None,
        "{rule: off, info, warning or stop}, in place of a rule's own severity.",
        among=RULES,
        of="rule",
    )
    health_bounds: dict[str, float] | str | None = setting(
        None,
        "{rule: number}, in place of a rule's own bound; shares are in [0, 1].",
        among=RULES,
        of="rule",
    )
    health_patience: int = setting(
        3,
        "Logs in a row that a condition must hold for before it is raised, where chance could make it "
        "hold once; and that it must be gone for before it can be raised again.",
        least=1,
    )

    def severity(self, rule: str) -> Severity | None:
        """How loud a rule is; None where it is off."""
        severity = _given(self.health_severity).get(rule, RULES[rule].severity)
        return None if severity in (OFF, False) else cast(Severity, severity)

    def bound(self, rule: str) -> float | None:
        """A rule's bound; None where it has no number."""
        bound = _given(self.health_bounds).get(rule, RULES[rule].bound)
        return None if bound is None else float(bound)

    def faults(self) -> list[str]:
        """Bounds that their rules do not take, one sentence each."""
        faults = []
        for name, value in _given(self.health_bounds).items():
            if name not in RULES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            rule = RULES[name]
            if rule.bound is None:
                faults.append(f"health_bounds: {name} has no bound to set; see health_severity")
            elif not math.isfinite(value) or (rule.share and not 0 <= value <= 1):
                kind = "share; give a number from 0 to 1" if rule.share else "finite number"
                faults.append(f"health_bounds: {value!r} of {name} is no {kind}")
        return faults


def _given(rules: Any) -> Mapping[str, Any]:
    return rules if isinstance(rules, Mapping) else {}
