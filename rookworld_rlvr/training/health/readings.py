"""What the rules of the health monitor read: the logs of a run as a history, and readings of it.

A reading takes the history and a bound. It returns None if it does not apply. These are pure functions:
no torch, no I/O.
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

_RECENT = 10  # logs over which trends are seen


_FEWEST = 5  # logs needed before the latest one for a trend of the entropy


_STAYS = 0.9  # share of the taught groups at first that is still taught if nothing is learnt


_KEPT = ("reward", "entropy", "grad_norm")  # and names with one of _KEPT_PREFIXES


_KEPT_PREFIXES = ("reward/", "eval_", "judge/", "teach/")


_ROUNDING = 1e-9  # of a difference of shares


Points = list[tuple[int, float]]  # step and value, oldest first


# --------------------------------------------------------------------------------------------------
# The history
# --------------------------------------------------------------------------------------------------
class History:
    """The numbers of the latest log, and the series needed for trends.

    Attributes:
        step: The optimiser step of the latest log.
        now: Its numbers by name, nan and infinities included; None and other values are left out.
        details: Texts of the latest log by name, which describe its numbers of the same name.
        max_grad_norm: Gradients are clipped at this norm; None or 0 means no clipping.
        series: ``(step, value)`` pairs by name, finite values only, oldest first.

    Args:
        guard: The most that held-out metrics may lose against the start, by metric.
    """

    def __init__(self, guard: Mapping[str, float] | None = None) -> None:
        self.guard = guard or {}
        self.step = 0
        self.now: dict[str, float] = {}
        self.details: Mapping[str, str] = {}
        self.max_grad_norm: float | None = None
        self.series: dict[str, Points] = {}

    def update(
        self,
        step: int,
        logs: Mapping[str, Any],
        max_grad_norm: float | None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Add one log."""
        self.step = step
        self.details = details or {}
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


def _most(readings: Iterable[Reading]) -> Reading | None:
    """The reading with the largest value, the first one of equals."""
    return max(readings, key=lambda reading: reading.value, default=None)


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
    # With a coefficient of 0 there is no KL term on purpose. In the first step the policy is the
    # reference, so the share is 0 whatever the coefficient.
    if history.get("kl/coefficient") == 0 or history.step <= 1:
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


def reward_failures(history: History, bound: float) -> Reading | None:
    """The reward function that lacks the truth most often."""
    return _most(
        Reading(share, share > bound, name.removeprefix("rewards/").removesuffix("/without_truth"))
        for name in history.now
        if name.endswith("/without_truth") and (share := history.get(name)) is not None
    )


def gradient_not_finite(history: History, bound: float) -> Reading | None:
    norm = history.now.get("grad_norm")
    return None if norm is None else Reading(norm, not math.isfinite(norm))


def gradient_clipped(history: History, bound: float) -> Reading | None:
    """The logged norms are those before clipping."""
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
    """How a held-out metric compares with its best value before."""

    step: int  # of the best value, the latest one of equals
    best: float
    now: float

    @property
    def points(self) -> float:
        return self.best - self.now

    def __str__(self) -> str:
        return f"from {self.best:.3f} at step {self.step} to {self.now:.3f}"


def _heldout_fall(history: History, metric: str) -> _Fall | None:
    points = history.series[metric] if history.get(metric) is not None else []
    if len(points) < 2:
        return None
    best, step = max((value, step) for step, value in points[:-1])
    return _Fall(step, best, points[-1][1])


def _trend(history: History, name: str, since: int) -> float | None:
    """Mean of the later half of a series' logs since a step, minus the mean of the earlier half."""
    values = [value for step, value in history.series.get(name, ()) if step > since]
    half = len(values) // 2
    return statistics.fmean(values[half:]) - statistics.fmean(values[:half]) if half else None


def heldout_down(history: History, bound: float) -> Reading | None:
    """A fall while the reward has not risen; `reward_up_heldout_down` covers the other case."""
    fall = _heldout_fall(history, "eval_overall")
    if fall is None:
        return None
    trend = _trend(history, "reward", fall.step) or 0.0
    return Reading(fall.points, fall.points > bound and trend <= 0, str(fall))


def reward_up_heldout_down(history: History, bound: float) -> Reading | None:
    fall = _heldout_fall(history, "eval_overall")
    trend = _trend(history, "reward", fall.step) if fall else None
    if fall is None or trend is None:
        return None
    detail = f"{fall} while the training reward rose by {trend:.3g}"
    return Reading(fall.points, fall.points > bound and trend > 0, detail)


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


def forgetting(history: History, bound: float) -> Reading | None:
    """The task that has fallen most on held-out rows while another has not fallen."""
    metrics = {task: f"eval_{name}" for task, name in headlines().items()}
    falls = {task: fall for task in metrics if (fall := _heldout_fall(history, metrics[task]))}
    if len(falls) < 2:
        return None
    task = max(falls, key=lambda task: falls[task].points)
    fall = falls[task]
    held = [
        f"{other} went from {before:.3f} to {falls[other].now:.3f}"
        for other in falls
        if other != task
        and (before := dict(history.series[metrics[other]]).get(fall.step)) is not None
        and falls[other].now >= before
    ]
    detail = f"{task} {fall} while {' and '.join(held)}"
    return Reading(fall.points, fall.points > bound and bool(held), detail)


def suite_down(history: History, bound: float) -> Reading | None:
    """The suite with the largest fall of its headline metric, as a share of its best."""
    found = []
    for suite, metric in SUITE_HEADLINES.items():
        fall = _heldout_fall(history, f"eval_{metric}")
        if fall is not None and fall.best > 0:
            share = fall.points / fall.best
            detail = f"{suite} from {fall.best:.3g} at step {fall.step} to {fall.now:.3g}"
            found.append(Reading(share, share > bound, detail))
    return _most(found)


def task_reward_down(history: History, bound: float) -> Reading | None:
    """The task with the largest fall of its mean reward over ten logs while another's has not fallen."""
    series = {n: history.series.get(n, []) for n in history.now if n.startswith("reward/")}
    found = []
    for name, points in series.items():
        windows = _windows(points, _RECENT)
        before = max(windows, key=_mean, default=[])
        if len(series) < 2 or not before or _mean(before) <= 0:
            continue
        best, now = _mean(before), _mean(points[-_RECENT:])
        held = any(_has_held(series[other], before) for other in series if other != name)
        fall = (best - now) / best
        task = name.removeprefix("reward/")
        detail = f"{task}, from {best:.3g} up to step {before[-1][0]} to {now:.3g},"
        found.append(Reading(fall, fall > bound and held, detail))
    return _most(found)


def _windows(points: Points, size: int) -> list[Points]:
    """Consecutive windows of `size` points; the last `size` points, the present, are left out."""
    starts = range(0, len(points) - 2 * size + 1, size)
    return [points[start : start + size] for start in starts]


def _has_held(points: Points, before: Points) -> bool:
    """Whether the mean of the last ten logs is at least the mean over the steps of a window."""
    then = _within(points, before)
    return bool(then) and _mean(points[-_RECENT:]) >= _mean(then)


def _within(points: Points, window: Points) -> Points:
    """The points within the steps of a window."""
    return [point for point in points if window[0][0] <= point[0] <= window[-1][0]]


def _mean(points: Points) -> float:
    return statistics.fmean(value for _, value in points)


# --------------------------------------------------------------------------------------------------
# Judges
# --------------------------------------------------------------------------------------------------
def judge_constant(history: History, bound: float) -> Reading | None:
    """The judge with the smallest spread of its rewards, or of its scores if no scale is logged."""
    found = [
        Reading(spread, spread <= bound, name)
        for name in _judges(history.now)
        if (spread := history.get(f"judge/{name}/reward_std", f"judge/{name}/std")) is not None
    ]
    return min(found, key=lambda reading: reading.value, default=None)


def judge_against_truth(history: History, bound: float) -> Reading | None:
    """The judge and task with the largest fall of the truth while the score rises.

    Each task is looked at by itself, because a shift of the mixture moves the mean over all tasks
    although none of them has changed.
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
    """Compare the last five logs of what the judge has scored with the best five before."""
    scores, truths = f"judge/{name}/mean_{task}", f"judge/{name}/truth_{task}"
    if history.get(scores) is None or history.get(truths) is None:
        return None
    points = history.series[truths]
    windows = _windows(points, _FEWEST)
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
    """Compare held-out overall accuracy, which is less noisy than a task's; that must fall too."""
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


def _judges(names: Iterable[str]) -> list[str]:
    """The names of the judges that metrics are logged for, each once."""
    return list(dict.fromkeys(name.split("/")[1] for name in names if name.startswith("judge/")))


# --------------------------------------------------------------------------------------------------
# Right answers that are taught
# --------------------------------------------------------------------------------------------------
def taught_share_stays(history: History, bound: float) -> Reading | None:
    """Compare the last five logs with the first five."""
    shares, hopeless = history.values("teach/share"), history.values("teach/hopeless")
    if len(shares) < 2 * _FEWEST:
        return None
    first, now = _ends(shares)
    stays = all(later >= _STAYS * earlier for earlier, later in map(_ends, (shares, hopeless)))
    return Reading(now, stays and now > bound, f"after {100 * first:.3g}% in the first five logs")


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first five and of the last five values."""
    return statistics.fmean(values[:_FEWEST]), statistics.fmean(values[-_FEWEST:])
