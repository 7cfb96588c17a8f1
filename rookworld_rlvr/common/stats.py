"""Shares, means and differences of two models on the same items, each with a confidence interval."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95% score interval of a share of `n` trials, in [0, 1]; `n` may be an effective number.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927).
    """
    centre = share + _Z * _Z / (2 * n)
    spread = _Z * math.sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
    scale = 1 + _Z * _Z / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # Rounding would leave 1e-17 of nothing.
    return max(0.0, low) if share > 0 else 0.0, min(1.0, high) if share < 1 else 1.0


MetricKind = Literal["share", "mean", "amount"]
"""Of values that are 0 or 1, of values in [0, 1], or of other numbers, such as pawns."""


RESAMPLES = 2_000


_ENUMERATED = 12  # differences whose 4,096 signs are all tried


_AT_ONCE = 100  # of the resamples, so that many rows need little memory


_SEED = 0


_FEW = 10  # values, of which a bootstrap would draw too narrow an interval


_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Estimate:
    """A metric's value, its 95% interval, and how many items it was measured on.

    The bounds are nan if there are too few items to tell, see `estimate`.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Paired:
    """How a second model differs from a first one on the same items; bounds as in `Estimate`.

    `p` is two-sided: how likely a difference at least this large is if both models are equally good.
    """

    difference: float  # second minus first
    low: float
    high: float
    p: float
    n: int

    @property
    def is_tie(self) -> bool:
        """Whether chance alone may explain the difference."""
        return self.p >= 0.05 or not (self.low > 0 or self.high < 0)


def proportion(right: float, n: int) -> Estimate:
    """A share of `n` trials, at least one, with its 95% Wilson score interval, see `wilson`."""
    return Estimate(right / n, *wilson(right / n, n), n)


def estimate(kind: MetricKind, values: Sequence[float]) -> Estimate:
    """A share with its Wilson interval, or a mean with its bootstrap interval.

    The bootstrap draws only values that were seen: of equal or few values its interval would be too
    narrow. Where values must be in [0, 1], `_bounded` gives one that is not; elsewhere it is nan.

    Args:
        kind: What the values can be.
        values: One value per item; not empty.
    """
    if kind == "share":
        return proportion(sum(values), len(values))
    low, high = _mean_interval(np.asarray(values, dtype=float), kind, 0.0)
    return Estimate(math.fsum(values) / len(values), low, high, len(values))


def paired(
    kind: MetricKind, first: Mapping[str, float], second: Mapping[str, float]
) -> Paired | None:
    """Compare two models on the items that both have a value for; None if there are no such items.

    Shares are compared by McNemar's exact test, means by `permutation_test`. With fewer than six items
    that differ, neither test can give a p below 0.05. The interval of a mean is that of `estimate`; the
    interval of shares has a width even if no item differs.

    Args:
        kind: What the values can be.
        first: The first model's values by item.
        second: The second model's values by item.

    Source: Q. McNemar, Psychometrika 12 (1947); D. Bonett and R. Price, Journal of Educational and
    Behavioral Statistics 37 (2012), adjusted Wald interval; B. Efron and R. Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapters 13 and 15; R. A. Fisher, "The Design of Experiments"
    (1935), section 21.
    """
    items = [item for item in first if item in second]
    if not items:
        return None
    differences = np.array([second[item] - first[item] for item in items], dtype=float)
    if kind == "share":
        rose, fell = int((differences > 0).sum()), int((differences < 0).sum())
        up, down = (rose + 1) / (len(items) + 2), (fell + 1) / (len(items) + 2)
        spread = _Z * math.sqrt((up + down - (up - down) ** 2) / (len(items) + 2))
        low, high = max(-1.0, up - down - spread), min(1.0, up - down + spread)
        p = mcnemar(rose, fell)
    else:
        low, high = _mean_interval(differences, kind, -1.0)
        p = permutation_test(differences)
    return Paired(float(differences.mean()), low, high, p, len(items))


ValuesByMetric = Mapping[str, Mapping[str, float]]
"""By metric and item."""


def paired_by_metric(
    kind: Callable[[str], MetricKind], first: ValuesByMetric, second: ValuesByMetric
) -> dict[str, Paired]:
    """How a second model differs from a first one by each metric that both have; see `paired`.

    Args:
        kind: Gives the kind of a metric.
        first: The first model's values.
        second: The second model's.
    """
    both = [name for name in first if name in second]
    found = {name: paired(kind(name), first[name], second[name]) for name in both}
    return {name: one for name, one in found.items() if one is not None}


def mcnemar(better: int, worse: int) -> float:
    """McNemar's exact two-sided test: how likely is a split at least so uneven, if both are as likely?

    Args:
        better: Items that only the second model got right.
        worse: Items that only the first model got right.

    >>> mcnemar(9, 1), mcnemar(4, 0)
    (0.021484375, 0.125)
    """
    changed = better + worse
    # Integers until the last step: 2**1100 does not fit in a float.
    ways = sum(math.comb(changed, k) for k in range(max(better, worse), changed + 1))
    return min(1.0, float(2 * ways / 2**changed))


def permutation_test(differences: np.ndarray) -> float:
    """How likely a mean at least this far from 0 is, if the sign of each difference is random.

    Two-sided. Exact for up to `_ENUMERATED` differences other than 0; for more, `RESAMPLES` draws.

    Args:
        differences: One per pair, ``(N,)``.

    >>> permutation_test(np.array([1.0, 1.0, 1.0, 1.0]))
    0.125
    """
    changed = differences[differences != 0]
    if not len(changed):
        return 1.0
    bound = abs(changed.sum()) * (1 - 1e-9)  # equal sums may differ by rounding
    if len(changed) <= _ENUMERATED:
        bits = np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1
        return float((abs((2 * bits - 1) @ changed) >= bound).mean())
    generator = np.random.default_rng(_SEED)
    extreme = 1  # the sample itself counts, so p > 0
    for _ in range(RESAMPLES // _AT_ONCE):
        signs = generator.integers(2, size=(_AT_ONCE, len(changed))) * 2 - 1
        extreme += int((abs(signs @ changed) >= bound).sum())
    return extreme / (RESAMPLES + 1)


def _mean_interval(values: np.ndarray, kind: MetricKind, least: float) -> tuple[float, float]:
    if len(values) >= _FEW and values.min() < values.max():
        generator = np.random.default_rng(_SEED)
        means = [
            values[generator.integers(len(values), size=(_AT_ONCE, len(values)))].mean(axis=1)
            for _ in range(RESAMPLES // _AT_ONCE)
        ]
        low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
        return float(low), float(high)
    return (math.nan, math.nan) if kind == "amount" else _bounded(values, least)


def _bounded(values: np.ndarray, least: float) -> tuple[float, float]:
    """The interval of the mean of values that lie in [least, 1]; nan if they do not.

    No mean of such values varies more than a share, whose interval is Wilson's. Of equal values it is
    the share of others that may have been missed.
    """
    mean, n = float(values.mean()), len(values)
    if values.min() < least or values.max() > 1:
        return math.nan, math.nan
    if values.min() == values.max():
        missed = wilson(0, n)[1]
        return mean - missed * (mean - least), mean + missed * (1 - mean)
    low, high = wilson((mean - least) / (1 - least), n)
    return least + low * (1 - least), least + high * (1 - least)


def draw(text: str, salt: bytes = b"") -> float:
    """A number in [0, 1) computed from a text: the same in every run and on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=4, salt=salt).digest()
    return int.from_bytes(digest, "big") / (1 << 32)
