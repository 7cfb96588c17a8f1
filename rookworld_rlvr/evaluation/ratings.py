"""Ratings of players that met in a pool, by Bradley and Terry; how many games a difference needs."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ..common.stats import RESAMPLES, Estimate, Paired

ELO = 400 / math.log(10)
"""Points of Elo in one unit of log-odds."""


_STEPS = 100  # of Newton's method, which needs about eight


_TOLERANCE = 1e-9  # of a step, in log-odds


_LONGEST = 1.0  # log-odds that one step may move a player, so that no step goes astray


_SEED = 0  # of the resamples


_FEWEST = 10  # openings, of which a bootstrap would draw too narrow an interval


# --------------------------------------------------------------------------------------------------
# The fit
# --------------------------------------------------------------------------------------------------
def bradley_terry(points: np.ndarray, anchor: int = 0) -> np.ndarray:
    """The ratings in Elo, ``(..., P)``, under which the points that were scored are the most likely.

    A player scores against another with the chance ``1 / (1 + 10 ** (-difference / 400))``; a draw
    counts as half a win for each. The maximum is found by Newton's method, for all leading dimensions
    at once. A player without any points, or with all of them, has no finite rating: give each pair that
    met some points, as `with_a_draw` does.

    Args:
        points: ``(..., P, P)``; the entry ``[i, j]`` is what player `i` scored against `j`, in wins.
        anchor: The player whose rating is 0.

    Source: R. A. Bradley and M. E. Terry, Biometrika 39 (1952).

    >>> bradley_terry(np.array([[0.0, 25.0], [75.0, 0.0]])).round(1) + 0.0  # 400 * log10(75 / 25)
    array([  0. , 190.8])
    """
    games = points + np.swapaxes(points, -1, -2)
    others = np.delete(np.arange(points.shape[-1]), anchor)
    strength = np.zeros(points.shape[:-1])  # (..., P), in log-odds
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(strength[..., None, :] - strength[..., :, None]))
        slope = (points - games * chance).sum(-1)
        weight = games * chance * (1 - chance)
        curvature = weight.sum(-1)[..., None] * np.eye(points.shape[-1]) - weight
        inner = curvature[..., others[:, None], others]
        step = np.linalg.solve(inner, slope[..., others, None])[..., 0]
        step /= np.maximum(abs(step).max(-1, keepdims=True) / _LONGEST, 1)
        strength[..., others] += step
        if abs(step).max(initial=0) < _TOLERANCE:
            break
    return ELO * strength


def with_a_draw(points: np.ndarray) -> np.ndarray:
    """The points with one drawn game more of each two players that met, so that ratings are finite.

    Args:
        points: ``(..., P, P)``, see `bradley_terry`.
    """
    met = points + np.swapaxes(points, -1, -2) > 0
    return points + 0.5 * met


# --------------------------------------------------------------------------------------------------
# Intervals
# --------------------------------------------------------------------------------------------------
class Ratings:
    """The ratings of a pool, with intervals by resampling openings.

    All games from an opening, of all players, are drawn together: an opening that is worth a lot to
    White makes its games alike. What was not played in a resample does not count in it.

    Args:
        points: ``(N, P, P)``, of each opening the points that player `i` scored against `j`.
        anchor: The player whose rating is 0.

    Attributes:
        values: ``(P,)``, in Elo.
    """

    def __init__(self, points: np.ndarray, anchor: int = 0) -> None:
        self._games = (points + np.swapaxes(points, -1, -2)).sum((0, 2))  # (P,)
        self._openings = count = len(points)
        self.values = bradley_terry(with_a_draw(points.sum(0)), anchor)
        drawn = np.random.default_rng(_SEED).multinomial(count, [1 / count] * count, RESAMPLES)
        met = 0.5 * (points.sum(0) + points.sum(0).T > 0)
        self._drawn = bradley_terry(np.tensordot(drawn, points, 1) + met, anchor)  # (R, P)

    def of(self, player: int) -> Estimate:
        """A player's rating with its 95% interval; `n` counts its games."""
        low, high = self._interval(self._drawn[:, player])
        return Estimate(float(self.values[player]), low, high, int(self._games[player]))

    def difference(self, first: int, second: int) -> Paired:
        """How far the second player is above the first; `n` counts the openings.

        `p` is twice the share of the resamples that do not agree on who is stronger.
        """
        value = float(self.values[second] - self.values[first])
        drawn = self._drawn[:, second] - self._drawn[:, first]
        below, above = (drawn <= 0).sum(), (drawn >= 0).sum()
        p = min(1.0, 2 * float(min(below, above) + 1) / (len(drawn) + 1))
        return Paired(value, *self._interval(drawn), p, self._openings)

    def _interval(self, drawn: np.ndarray) -> tuple[float, float]:
        if self._openings < _FEWEST:
            return math.nan, math.nan
        low, high = np.percentile(drawn, [2.5, 97.5])
        return float(low), float(high)


# --------------------------------------------------------------------------------------------------
# Before a match
# --------------------------------------------------------------------------------------------------
def games_needed(elo: float, draws: float = 0.0, power: float = 0.8) -> int:
    """How many games show that one player is stronger than another.

    So many that the 95% interval of the score leaves 0.5 out with the chance `power`. Pairs of games
    from one opening need somewhat fewer.

    Args:
        elo: The true difference, in points; not 0.
        draws: The share of games that are drawn, at most twice the weaker player's score.
        power: The chance to find the difference. 0.5 gives the games after which an interval is as wide
            to each side as the difference.

    >>> games_needed(30), games_needed(30, power=0.5), games_needed(30, draws=0.4)
    (1051, 514, 627)
    """
    score = 1 / (1 + 10 ** (-abs(elo) / 400))
    spread = math.sqrt(score * (1 - score) - draws / 4)  # of one game
    normal = NormalDist()
    wanted = normal.inv_cdf(0.975) + normal.inv_cdf(power)
    return math.ceil((wanted * spread / (score - 0.5)) ** 2)
