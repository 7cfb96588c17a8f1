"""Rewards that combine several components into one number; each docstring gives the range."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from typing import Literal

from ..common.settings import setting
from ..tasks.types import Score

Shaping = Literal["graduated", "linear", "binary", "continuous"]
UNREADABLE = -0.3
_LADDER = ((1.0, 1.0), (0.85, 0.8), (0.5, 0.6), (1e-9, 0.4), (0.0, 0.2))  # q at least, reward
_POLICY_QUALITY = ("best_move", "candidates", "evaluation", "legality", "consistency")


@dataclass(frozen=True, slots=True)
class Options:
    """What an entry of `rewards` may have."""

    name: str = setting(MISSING, "The reward's name.")
    weight: float = setting(1.0, "The factor of the reward.")


@dataclass(frozen=True, slots=True)
class GraduatedOptions(Options):
    """What an entry for `graduated` may have."""

    shaping: Shaping = setting("graduated", "The form of the scale.")


def graduated(score: Score, shaping: str = "graduated") -> float:
    """One number in [-0.3, 1] for an environment or policy answer; unreadable answers get -0.3.

    An environment answer with a malformed board gets from -0.3 to -0.1, by how near it is. With `q`,
    the share of fields right (environment) or the mean of the five policy components:

    - ``graduated``: the ladder 0.2 format only (q = 0), 0.4 some fields right, 0.6 most (q at least
      0.5), 0.8 near perfect (q at least 0.85: one field wrong), 1.0 exact (q = 1).
    - ``linear``: 0.2 + 0.8 q.
    - ``binary``: 1 where exact, else 0.
    - ``continuous``: as ``linear``, but a nearly right field counts in part: for the environment
      q is 0.8 state + 0.2 outcome.

    Args:
        score: What `score_environment` or `score_policy` returns.
        shaping: One of `Shaping`.
    """
    if not score["format"]:
        return UNREADABLE + score.get("state", 0.0)
    quality = _quality(score, partial=shaping == "continuous")
    if shaping == "binary":
        return float(quality == 1)
    if shaping != "graduated":
        return 0.2 + 0.8 * quality
    return next(rung for least, rung in _LADDER if quality >= least)


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
