"""What the health monitor's rules read: the logs of a run as a history, and readings of it.

Every reading takes the history and a bound, and returns None where it does not apply. Pure: no torch,
no I/O.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...evaluation.registry import SUITE_HEADLINES
from ...tasks.metrics import headlines
from ...tasks.registry import TASKS

_RECENT = 10  # logs that a trend is seen over


_FEWEST = 5  # logs before the latest, below which entropy has no trend


_KEPT = ("reward", "entropy", "grad_norm")  # and those of _KEPT_PREFIXES


_KEPT_PREFIXES = ("reward/", "eval_", "judge/")


# --------------------------------------------------------------------------------------------------
# The history
# --------------------------------------------------------------------------------------------------
class History:
    """The numbers of the latest log, and the series that trends need.

    Attributes:
        step: Of the latest log, in optimiser steps.
        now: Its numbers by name; what is None or no number is left out, nan and infinities are not.
        max_grad_norm: Norm that gradients are clipped at; None or 0 for no clipping.
        series: ``(step, value)`` pairs by name, finite values only, oldest first.
    """

    def __init__(self) -> None:
        self.step = 0
        self.now: dict[str, float] = {}
        self.max_grad_norm: float | None = None
        self.series: dict[str, list[tuple[int, float]]] = {}

    def update(self, step: int, logs: Mapping[str, Any], max_grad_norm: float | None) -> None:
        """Take in one log."""
        self.step = step
        self.max_grad_norm = max_grad_norm
        self.now = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, Real) and not isinstance(value, bool)
        }
        for name, value in self.now.items():
            if math.isfinite(value) and (name in _KEPT or name.startswith(_KEPT_PREFIXES)):
                self.series.setdefault(name, []).append((step, value))

    def get(self, *names: str) -> float | None:
        """The first of the names that the latest log has a finite number for."""
        found = (self.now[name] for name in names if math.isfinite(self.now.get(name, math.nan)))
        return next(found, None)

    def values(self, name: str) -> list[float]:
        """A series that the latest log goes on with; empty where it does not."""
        return [value for _, value in self.series[name]] if self.get(name) is not None else []


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule reads in a log that it applies to."""

    value: float  # in the unit of the rule's bound
    broken: bool
    detail: str = ""  # for the rule's `says`


Measure = Callable[[History, float], Reading | None]


# --------------------------------------------------------------------------------------------------
# One log, and trends
# --------------------------------------------------------------------------------------------------
def compared(is_broken: Callable[[float, float], bool], metrics: Sequence[str]) -> Measure:
    """How the first of the metrics that is logged compares with the bound."""

    def measure(history: History, bound: float) -> Reading | None:
        value = history.get(*metrics)
        return None if value is None else Reading(value, is_broken(value, bound))

    return measure


def kl_share_low(history: History, bound: float) -> Reading | None:
    # A coefficient of 0 is no weak KL term: it is none, on purpose. And in the first step the policy
    # is the reference, so its share is 0 whatever the coefficient.
    if history.get("kl/coefficient") == 0 or history.step <= 1:
        return None
    return compared(operator.lt, ["kl/share_of_loss"])(history, bound)


def reward_failures(history: History, bound: float) -> Reading | None:
    """The reward function that misses the truth most often."""
    shares = {
        name: value
        for name in history.now
        if name.endswith("/without_truth") and (value := history.get(name)) is not None
    }
    if not shares:
        return None
    worst = max(shares, key=lambda name: shares[name])
    reward = worst.removeprefix("rewards/").removesuffix("/without_truth")
    return Reading(shares[worst], shares[worst] > bound, reward)


def gradient_not_finite(history: History, bound: float) -> Reading | None:
    norm = history.now.get("grad_norm")
    return None if norm is None else Reading(norm, not math.isfinite(norm))


def gradient_clipped(history: History, bound: float) -> Reading | None:
    """Norms are logged as they were before clipping."""
    limit = history.max_grad_norm
    norms = history.values("grad_norm")[-_RECENT:]
    if not norms or not limit:
        return None
    clipped = sum(norm > limit for norm in norms)
    detail = f"{clipped} of the last {len(norms)} gradient norms are over max_grad_norm {limit:g}"
    return Reading(clipped / len(norms), clipped / len(norms) > bound, detail)


def entropy_falling(history: History, bound: float) -> Reading | None:
    *before, now = history.values("entropy")[-_RECENT - 1 :] or [math.nan]
    if len(before) < _FEWEST or (usual := statistics.median(before)) <= 0:
        return None
    fall = 1 - now / usual
    return Reading(fall, fall > bound, f"from {usual:.3g} to {now:.3g} nats a token")


# --------------------------------------------------------------------------------------------------
# Trends against the best before
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Fall:
    """How a held-out metric stands to its best before."""

    step: int  # of the best; the latest one of equals
    best: float
    now: float

    @property
    def points(self) -> float:
        return self.best - self.now


def _heldout_fall(history: History, metric: str) -> _Fall | None:
    points = history.series[metric] if history.get(metric) is not None else []
    if len(points) < 2:
        return None
    best, step = max((value, step) for step, value in points[:-1])
    return _Fall(step, best, points[-1][1])


def _trend(history: History, name: str, since: int) -> float | None:
    """Mean of the later half of a series' logs since a step, less that of the earlier half."""
    values = [value for step, value in history.series.get(name, ()) if step > since]
    half = len(values) // 2
    return statistics.fmean(values[half:]) - statistics.fmean(values[:half]) if half else None


def heldout_down(history: History, bound: float) -> Reading | None:
    """Where the reward has not risen: there, `reward_up_heldout_down` says more."""
    fall = _heldout_fall(history, "eval_overall")
    if fall is None:
        return None
    trend = _trend(history, "reward", fall.step)
    broken = fall.points > bound and not (trend is not None and trend > 0)
    return Reading(
        fall.points, broken, f"from {fall.best:.3f} at step {fall.step} to {fall.now:.3f}"
    )


def reward_up_heldout_down(history: History, bound: float) -> Reading | None:
    fall = _heldout_fall(history, "eval_overall")
    trend = _trend(history, "reward", fall.step) if fall else None
    if fall is None or trend is None:
        return None
    detail = (
        f"from {fall.best:.3f} at step {fall.step} to {fall.now:.3f} while the training reward rose "
        f"by {trend:.3g}"
    )
    return Reading(fall.points, fall.points > bound and trend > 0, detail)


def forgetting(history: History, bound: float) -> Reading | None:
    """The task that has fallen most on held-out rows while another held its own."""
    metrics = {task: f"eval_{name}" for task, name in headlines().items()}
    falls = {task: fall for task in metrics if (fall := _heldout_fall(history, metrics[task]))}
    if len(falls) < 2:
        return None
    task = max(falls, key=lambda task: falls[task].points)
    fall = falls[task]
    held = {
        other: f"{before:.3f} to {falls[other].now:.3f}"
        for other in falls
        if other != task
        and (before := dict(history.series[metrics[other]]).get(fall.step)) is not None
        and falls[other].now >= before
    }
    others = " and ".join(f"{other} went from {numbers}" for other, numbers in held.items())
    detail = f"{task} from {fall.best:.3f} at step {fall.step} to {fall.now:.3f} while {others}"
    return Reading(fall.points, fall.points > bound and bool(held), detail)


def suite_down(history: History, bound: float) -> Reading | None:
    """The suite whose headline has fallen most, as a share of its best."""
    falls = {
        suite: fall
        for suite, metric in SUITE_HEADLINES.items()
        if (fall := _heldout_fall(history, f"eval_{metric}")) and fall.best > 0
    }
    if not falls:
        return None
    shares = {suite: fall.points / fall.best for suite, fall in falls.items()}
    suite = max(shares, key=shares.__getitem__)
    fall = falls[suite]
    detail = f"{suite} from {fall.best:.3g} at step {fall.step} to {fall.now:.3g}"
    return Reading(shares[suite], shares[suite] > bound, detail)


def task_reward_down(history: History, bound: float) -> Reading | None:
    """The task whose mean reward of ten logs has fallen most while another's has not fallen."""
    worst: Reading | None = None
    names = [name for name in history.now if name.startswith("reward/")]
    for name in names:
        points = history.series.get(name, [])
        starts = range(0, len(points) - 2 * _RECENT + 1, _RECENT)
        windows = {start: _mean(points[start : start + _RECENT]) for start in starts}
        if len(names) < 2 or not windows or (best := max(windows.values())) <= 0:
            continue
        start = max(windows, key=lambda start: windows[start])
        first, last = points[start][0], points[start + _RECENT - 1][0]
        now = _mean(points[-_RECENT:])
        held = any(
            _has_held(history.series.get(other, []), first, last)
            for other in names
            if other != name
        )
        fall = (best - now) / best
        detail = f"{name.removeprefix('reward/')}, from {best:.3g} up to step {last} to {now:.3g},"
        if worst is None or fall > worst.value:
            worst = Reading(fall, fall > bound and held, detail)
    return worst


def _has_held(points: list[tuple[int, float]], first: int, last: int) -> bool:
    """Whether the mean of the last ten logs is not below that of the steps given."""
    then = [point for point in points if first <= point[0] <= last]
    return bool(then) and _mean(points[-_RECENT:]) >= _mean(then)


def _mean(points: list[tuple[int, float]]) -> float:
    return statistics.fmean(value for _, value in points)


# --------------------------------------------------------------------------------------------------
# Judges
# --------------------------------------------------------------------------------------------------
def judge_constant(history: History, bound: float) -> Reading | None:
    """The judge whose rewards, which is its scores where no scale is logged, lie closest together."""
    spreads = {
        name: spread
        for name in _judges(history.now)
        if (spread := history.get(f"judge/{name}/reward_std", f"judge/{name}/std")) is not None
    }
    if not spreads:
        return None
    name = min(spreads, key=spreads.__getitem__)
    return Reading(spreads[name], spreads[name] <= bound, name)


def judge_against_truth(history: History, bound: float) -> Reading | None:
    """The judge and task whose score rises while the truth has fallen most, in batches or held out.

    By task, as a shift of the mix moves the means of all tasks together without any of them changing.
    """
    found = [
        reading
        for name in _judges(history.series)
        for task in TASKS
        for measure in (_batches_against, _heldout_against)
        if (reading := measure(history, name, task, bound)) is not None
    ]
    return max(found, key=lambda reading: (reading.broken, reading.value), default=None)


def _batches_against(history: History, name: str, task: str, bound: float) -> Reading | None:
    """Of the completions that the judge has scored: five logs now against the best five before."""
    scores, truths = f"judge/{name}/mean_{task}", f"judge/{name}/truth_{task}"
    if history.get(scores) is None or history.get(truths) is None:
        return None
    points = history.series[truths]
    windows = [
        points[start : start + _FEWEST]
        for start in range(0, len(points) - 2 * _FEWEST + 1, _FEWEST)
    ]
    if not windows:
        return None
    best, now = max(windows, key=_mean), points[-_FEWEST:]
    earlier, later = (_within(history.series[scores], window) for window in (best, now))
    if not earlier or not later:
        return None
    fall, rise = _mean(best) - _mean(now), _mean(later) - _mean(earlier)
    detail = (
        f"{_has_risen(name, task, rise, best[-1][0])} while the share right of the same completions"
    )
    return Reading(fall, fall > bound and rise > 0, detail)


def _heldout_against(history: History, name: str, task: str, bound: float) -> Reading | None:
    """Overall accuracy, of few rows, is surer than a task's; the task's must have fallen with it."""
    fall = _heldout_fall(history, "eval_overall")
    rise = _trend(history, f"judge/{name}/mean_{task}", fall.step) if fall else None
    metric = f"eval_{headlines()[task]}"
    now = history.get(metric)
    if fall is None or rise is None or now is None:
        return None
    before = dict(history.series[metric]).get(fall.step)
    fell = before is not None and now < before
    detail = f"{_has_risen(name, task, rise, fall.step)} while held-out overall accuracy"
    return Reading(fall.points, fall.points > bound and rise > 0 and fell, detail)


def _has_risen(name: str, task: str, rise: float, step: int) -> str:
    return f"the score of {name} for {task} answers has risen by {rise:.3g} since step {step}"


def _within(
    points: list[tuple[int, float]], window: list[tuple[int, float]]
) -> list[tuple[int, float]]:
    """The points of the steps that the window spans."""
    return [point for point in points if window[0][0] <= point[0] <= window[-1][0]]


def _judges(names: Iterable[str]) -> list[str]:
    """Names of judges among those of metrics, each once."""
    return list(dict.fromkeys(name.split("/")[1] for name in names if name.startswith("judge/")))
