import tracemalloc
from typing import Any

import numpy as np
import pytest

from rookworld_rlvr.common import stats
from rookworld_rlvr.common.stats import MetricKind, estimate, mcnemar, permutation_test, wilson

paired: Any = stats.paired  # never None here, but where it says so


def test_a_share_has_wilsons_interval() -> None:
    found = estimate("share", [1.0] * 8 + [0.0] * 2)
    # R: prop.test(8, 10, correct = FALSE)$conf.int
    assert (found.value, found.n) == (0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-7)


def test_a_mean_has_about_the_interval_of_the_normal_distribution() -> None:
    values = np.random.default_rng(3).normal(5, 2, size=400)
    found = estimate("mean", list(values))
    spread = 1.96 * values.std(ddof=1) / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - spread, abs=0.1 * spread)
    assert found.high == pytest.approx(values.mean() + spread, abs=0.1 * spread)
    assert found == estimate("mean", list(values)), "the same values, the same interval"


def test_many_rows_need_little_memory_and_have_the_same_numbers(monkeypatch: Any) -> None:
    """All draws at once take 32 MB; in parts, the generator gives the same numbers."""
    values = np.random.default_rng(3).normal(0.01, 1, size=2_000)
    monkeypatch.setattr(stats, "_AT_ONCE", stats.RESAMPLES)
    at_once = estimate("mean", list(values)), permutation_test(values)
    monkeypatch.setattr(stats, "_AT_ONCE", 50)
    tracemalloc.start()
    in_parts = estimate("mean", list(values)), permutation_test(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert in_parts == at_once and peak < 8_000_000


def test_no_interval_has_no_width() -> None:
    for kind in ("share", "mean"):
        found = estimate(kind, [0.0] * 20)
        # R: prop.test(0, 20, correct = FALSE)$conf.int
        assert (found.low, found.high) == pytest.approx((0.0, 0.1611252), abs=1e-7)
        assert wilson(0, 14)[0] == 0 and wilson(1, 14)[1] == 1
        same = {str(item): 0.5 for item in range(20)}
        alike = paired(kind, same, same)
        assert alike.low < 0 < alike.high and alike.is_tie
    four = estimate("mean", [0.2, 0.3, 0.3, 0.4])
    assert four.low < 0.1 and four.high > 0.6
    pawns = estimate("mean", [2.0, 2.0, 3.0, 9.0])
    assert np.isnan([pawns.low, pawns.high]).all(), "nothing bounds them, and four say nothing"
    lost = estimate("amount", [0.0] * 40)
    assert lost.value == 0 and np.isnan([lost.low, lost.high]).all(), "centipawns are not shares"
    alike = paired("amount", same, same)
    assert np.isnan([alike.low, alike.high]).all() and alike.is_tie


@pytest.mark.parametrize(
    ("fell", "rose", "p"),
    # R: binom.test(min, sum)$p.value
    [(1, 9, 0.02148438), (9, 1, 0.02148438), (0, 0, 1.0), (5, 5, 1.0), (0, 6, 0.03125)],
)
def test_mcnemars_exact_test(fell: int, rose: int, p: float) -> None:
    assert mcnemar(fell, rose) == pytest.approx(p, abs=1e-8)
    # No overflow; normal: z = 99 / sqrt(2100).
    assert mcnemar(1000, 1100) == pytest.approx(0.0307, abs=2e-3)


def test_shares_are_paired_by_item() -> None:
    first = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0, "only here": 1.0}
    found = paired("share", first, {"d": 1.0, "c": 1.0, "b": 1.0, "a": 0.0, "only there": 0.0})
    assert (found.difference, found.n) == (0.25, 4) and found.low < 0.25 < found.high
    assert found.p == 1.0, "two rose, one fell: 2 * (1 + 3) / 8"


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 1, 1, 1], 2 / 16),  # of the sixteen signs: all up, all down
        ([3, 2, 1], 2 / 8),
        ([3, 2, -1], 4 / 8),  # sums of 6, 4, -4, -6
        ([1, 0, 0, -1], 1.0),
        ([0, 0], 1.0),
        # Darwin's maize, eighths of an inch; Fisher (1935, section 21) counts 1,726 of 2**15.
        ([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], 1_726 / 2**15),
    ],
)
def test_the_permutation_test(differences: list[float], p: float) -> None:
    exact = len(differences) <= 12
    found = permutation_test(np.array(differences, dtype=float))
    assert found == pytest.approx(p, abs=1e-12 if exact else 0.015)


@pytest.mark.parametrize("kind", ["share", "mean"])
@pytest.mark.parametrize(("n", "is_certain"), [(4, False), (5, False), (6, True)])
def test_a_handful_of_items_proves_nothing(kind: MetricKind, n: int, is_certain: bool) -> None:
    first, second = ({str(item): value for item in range(n)} for value in (0.0, 1.0))
    found = paired(kind, first, second)
    assert found.difference == 1 and found.p == pytest.approx(2 * 0.5**n)
    assert (found.p < 0.05) is is_certain


def test_means_are_compared_by_permutation() -> None:
    draw = np.random.default_rng(4)
    first = {str(i): float(value) for i, value in enumerate(draw.normal(size=200))}
    better = {item: value + 0.1 + 0.1 * draw.normal() for item, value in first.items()}
    found = paired("mean", first, better)
    assert found.p < 0.01, "paired: far smaller than the spread between items"
    assert 0 < found.low < found.difference < found.high < 0.2
    same = paired("mean", first, {item: v + 0.1 * draw.normal() for item, v in first.items()})
    assert same.p > 0.05 and same.low < 0 < same.high
    assert paired("mean", first, {"another": 1.0}) is None
    alike = paired("mean", first, first)
    assert (alike.difference, alike.p) == (0.0, 1.0)
