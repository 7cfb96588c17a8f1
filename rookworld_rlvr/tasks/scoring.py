"""Pure functions: prompt, answer and truth in, named component scores out. No I/O, no torch.

Every component lies in [0, 1] and is 0 where the answer cannot be read. The same functions serve
rewards and evaluation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from rapidfuzz.distance import Levenshtein

from ..common.errors import IllegalPositionError, NotationError
from . import fill_in_truth, rules
from . import text as notation
from .environment import parse_environment_answer, parse_environment_prompt
from .fill_in import parse_fill_in_answer, parse_fill_in_prompt
from .policy import MAX_CANDIDATES, parse_policy_answer
from .registry import task_of
from .types import (
    MATE_CP,
    ActionValue,
    EnvironmentAnswer,
    EnvironmentPrompt,
    FillInPrompt,
    PolicyAnswer,
    Score,
)

Values = Mapping[str, int]
"""Centipawns from the side to move by move, for every legal move."""


def values_by_move(column: Any) -> Values | None:
    """A row's `action_values` by move; None where the row has none."""
    return {value["move"]: value["cp"] for value in column} if column else None


def score_row(prompt: str, completion: str, values: Values | None = None) -> Score | None:
    """Score one completion by the prompt's task; None where the truth cannot be had.

    Args:
        prompt: Text of a row's prompt.
        completion: What the policy wrote.
        values: What the legal moves are worth, for policy prompts.
    """
    task = _task_of(prompt)
    if task == "policy":
        return score_policy(values, completion) if values else None
    if task == "fill_in":
        masked = _fill_in_prompt(prompt)
        return None if masked is None else score_fill_in(masked, completion)
    environment = _environment_prompt(prompt)
    if environment is None:
        return None
    return score_environment(environment.fen, environment.action, completion)


# The completions of a group share their prompt.
_task_of = lru_cache(maxsize=4_096)(task_of)


@lru_cache(maxsize=4_096)
def _environment_prompt(text: str) -> EnvironmentPrompt | None:
    """The prompt, or None where it is malformed or no position: its fault, not the completion's."""
    try:
        prompt = parse_environment_prompt(text)
        rules.transition(prompt.fen, prompt.action)
    except (NotationError, IllegalPositionError):
        return None
    return prompt


@lru_cache(maxsize=4_096)
def _fill_in_prompt(text: str) -> FillInPrompt | None:
    """The prompt, or None where it is malformed or nothing fits: its fault, not the completion's."""
    try:
        prompt = parse_fill_in_prompt(text)
        fill_in_truth.truth(prompt)
    except NotationError:
        return None
    return prompt


ENVIRONMENT_COMPONENTS = ("format", "exact", "state", "outcome", "fields", "closeness")


POLICY_COMPONENTS = (
    "format",
    "best_move",
    "best_move_hit",
    "regret",
    "rank",
    "candidates",
    "evaluation",
    "legality",
    "consistency",
)


FILL_IN_COMPONENTS = ("format", "exact", "similarity")


# An unchanged board has only two wrong squares of 64: the power spreads the upper end of the range.
_SQUARES_POWER = 8


_BELOW_EXACT = 0.95


_LONGEST_CACHED = 2_000  # characters


def _unreadable(components: Sequence[str]) -> Score:
    return Score(MappingProxyType(dict.fromkeys(components, 0.0)))


# --------------------------------------------------------------------------------------------------
# Environment
# --------------------------------------------------------------------------------------------------
def score_environment(fen: str, action: str, completion: str) -> Score:
    """Score an environment answer against python-chess.

    Components:

    - `format`: 1 where the four fields parse.
    - `exact`: 1 where the whole answer is right: six FEN fields, reward, both flags.
    - `state`: 1 where the next state is right, else at most 0.95 by squares and fields right.
    - `outcome`: share of reward value and the two flags that is right.
    - `fields`: share right of the nine fields: six of the FEN, reward, two flags.
    - `closeness`: 1 minus the normalised edit distance between the two FENs.

    Args:
        fen: The position, readable and legal.
        action: The action as the prompt has it.
        completion: What the policy wrote.

    Raises:
        IllegalPositionError: `fen` is no position. Nothing in `completion` raises.
    """
    if len(completion) > _LONGEST_CACHED:
        return _score_environment(fen, action, completion)
    return _cached_score_environment(fen, action, completion)


def _score_environment(fen: str, action: str, completion: str) -> Score:
    truth = rules.transition(fen, action)
    try:
        answer = parse_environment_answer(completion)
    except NotationError:
        return _unreadable(ENVIRONMENT_COMPONENTS)
    return _compare_environment(answer, truth)


# The reward functions of a run ask for the same scores one after the other.
_cached_score_environment = lru_cache(maxsize=16_384)(_score_environment)


def clear_cache() -> None:
    """Forget the scores kept, for measurements."""
    _cached_score_environment.cache_clear()


def _compare_environment(answer: EnvironmentAnswer, truth: EnvironmentAnswer) -> Score:
    fields, true_fields = answer.fen.split(" "), truth.fen.split(" ")
    right = [mine == true for mine, true in zip(fields, true_fields, strict=True)]
    suffix = [
        answer.reward == truth.reward,
        answer.terminated == truth.terminated,
        answer.truncated == truth.truncated,
    ]
    state = 1.0 if all(right) else _state_shape(fields[0], true_fields[0], right[1:])
    return Score(
        MappingProxyType(
            {
                "format": 1.0,
                "exact": float(all(right) and all(suffix)),
                "state": state,
                "outcome": sum(suffix) / 3,
                "fields": (sum(right) + sum(suffix)) / 9,
                "closeness": Levenshtein.normalized_similarity(answer.fen, truth.fen),
            }
        )
    )


def _state_shape(placement: str, true_placement: str, right: Sequence[bool]) -> float:
    """Below 1: three parts squares, two parts the five other fields."""
    squares = 1.0
    if placement != true_placement:
        mine, true = map(notation.expand_placement, (placement, true_placement))
        squares = (sum(map(str.__eq__, mine, true)) / 64) ** _SQUARES_POWER
    return _BELOW_EXACT * (0.6 * squares + 0.4 * sum(right) / len(right))


# --------------------------------------------------------------------------------------------------
# Policy
# --------------------------------------------------------------------------------------------------
def win_probability(cp: float) -> float:
    """Expected score of the side to move, in [0, 1], by the Lichess formula.

    Args:
        cp: Centipawns from the side to move; mates as ±(100000 - moves) reach the limits.

    Source: https://lichess.org/page/accuracy

    >>> win_probability(0)
    0.5
    """
    return 0.5 + 0.5 * (2 / (1 + math.exp(-0.00368208 * max(-MATE_CP, min(MATE_CP, cp)))) - 1)


def move_accuracy(loss: float) -> float:
    """Quality of a move by the win probability that it loses, in [0, 1].

    Lichess's accuracy: a loss of 0.1 gives 0.64, of 0.2 gives 0.40, of 0.5 gives 0.09.

    Args:
        loss: Win probability of the best move less that of the move played, in [0, 1].

    Source: https://lichess.org/page/accuracy
    """
    if loss <= 0:
        return 1.0
    percent = 103.1668100711649 * math.exp(-0.04354415386753951 * 100 * loss) - 3.166924740191411
    return max(0.0, min(1.0, percent / 100))


def score_policy(values: Mapping[str, int], completion: str) -> Score:
    """Score a policy answer against the values of all legal moves.

    Components:

    - `format`: 1 where the three sections parse.
    - `best_move`: `move_accuracy` of `B`; illegal 0.
    - `best_move_hit`: 1 where no legal move is worth more than `B`.
    - `regret`: 1 minus the win probability that `B` loses against the best move; illegal 0.
    - `rank`: share of the legal moves that are not better than `B`, itself among them; illegal 0.
    - `candidates`: share of the engine's top five (or of all legal moves, where fewer) named in `M`;
      moves as good as the fifth count as top.
    - `evaluation`: accuracy of `E`, see `_evaluation`.
    - `legality`: share of the moves named in `M` and `B` that are legal.
    - `consistency`: share of: `B` in `M`; `B` has the highest `E`; as many `E` as `M`; no move twice.

    Args:
        values: Centipawns from the side to move by move, for every legal move; not empty.
        completion: What the policy wrote; nothing in it raises.
    """
    try:
        answer = parse_policy_answer(completion)
    except NotationError:
        return _unreadable(POLICY_COMPONENTS)
    best = max(values.values())
    named = (*answer.moves, answer.best_move)
    cp = values.get(answer.best_move)
    loss = 1.0 if cp is None else win_probability(best) - win_probability(cp)
    return Score(
        MappingProxyType(
            {
                "format": 1.0,
                "best_move": move_accuracy(loss),
                "best_move_hit": float(cp == best),
                "regret": 1 - loss,
                "rank": _rank(values, cp),
                "candidates": _candidates(values, answer),
                "evaluation": _evaluation(values, answer),
                "legality": sum(move in values for move in named) / len(named),
                "consistency": _consistency(answer),
            }
        )
    )


def _rank(values: Mapping[str, int], cp: int | None) -> float:
    return 0.0 if cp is None else sum(other <= cp for other in values.values()) / len(values)


def _candidates(values: Mapping[str, int], answer: PolicyAnswer) -> float:
    wanted = min(MAX_CANDIDATES, len(values))
    threshold = sorted(values.values(), reverse=True)[wanted - 1]
    hits = sum(values.get(move, -math.inf) >= threshold for move in set(answer.moves))
    return min(hits, wanted) / wanted


def _evaluation(values: Mapping[str, int], answer: PolicyAnswer) -> float:
    """Mean over the moves named of two accuracies: in pawns, 1 / (1 + error), and in win probability.

    An illegal move, a move without evaluation and an evaluation without move give 0.
    """
    accuracies = (
        0.5 / (1 + abs(pawns - values[move] / 100))
        + 0.5 * (1 - abs(win_probability(100 * pawns) - win_probability(values[move])))
        for move, pawns in zip(answer.moves, answer.evaluations, strict=False)
        if move in values
    )
    return sum(accuracies) / max(len(answer.moves), len(answer.evaluations))


def _consistency(answer: PolicyAnswer) -> float:
    named = answer.best_move in answer.moves
    index = answer.moves.index(answer.best_move) if named else len(answer.evaluations)
    highest = index < len(answer.evaluations) and (
        answer.evaluations[index] == max(answer.evaluations)
    )
    paired = len(answer.moves) == len(answer.evaluations)
    distinct = len(set(answer.moves)) == len(answer.moves)
    return (named + highest + paired + distinct) / 4


def policy_reference(fen: str, values: Sequence[ActionValue]) -> PolicyAnswer:
    """The right answer to a policy prompt, as the data's generator writes it but with the right `B`.

    Args:
        fen: The position; it seeds the order of `M`, so the same position gives the same text.
        values: All legal moves, best first.
    """
    top = list(values[:MAX_CANDIDATES])
    random.Random(fen).shuffle(top)
    return PolicyAnswer(
        moves=tuple(value.move for value in top),
        evaluations=tuple(value.cp / 100 for value in top),
        best_move=values[0].move,
    )


WEIGHTED_POLICY = {"best_move": 0.5, "candidates": 0.3, "evaluation": 0.2}


def weighted_policy(score: Score) -> float:
    """One number of [0, 1] for a policy answer: half the best move, 30% candidates, 20% evaluations.

    The weights are those of this package's predecessors.
    """
    return math.fsum(weight * score[name] for name, weight in WEIGHTED_POLICY.items())


# --------------------------------------------------------------------------------------------------
# Fill-in
# --------------------------------------------------------------------------------------------------
def score_fill_in(prompt: FillInPrompt, completion: str) -> Score:
    """Score what was written for a mask against every answer that fits, see `fill_in`.

    Components:

    - `format`: 1 where the completion has the form of the field.
    - `exact`: 1 where it is one of the answers that fit.
    - `similarity`: 1 where exact, else 0.95 times 1 minus the normalised edit distance to the nearest
      answer.

    Args:
        prompt: The masked record.
        completion: What the policy wrote; nothing in it raises.

    Raises:
        NotationError: No answer fits, see `fill_in.truth`.
    """
    fitting = fill_in_truth.truth(prompt)
    try:
        answer = parse_fill_in_answer(prompt.field, completion)
    except NotationError:
        return _unreadable(FILL_IN_COMPONENTS)
    exact = answer in fitting
    nearest = max(Levenshtein.normalized_similarity(answer, right) for right in fitting)
    similarity = 1.0 if exact else _BELOW_EXACT * nearest
    components = {"format": 1.0, "exact": float(exact), "similarity": similarity}
    return Score(MappingProxyType(components))


# --------------------------------------------------------------------------------------------------
# Environment and policy on one scale
# --------------------------------------------------------------------------------------------------
SHAPINGS = ("graduated", "linear", "binary", "continuous")


UNREADABLE = -0.3


_POLICY_QUALITY = ("best_move", "candidates", "evaluation", "legality", "consistency")


def graduated(score: Score, shaping: str = "graduated") -> float:
    """One number of [-0.3, 1] for an answer to either of these tasks; unreadable answers get -0.3.

    With `q`, the share of fields right (environment) or the mean of the five policy components:

    - ``graduated``: the ladder 0.2 format only (q = 0), 0.4 some fields right, 0.6 most (q >= 0.5),
      0.8 near perfect (q >= 0.85: one field wrong), 1.0 exact (q = 1).
    - ``linear``: 0.2 + 0.8 q.
    - ``binary``: 1 where exact, else 0.
    - ``continuous``: as ``linear``, but a field nearly right counts in part: for the environment
      q is 0.8 state + 0.2 outcome.

    Args:
        score: Of `score_environment` or `score_policy`.
        shaping: One of `SHAPINGS`.
    """
    if not score["format"]:
        return UNREADABLE
    quality = _quality(score, partial=shaping == "continuous")
    if shaping == "binary":
        return float(quality == 1)
    if shaping != "graduated":
        return 0.2 + 0.8 * quality
    for least, rung in ((1.0, 1.0), (0.85, 0.8), (0.5, 0.6)):
        if quality >= least:
            return rung
    return 0.4 if quality > 0 else 0.2


def _quality(score: Score, partial: bool) -> float:
    if "fields" not in score.components:
        return math.fsum(score[name] for name in _POLICY_QUALITY) / len(_POLICY_QUALITY)
    if score["exact"]:
        return 1.0
    return 0.8 * score["state"] + 0.2 * score["outcome"] if partial else score["fields"]


def asymmetric(score: Score) -> float:
    """One number of [-1, 1] for an environment answer: a wrong state costs more than a suffix.

    1 where exact; 0.6 to 0.87 where the state is right and the suffix is not; from -1 to below 0 by
    edit distance of the FENs where the state is wrong; -1 where unreadable.
    """
    if score["exact"]:
        return 1.0
    if score["state"] == 1:
        return 0.6 + 0.4 * score["outcome"]
    return score["closeness"] - 1
