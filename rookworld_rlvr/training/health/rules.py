"""The rules of the health monitor: what each reads of a run's logs, its bound, meaning and remedy.

A reading takes the history of the logs and a bound. It returns None if it does not apply. No torch here,
and no I/O but for reading the packaged list of rules. `monitor` applies them.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from ...common.files import read_asset
from ...common.settings import Checked, setting

Severity = Literal["info", "warning", "stop"]
Points = list[tuple[int, float]]  # step and value, oldest first

_RECENT = 10  # logs over which trends are seen
_FEWEST = 5  # logs needed before the latest one for a trend of the entropy
_KEPT = ("reward", "entropy")  # and held-out metrics
_ROUNDING = 1e-9  # of a difference of shares


@dataclass
class HealthArguments(Checked):
    """Whether a run is watched for problems; see `RULES`."""

    health: bool = setting(True, "Watch the run for problems, and report them with a remedy.")


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
        self.series: dict[str, Points] = {}

    def update(
        self,
        step: int,
        logs: Mapping[str, Any],
        details: Mapping[str, str] | None = None,
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
    *before, now = history.values("entropy")[-_RECENT - 1 :] or [math.nan]
    if len(before) < _FEWEST or (usual := statistics.median(before)) <= 0:
        return None
    fall = 1 - now / usual
    return Reading(fall, fall > bound, f"from {usual:.3g} to {now:.3g} nats a token")


# --------------------------------------------------------------------------------------------------
# Held-out rows
# --------------------------------------------------------------------------------------------------
def _overall_fall(history: History) -> tuple[float, float, str] | None:
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
    return best - now, trend, f"from {best:.3f} at step {step} to {now:.3f}"


def heldout_down(history: History, bound: float) -> Reading | None:
    """A fall while the reward has not risen; `reward_up_heldout_down` covers the other case."""
    if (found := _overall_fall(history)) is None:
        return None
    fall, trend, detail = found
    return Reading(fall, fall > bound and trend <= 0, detail)


def reward_up_heldout_down(history: History, bound: float) -> Reading | None:
    if (found := _overall_fall(history)) is None:
        return None
    fall, trend, detail = found
    detail = f"{detail} while the training reward rose by {trend:.3g}"
    return Reading(fall, fall > bound and trend > 0, detail)


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
        causes: The rules that explain it if they are broken as well; a diagnosis names these first.
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
        return f"{said}; {self.remedy}"

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
