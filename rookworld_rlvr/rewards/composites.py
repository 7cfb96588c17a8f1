"""Rewards that combine several components into one number; each docstring gives the range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Literal, get_args

from ..common.errors import ConfigurationError
from ..common.settings import record_faults, setting
from ..tasks.types import Score

Shaping = Literal["graduated", "linear", "binary", "continuous"]
UNREADABLE = -0.3
THRESHOLDS = (0.5, 0.85)
_POLICY_QUALITY = ("best_move", "candidates", "evaluation", "legality", "consistency")


def _threshold_faults(value: Any, name: str) -> list[str]:
    if len(value) == 2 and 0 < value[0] < value[1] < 1:
        return []
    return [f"{name}: {value!r}; give two numbers between 0 and 1, the smaller first"]


@dataclass(frozen=True, slots=True)
class Options:
    """What an entry of `rewards` may have."""

    name: str = setting(MISSING, "The reward's name.")
    weight: float = setting(1.0, "The factor of the reward.")


@dataclass(frozen=True, slots=True)
class GraduatedOptions(Options):
    """What an entry for `graduated` may have."""

    shaping: Shaping = setting("graduated", "The form of the scale.")
    thresholds: tuple[float, ...] = setting(
        THRESHOLDS, "Of the ladder's third and fourth rung.", check=_threshold_faults
    )


def graduated(
    score: Score, shaping: str = "graduated", thresholds: Sequence[float] = THRESHOLDS
) -> float:
    """One number in [-0.3, 1] for an environment or policy answer; unreadable answers get -0.3.

    An environment answer with a malformed board gets from -0.3 to -0.1, by how near it is. With `q`,
    the share of fields right (environment) or the mean of the five policy components:

    - ``graduated``: the ladder 0.2 format only (q = 0), 0.4 some fields right, 0.6 most (q at least
      the first threshold), 0.8 near perfect (the second; 0.85: one field wrong), 1.0 exact (q = 1).
    - ``linear``: 0.2 + 0.8 q.
    - ``binary``: 1 where exact, else 0.
    - ``continuous``: as ``linear``, but a nearly right field counts in part: for the environment
      q is 0.8 state + 0.2 outcome.

    Args:
        score: What `score_environment` or `score_policy` returns.
        shaping: One of `Shaping`.
        thresholds: Of the ladder's third and fourth rung.

    Raises:
        ConfigurationError: A bad shaping or bad thresholds.
    """
    if shaping not in get_args(Shaping) or _threshold_faults(thresholds, "thresholds"):
        given = {"name": "graduated", "shaping": shaping, "thresholds": thresholds}
        raise ConfigurationError(record_faults(GraduatedOptions, given, "rewards: graduated"))
    if not score["format"]:
        return UNREADABLE + score.get("state", 0.0)
    quality = _quality(score, partial=shaping == "continuous")
    if shaping == "binary":
        return float(quality == 1)
    if shaping != "graduated":
        return 0.2 + 0.8 * quality
    for least, rung in ((1.0, 1.0), (thresholds[1], 0.8), (thresholds[0], 0.6)):
        if quality >= least:
            return rung
    return 0.4 if quality > 0 else 0.2


def _quality(score: Score, partial: bool) -> float:
    if "fields" not in score:
        return math.fsum(score[name] for name in _POLICY_QUALITY) / len(_POLICY_QUALITY)
    if score["exact"]:
        return 1.0
    return 0.8 * score["state"] + 0.2 * score["outcome"] if partial else score["fields"]


def asymmetric(score: Score) -> float:
    """One number in [-1, 1] for an environment answer: a wrong state costs more than a wrong suffix.

    1 if exact; 0.6 to 0.87 if the state is right and the suffix (reward and flags) is not; from -1 to
    below 0, by the edit distance of the FENs, if the state is wrong; -1 if unreadable.
    """
    if score["exact"]:
        return 1.0
    if score["state"] == 1:
        return 0.6 + 0.4 * score["outcome"]
    return score["closeness"] - 1
