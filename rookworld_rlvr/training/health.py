"""The health monitor: watches a run's logs, says what is wrong and what to change.

What a rule reads, its bound, meaning and remedy are in ``assets/health_rules.yaml``. A reading takes the
history of the logs and a bound, and returns None if it does not apply.
"""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm
from transformers import TrainerCallback

from ..common.files import read_asset, replace_text
from ..common.terminal import wrapped
from ..tasks.registry import TASKS

HEALTH_FILE = "health.jsonl"
PATIENCE = 3  # logs

Severity = Literal["info", "warning", "stop"]
_LEVELS: Mapping[Severity, str] = {"info": "INFO", "warning": "WARN", "stop": "ERROR"}

_RECENT = 10  # logs over which trends are seen
_FEWEST = 5  # logs needed before the latest one for a trend of the entropy
_KEPT = ("reward", "mean_entropy")  # and held-out metrics
_ROUNDING = 1e-9  # of a difference of shares


# --------------------------------------------------------------------------------------------------
# The history
# --------------------------------------------------------------------------------------------------
class History:
    """The numbers of the latest log, and the series needed for trends.

    Attributes:
        step: The optimiser step of the latest log.
        now: Its numbers by name, nan and infinities included; None and other values are left out.
        details: Texts of the latest log by name, which describe its numbers of the same name.
        series: ``(step, value)`` pairs by name, finite values only, oldest first.

    Args:
        guard: The most that held-out metrics may lose against the start, by metric.
    """

    def __init__(self, guard: Mapping[str, float] | None = None) -> None:
        self.guard = guard or {}
        self.step = 0
        self.now: dict[str, float] = {}
        self.details: Mapping[str, str] = {}
        self.series: dict[str, list[tuple[int, float]]] = {}

    def update(
        self, step: int, logs: Mapping[str, Any], details: Mapping[str, str] | None = None
    ) -> None:
        """Add one log."""
        self.step = step
        self.details = details or {}
        self.now = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, Real) and not isinstance(value, bool)
        }
        for name, value in self.now.items():
            if math.isfinite(value) and (name in _KEPT or name.startswith("eval_")):
                self.series.setdefault(name, []).append((step, value))

    def get(self, *names: str) -> float | None:
        """The latest log's number for the first of the names that has a finite one."""
        found = (self.now[name] for name in names if math.isfinite(self.now.get(name, math.nan)))
        return next(found, None)

    def values(self, name: str) -> list[float]:
        """A series up to the latest log; empty if that log has no number for it."""
        return [value for _, value in self.series[name]] if self.get(name) is not None else []


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule reads from a log."""

    value: float  # in the unit of the rule's bound
    broken: bool
    detail: str = ""  # fills ``{detail}`` in the rule's `says`
    remedy: str = ""  # what to do in this case; empty takes the rule's


Measure = Callable[[History, float], Reading | None]


# --------------------------------------------------------------------------------------------------
# One log, and trends
# --------------------------------------------------------------------------------------------------
def compared(is_broken: Callable[[float, float], bool], metrics: Sequence[str]) -> Measure:
    """A reading that compares the first of the metrics that is logged with the bound."""

    def measure(history: History, bound: float) -> Reading | None:
        value = history.get(*metrics)
        detail = next(filter(None, map(history.details.get, metrics)), "")
        return None if value is None else Reading(value, is_broken(value, bound), detail)

    return measure


def kl_share_low(history: History, bound: float) -> Reading | None:
    # With a coefficient of 0 there is no KL term on purpose, and an adaptive one is what its target
    # makes it. In the first step the policy is the reference, so the share is 0 in any case.
    is_set = history.get("kl/target") is None and history.get("kl/coefficient") != 0
    if not is_set or history.step <= 1:
        return None
    return compared(operator.lt, ["kl/share_of_loss"])(history, bound)


_AGAINST_A_LARGE_KL = "lower learning_rate or max_grad_norm, and check that the preflight passes; "


def kl_exploding(history: History, bound: float) -> Reading | None:
    """The KL, and what its share of the loss says of `beta`: only a small one is a reason to raise."""
    kl = history.get("diagnosis/kl", "kl")
    if kl is None:
        return None
    share = history.get("diagnosis/kl_share_of_loss", "kl/share_of_loss")
    detail = remedy = ""
    if share is not None and share < (RULES["kl_share_high"].bound or 0.0):
        detail = f", and its term is only {100 * share:.3g}% of the loss"
        remedy = _AGAINST_A_LARGE_KL + "if the KL stays high, raise beta"
    elif share is not None:
        detail = f", although its term is {100 * share:.3g}% of the loss"
        remedy = _AGAINST_A_LARGE_KL + "leave beta as it is until the KL has come down"
    return Reading(kl, abs(kl) > bound, detail, remedy)  # with k1 it may be below 0


def nothing_parses(history: History, bound: float) -> Reading | None:
    """The task with the largest share of held-out answers that can be read."""
    shares = [
        value
        for name, value in history.now.items()
        if name.startswith("eval_")
        and name.endswith("/format")
        and math.isfinite(value)
        and not name.startswith("eval_rewards/")  # of the user's own
    ]
    return Reading(max(shares), max(shares) <= bound) if shares else None


def unscored(history: History, bound: float) -> Reading | None:
    """Completions without a reward, but for those that a reward failed on, which training reports."""
    share = history.get("health/unscored")
    if share is None:
        return None
    share -= history.get("rewards/unscored") or 0.0
    return Reading(share, share > bound)


def gradient_not_finite(history: History, bound: float) -> Reading | None:
    norm = history.now.get("grad_norm")
    return None if norm is None else Reading(norm, not math.isfinite(norm))


def entropy_falling(history: History, bound: float) -> Reading | None:
    *before, now = history.values("mean_entropy")[-_RECENT - 1 :] or [math.nan]
    if len(before) < _FEWEST or (usual := statistics.median(before)) <= 0:
        return None
    fall = 1 - now / usual
    return Reading(fall, fall > bound, f"from {usual:.3g} to {now:.3g} nats a token")


# --------------------------------------------------------------------------------------------------
# Held-out rows
# --------------------------------------------------------------------------------------------------
def heldout_down(history: History, bound: float) -> Reading | None:
    """How far the overall accuracy is below its best before, and the reward's trend since then.

    The trend is the mean of the later half of the logs minus that of the earlier half.
    """
    if history.get("eval_overall") is None or len(history.series["eval_overall"]) < 2:
        return None
    *before, (_, now) = history.series["eval_overall"]
    best, step = max((value, step) for step, value in before)
    rewards = [value for at, value in history.series.get("reward", ()) if at > step]
    half = len(rewards) // 2
    trend = statistics.fmean(rewards[half:]) - statistics.fmean(rewards[:half]) if half else 0.0
    detail = f"from {best:.3f} at step {step} to {now:.3f}"
    if trend > 0:
        detail += f" while the training reward rose by {trend:.3g}"
    return Reading(best - now, best - now > bound, detail)


def losses(
    most: Mapping[str, float], start: Mapping[str, float], now: Mapping[str, float]
) -> dict[str, float]:
    """What a run has lost of the metrics of its guard that have lost more than they may.

    Args:
        most: The largest loss by metric.
        start: Values before training, by logged name.
        now: Values of an evaluation, by logged name.

    >>> losses(
    ...     {"environment/exact": 0.25},
    ...     {"eval_environment/exact": 0.75},
    ...     {"eval_environment/exact": 0},
    ... )
    {'environment/exact': 0.75}
    """
    found = {
        metric: start[f"eval_{metric}"] - now[f"eval_{metric}"]
        for metric in most
        if f"eval_{metric}" in start and f"eval_{metric}" in now
    }
    return {metric: loss for metric, loss in found.items() if loss > most[metric] + _ROUNDING}


def guard(history: History, bound: float) -> Reading | None:
    """The metrics of the run's guard that have lost more than they may."""
    if not any(f"eval_{metric}" in history.now for metric in history.guard):
        return None
    start = {name: points[0][1] for name, points in history.series.items() if points}
    lost = losses(history.guard, start, history.now)
    detail = " and ".join(
        f"{metric} has fallen from {start[f'eval_{metric}']:.4g} at the start to "
        f"{history.now[f'eval_{metric}']:.4g}, by more than {history.guard[metric]:g}"
        for metric in lost
    )
    return Reading(max(lost.values(), default=0.0), bool(lost), detail)


# --------------------------------------------------------------------------------------------------
# Judges
# --------------------------------------------------------------------------------------------------
def judge_constant(history: History, bound: float) -> Reading | None:
    """The judge with the smallest spread of its rewards, or of its scores if no scale is logged."""
    judges = {name.split("/")[1] for name in history.now if name.startswith("judge/")}
    found = [
        Reading(spread, spread <= bound, name)
        for name in sorted(judges)
        if (spread := history.get(f"judge/{name}/reward_std", f"judge/{name}/std")) is not None
    ]
    return min(found, key=lambda reading: reading.value, default=None)


# --------------------------------------------------------------------------------------------------
# The rules
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition of a run, and what to do about it.

    Args:
        name: Its key in ``health.jsonl`` and on the dashboards.
        severity: How bad it is; only a diagnosis has rules of `stop`.
        bound: None if the rule has no number.
        meaning: One sentence for the documentation.
        says: What is wrong, with the placeholders ``{value}``, ``{bound}`` and ``{detail}``.
        remedy: What to change, naming the recipe's keys.
        keys: Those keys, in the order of the remedies.
        measure: Compares the history with a bound; gives None if the rule does not apply.
        share: Whether value and bound are shares in [0, 1], shown as percentages.
        patient: Whether it must be broken for several logs before a finding is raised.
        causes: The rules that explain it: while one of them is broken, only that one is reported.
    """

    name: str
    severity: Severity
    bound: float | None = None
    meaning: str
    says: str
    remedy: str
    keys: tuple[str, ...]
    measure: Measure = field(repr=False)
    share: bool = True
    patient: bool = True
    causes: tuple[str, ...] = ()

    def message(self, reading: Reading, bound: float) -> str:
        """One sentence that names the number, the bound and the remedy."""
        said = self.says.format(
            value=self._shown(reading.value), bound=self._shown(bound), detail=reading.detail
        )
        return f"{said}; {reading.remedy or self.remedy}"

    def _shown(self, value: float) -> str:
        return f"{100 * value:.3g}%" if self.share else f"{value:.4g}"


_COMPARISONS = {"over": operator.gt, "under": operator.lt, "not_over": operator.le}


def _rule(name: str, keys: Sequence[str], **fields: Any) -> Rule:
    metrics = [
        compared(is_broken, fields.pop(word))
        for word, is_broken in _COMPARISONS.items()
        if word in fields
    ]
    (measure,) = metrics or [globals()[name]]
    causes = tuple(fields.pop("causes", ()))
    return Rule(name=name, keys=tuple(keys), measure=measure, causes=causes, **fields)


RULES: Mapping[str, Rule] = {
    name: _rule(name, **fields) for name, fields in read_asset("health_rules.yaml").items()
}
"""Every rule of ``assets/health_rules.yaml`` by name; `Rule.meaning` documents it."""


# --------------------------------------------------------------------------------------------------
# Numbers of a batch
# --------------------------------------------------------------------------------------------------
def batch_health(
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    completions: Sequence[str],
    tasks: Sequence[str],
    num_generations: int,
    prompts: Sequence[str],
) -> dict[str, float]:
    """The numbers of one generation batch that TRL does not log: for the rules, and shares of tasks.

    Args:
        rewards: ``(N,)``, nan for a completion without a reward; grouped by prompt.
        advantages: ``(N,)``, or ``(N, T)`` by token.
        completions: The `N` texts, as the policy wrote them.
        tasks: The task of each completion; what is of none of ours is not judged for its form.
        num_generations: Completions per prompt.
        prompts: The prompt of each completion: a fill-in answer's form depends on what is hidden.

    >>> numbers = batch_health(
    ...     torch.tensor([1.0, 0.0, 1.0, 1.0]),
    ...     torch.tensor([0.7, -0.7, 0.0, 0.0]),
    ...     ["a", "b", "c", "c"],
    ...     ["policy"] * 4,
    ...     num_generations=2,
    ...     prompts=["P: "] * 4,
    ... )
    >>> numbers["health/identical_groups"], numbers["task/policy"]
    (0.5, 1.0)
    """
    count = len(completions)
    rewards = rewards.detach().double()
    scored = rewards[~rewards.isnan()]
    flat = advantages.detach().double().flatten()
    answers = list(zip(tasks, completions, prompts, strict=True))
    read = {
        (task, text, prompt): task not in TASKS or TASKS[task].is_readable(prompt, text)
        for task, text, prompt in set(answers)
    }
    firsts = range(0, count, num_generations)
    groups = [set(completions[first : first + num_generations]) for first in firsts]
    numbers = {
        "health/advantage_std": flat.std().item() if flat.numel() > 1 else 0.0,
        "health/advantage_range": (flat.max() - flat.min()).item(),
        "health/identical_groups": sum(len(texts) == 1 for texts in groups) / len(groups),
        "health/unreadable": sum(not read[answer] for answer in answers) / count,
        "health/reward_constant": float(len(scored) > 1 and bool(scored.min() == scored.max())),
    }
    # A log is the mean over its batches, so those without a task count.
    return numbers | {f"task/{task}": tasks.count(task) / count for task in TASKS}


# --------------------------------------------------------------------------------------------------
# The monitor
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a run has broken."""

    rule: str
    severity: Severity
    step: int  # optimiser steps
    value: float  # what was read, in the rule's unit
    bound: float | None  # in the same unit; None if the rule has no number
    message: str  # one sentence with number, bound and remedy
    remedy_keys: tuple[str, ...]  # keys of the recipe to change, in the order of the remedies

    def to_json(self) -> str:
        """One line of JSON; a value that is not finite is written as text, for want of a JSON number."""
        record = asdict(self)
        if not math.isfinite(self.value):
            record["value"] = str(self.value)
        return json.dumps(record, allow_nan=False)


class HealthMonitor:
    """Judges logs by `RULES`, without I/O or randomness: the same logs give the same findings.

    A finding is raised once. It is raised again only after the rule has held for `patience` readings.

    Args:
        patience: For how many logs in a row a rule must be broken before it is reported, unless one log
            is proof enough; and for how many it must hold before it can be reported again.
        guard: The most that held-out metrics may lose against the start, by metric.
        consequences: Whether findings that others explain (`Rule.causes`) are raised, too. Otherwise
            they wait until those rules hold.
    """

    def __init__(
        self,
        patience: int = PATIENCE,
        guard: Mapping[str, float] | None = None,
        consequences: bool = False,
    ) -> None:
        self.patience, self.consequences = patience, consequences
        self.history = History(guard)
        # By rule, how many readings in a row broke it, and how many did not.
        self._broken, self._sound = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0)
        self._raised: set[str] = set()

    def observe(
        self, step: int, logs: Mapping[str, Any], details: Mapping[str, str] | None = None
    ) -> list[Finding]:
        """Judge one log, of training or of a held-out evaluation.

        Args:
            step: The optimiser step of the log.
            logs: Metrics by name. A rule does not apply if its metrics are missing, None or nan.
            details: What findings say of some metrics beside their number, by metric.

        Returns:
            The findings that are raised now.
        """
        self.history.update(step, logs, details)
        limits = {name: math.inf if r.bound is None else r.bound for name, r in RULES.items()}
        readings = {name: rule.measure(self.history, limits[name]) for name, rule in RULES.items()}
        broken = {name for name, reading in readings.items() if reading and reading.broken}
        broken |= self._raised
        findings = []
        for name, rule in RULES.items():
            reading = readings[name]
            if reading and self._is_due(rule, reading, bool(broken.intersection(rule.causes))):
                said = reading.value, rule.bound, rule.message(reading, limits[name])
                findings.append(Finding(name, rule.severity, step, *said, rule.keys))
        return findings

    def _is_due(self, rule: Rule, reading: Reading, is_explained: bool) -> bool:
        name = rule.name
        if not reading.broken:
            self._broken[name], self._sound[name] = 0, self._sound[name] + 1
            if self._sound[name] >= self.patience:
                self._raised.discard(name)
            return False
        self._broken[name], self._sound[name] = self._broken[name] + 1, 0
        is_early = self._broken[name] < (self.patience if rule.patient else 1)
        if name in self._raised or is_early or (is_explained and not self.consequences):
            return False
        self._raised.add(name)
        return True


# --------------------------------------------------------------------------------------------------
# The callback
# --------------------------------------------------------------------------------------------------
class HealthCallback(TrainerCallback):
    """Gives a trainer's logs to a monitor during training, and reports its findings.

    Findings are printed, appended to ``health.jsonl`` in the run's folder and sent as alerts to the
    dashboards. Held-out metrics come through `on_log` too.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.monitor: HealthMonitor | None = None  # while the run trains, on the main process

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.monitor = HealthMonitor(self.patience, getattr(args, "guard", None))
        found = [  # of a resumed run, up to the step from which it goes on
            finding
            for logs in state.log_history
            for finding in self._judge(int(logs["step"]), logs, args)
        ]
        path = Path(args.output_dir) / HEALTH_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(f"{finding.to_json()}\n" for finding in found))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self.monitor is not None and logs:
            _report(self._judge(state.global_step, logs, args), args)

    def _judge(self, step: int, logs: Mapping[str, Any], args: Any) -> list[Finding]:
        """What a log shows. In fp16 the gradient scaler skips a step if the gradient overflows."""
        assert self.monitor is not None
        if args.fp16 and not math.isfinite(logs.get("grad_norm") or 0.0):
            logs = {**logs, "grad_norm": None}
        return self.monitor.observe(step, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.monitor = None  # the next evaluation may be of another checkpoint


def _report(findings: Sequence[Finding], args: Any) -> None:
    """Print findings, write them to the file and send alerts."""
    with (Path(args.output_dir) / HEALTH_FILE).open("a", encoding="utf-8") as file:
        for finding in findings:
            line = f"step {finding.step:>5}  {finding.severity:<7}  {finding.rule}: "
            tqdm.write(wrapped(line + finding.message))  # does not break a progress bar
            file.write(finding.to_json() + "\n")
    if not (findings and args.report_to):
        return
    import wandb  # takes a second

    for finding in findings if wandb.run is not None else ():
        title = f"{finding.rule} at step {finding.step}"
        wandb.run.alert(title=title, text=finding.message, level=_LEVELS[finding.severity])  # type: ignore[union-attr]
