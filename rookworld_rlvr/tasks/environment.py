"""The environment task: simulate one move. python-chess computes the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from rapidfuzz.distance import LCSseq, Levenshtein

from ..common.errors import IllegalPositionError, NotationError
from . import rules
from . import text as notation
from .task import BELOW_EXACT, Component, Metric, Row, Sampling, Task
from .types import EnvironmentAnswer, EnvironmentPrompt, Score, Values


def write_environment_prompt(prompt: EnvironmentPrompt) -> str:
    """Write ``A: state+action+history+``."""
    return f"{notation.ENVIRONMENT_PREFIX} {prompt.fen}+{prompt.action}+{' '.join(prompt.history)}+"


def parse_environment_prompt(text: str) -> EnvironmentPrompt:
    """Read ``A: state+action+history+``; the prefix may be missing, the last ``+`` may not.

    The action is kept as written: how to answer an unreadable action is part of the task. Commas between
    moves of the history are read as spaces.

    Raises:
        NotationError: There are not three fields, the state is not a FEN, or the history has more than
            ten moves.
    """
    body = notation.clean(text).removeprefix(notation.ENVIRONMENT_PREFIX)
    fields = body.split("+")
    if len(fields) != 4 or fields[3].strip(" "):
        raise NotationError("not the three fields 'state+action+history+'", body)
    history = tuple(item for item in fields[2].replace(",", " ").split(" ") if item)
    if len(history) > notation.MAX_HISTORY:
        raise NotationError(f"more than {notation.MAX_HISTORY} moves of history", body)
    return EnvironmentPrompt(notation.parse_fen(fields[0]), fields[1].strip(" "), history)


def write_environment_answer(answer: EnvironmentAnswer) -> str:
    """Write ``next_state+reward+terminated+truncated``.

    >>> write_environment_answer(
    ...     EnvironmentAnswer("8/8/8/8/8/4k3/8/4K3 w - - 0 1", 0.5, True, False)
    ... )
    '8/8/8/8/8/4k3/8/4K3 w - - 0 1+0.5+1+0'
    """
    flags = f"{int(answer.terminated)}+{int(answer.truncated)}"
    return f"{answer.fen}+{notation.write_decimal(answer.reward)}+{flags}"


def parse_environment_answer(
    text: str, read_fen: Callable[[str], str] = notation.parse_fen
) -> EnvironmentAnswer:
    """Read the four fields of an environment answer.

    Args:
        text: What was written.
        read_fen: Checks the form of the FEN; `text.parse_loose_fen` is less strict.

    Raises:
        NotationError: There are not four fields, or one of them is not a FEN, a number or a flag.
    """
    body = notation.clean_answer(text)
    fields = [field.strip(" ") for field in body.split("+", 4)]
    if len(fields) != 4:
        raise NotationError("not the four fields 'next_state+reward+terminated+truncated'", body)
    for flag in fields[2:]:
        if flag not in ("0", "1"):
            raise NotationError("a flag is neither 0 nor 1", flag)
    return EnvironmentAnswer(
        read_fen(fields[0]), notation.parse_decimal(fields[1]), fields[2] == "1", fields[3] == "1"
    )


def with_fen_field(answer: EnvironmentAnswer, index: int, text: str) -> EnvironmentAnswer:
    """The answer with another of its FEN's six fields."""
    fields = answer.fen.split(" ")
    fields[index] = text
    return replace(answer, fen=" ".join(fields))


def position_as_written(text: str) -> str:
    """The first four fields of an answer's FEN, whatever follows them, and however they are spaced.

    The metric of RookWorld-LM's author: a leading ``A:`` or ``P:`` is left out, too.

    >>> position_as_written(" A: 8/8/8/8/8/4k3/8/4K3\\nw -  - 0 1 + 0.5 and so on")
    '8/8/8/8/8/4k3/8/4K3 w - -'
    """
    fields = notation.clean(text).partition("+")[0].split()
    if fields[:1] in (["A:"], ["P:"]):
        del fields[0]
    return " ".join(fields[:4])


# --------------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------------
MALFORMED = 0.2
"""No `state` of an answer with a malformed board reaches this; no readable answer is below it."""


# A board left unchanged is wrong in only 2 of 64 squares: the power spreads the upper end of the range.
_SQUARES_POWER = 8


@dataclass(frozen=True, slots=True)
class _Judged:
    """What was written beside the truth."""

    completion: str
    truth: EnvironmentAnswer
    answer: EnvironmentAnswer | None  # None if it cannot be read
    right: Sequence[bool]  # of nine fields: six of the FEN, reward, two flags


@lru_cache(maxsize=16_384)  # all reward functions of a run ask for the same scores
def score_environment(fen: str, action: str, completion: str) -> Score:
    """Score an environment answer against python-chess, see `ENVIRONMENT_COMPONENTS`.

    Args:
        fen: The position, readable and legal.
        action: The action as the prompt writes it.
        completion: What the policy wrote.

    Raises:
        IllegalPositionError: `fen` is not a legal position. No `completion` raises an error.
    """
    truth = rules.transition(fen, action)
    answer, right = None, [False] * 9
    with suppress(NotationError):
        answer = parse_environment_answer(completion)
        pairs = zip(answer_fields(answer).values(), answer_fields(truth).values(), strict=True)
        right = [mine == true for mine, true in pairs]
    judged = _Judged(completion, truth, answer, right)
    return {name: component.of(judged) for name, component in ENVIRONMENT_COMPONENTS.items()}


def _format(judged: _Judged) -> float:
    return float(judged.answer is not None)


def _exact(judged: _Judged) -> float:
    return float(all(judged.right))


def _state(judged: _Judged) -> float:
    true_fields = judged.truth.fen.split(" ")
    if judged.answer is None:
        return _malformed_state(judged.completion, true_fields)
    if all(judged.right[:6]):
        return 1.0
    return _state_shape(judged.answer.fen.split(" ")[0], true_fields[0], judged.right[1:6])


def _outcome(judged: _Judged) -> float:
    return sum(judged.right[6:]) / 3


def _fields(judged: _Judged) -> float:
    return sum(judged.right) / 9


def _closeness(judged: _Judged) -> float:
    if judged.answer is None:
        return 0.0
    return Levenshtein.normalized_similarity(judged.answer.fen, judged.truth.fen)


def _position(judged: _Judged) -> float:
    true_fields = judged.truth.fen.split(" ")
    return float(position_as_written(judged.completion).split(" ") == true_fields[:4])


ENVIRONMENT_COMPONENTS: Mapping[str, Component] = {
    "exact": Component(
        "1 if the whole answer is right: six FEN fields, reward, both flags.", _exact
    ),
    "state": Component(
        "1 if the next state is right; else from 0.2 to 0.95, more for more right squares and fields. "
        "Below 0.2, by how near it is, if all can be read but the board, which is malformed (nine "
        "squares in a rank, seven ranks).",
        _state,
    ),
    "outcome": Component("Share of right values among reward, terminated and truncated.", _outcome),
    "format": Component("1 if the four fields can be read.", _format),
    "fields": Component(
        "Share of right values among the nine fields: six of the FEN, reward, two flags.",
        _fields,
        is_reward=False,
    ),
    "closeness": Component(
        "1 minus the normalised edit distance between the two FENs.", _closeness, is_reward=False
    ),
    "position": Component(
        "1 if the first four fields of the FEN are right, whatever follows, and also if the answer "
        "cannot be read otherwise, see `position_as_written`.",
        _position,
        is_reward=False,
    ),
}
"""The numbers of a score."""


def _state_shape(placement: str, true_placement: str, right: Sequence[bool]) -> float:
    """The score of a wrong state, from 0.2 to 0.95, by right squares and fields, see `_share_right`."""
    squares = 1.0
    if placement != true_placement:
        mine, true = map(notation.expand_placement, (placement, true_placement))
        squares = (sum(map(str.__eq__, mine, true)) / 64) ** _SQUARES_POWER
    return MALFORMED + (BELOW_EXACT - MALFORMED) * _share_right(squares, right)


def _malformed_state(completion: str, true_fields: Sequence[str]) -> float:
    """The score of an answer with a malformed board, below 0.2; 0 if more cannot be read.

    The board counts half by its ranks that are right, in their order, half by the edit distance of all
    its squares: so an answer with nine squares in a rank is better than one with ten.
    """
    try:
        fields = parse_environment_answer(completion, notation.parse_loose_fen).fen.split(" ")
    except NotationError:
        return 0.0
    ranks, true_ranks = fields[0].split("/"), true_fields[0].split("/")
    in_order = LCSseq.normalized_similarity(ranks, true_ranks)
    near = Levenshtein.normalized_similarity(
        *("/".join(map(notation.expand_placement, some)) for some in (ranks, true_ranks))
    )
    right = [mine == true for mine, true in zip(fields[1:], true_fields[1:], strict=True)]
    return MALFORMED * _share_right((in_order + near) / 2, right)


def _share_right(board: float, right: Sequence[bool]) -> float:
    """60% by the board, 40% by the five other fields of the FEN."""
    return 0.6 * board + 0.4 * sum(right) / len(right)


@lru_cache(maxsize=4_096)
def _judged_prompt(text: str) -> EnvironmentPrompt | None:
    """Parse a prompt; None if it is malformed or its position is illegal, so that nothing is scored."""
    try:
        prompt = parse_environment_prompt(text)
        rules.transition(prompt.fen, prompt.action)
    except (NotationError, IllegalPositionError):
        return None
    return prompt


# --------------------------------------------------------------------------------------------------
# The task
# --------------------------------------------------------------------------------------------------
class EnvironmentTask(Task):
    """``A: state+action+history+``, answered by ``next_state+reward+terminated+truncated``."""

    name = "environment"
    prefix = notation.ENVIRONMENT_PREFIX
    ability = "simulates the board (`A:` prompts)"
    components = ENVIRONMENT_COMPONENTS
    metrics: ClassVar = {name: Metric(name) for name in ("exact", "state", "position", "format")}
    quality_words = "mean of next state and outcome"
    sampling = Sampling(temperature=0.95, top_p=0.95)  # what RookWorld-LM's authors settled on
    is_default = True

    def split(self, row: str) -> tuple[str, str]:
        """See `Task`."""
        fields = row.split("+", 3)
        if len(fields) < 4:
            raise NotationError("fewer than seven fields in the environment row", row)
        prompt = parse_environment_prompt("+".join(fields[:3]) + "+")
        answer = parse_environment_answer(fields[3])
        return write_environment_prompt(prompt), write_environment_answer(answer)

    def parse_answer(self, prompt: str, completion: str) -> EnvironmentAnswer:
        """See `Task`."""
        return parse_environment_answer(completion)

    def position(self, prompt: str) -> EnvironmentPrompt:
        """See `Task`."""
        return parse_environment_prompt(prompt)

    def ask(self, position: EnvironmentPrompt) -> str | None:
        """See `Task`; None without a move to make."""
        return write_environment_prompt(position) if position.action else None

    def read_prompt(self, text: str) -> str:
        """See `Task`."""
        return write_environment_prompt(parse_environment_prompt(text))

    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """See `Task`."""
        asked = _judged_prompt(prompt)
        return None if asked is None else score_environment(asked.fen, asked.action, completion)

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """See `Task`: the fields that are wrong.

        If the answer is wrong about whether the move is legal, that is the only error: the rest follows.
        """
        asked = _judged_prompt(prompt)
        if asked is None:
            return ()
        answer = self.answer_or_fault(prompt, completion)
        if isinstance(answer, NotationError):
            return ("malformed",)
        truth = rules.transition(asked.fen, asked.action)
        if answer.truncated != truth.truncated:
            return ("illegal move",)
        return wrong_fields(answer, truth)

    def truth(self, prompt: str, values: Values | None = None) -> str:
        """See `Task`."""
        asked = parse_environment_prompt(prompt)
        return write_environment_answer(rules.transition(asked.fen, asked.action))

    def guess(self, prompt: str, draw: random.Random) -> str:
        """The answer to a random legal move instead of the action."""
        fen = parse_environment_prompt(prompt).fen
        return write_environment_answer(rules.transition(fen, draw.choice(rules.legal_moves(fen))))

    def quality(self, score: Score) -> float:
        """See `Task`."""
        return (score["state"] + score["outcome"]) / 2

    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """See `Task`: the predicted board, and beside it the true one.

        Wrong squares are red on the left and green on the right, the en passant square among them; the
        caption names the wrong fields, and what is right.
        """
        from .boards import environment_board  # only pictures need it

        truth = rules.transition(row["fen"], row["action"])
        answer = self.answer_or_fault(row["prompt"], completion)
        wrong = [] if isinstance(answer, NotationError) else _in_words(answer, truth)
        return environment_board(row, answer, truth, wrong)


_FIELDS = ("board", "side to move", "castling", "en passant", "halfmoves", "move number")


def answer_fields(answer: EnvironmentAnswer) -> dict[str, str | float | bool]:
    """The nine fields of an answer by name: six fields of the FEN, reward, two flags."""
    return {
        **dict(zip(_FIELDS, answer.fen.split(" "), strict=True)),
        "reward": answer.reward,
        "terminated": answer.terminated,
        "truncated": answer.truncated,
    }


def wrong_fields(answer: EnvironmentAnswer, truth: EnvironmentAnswer) -> list[str]:
    """The fields of an answer that are wrong, by the names of `answer_fields`."""
    true = answer_fields(truth)
    return [name for name, mine in answer_fields(answer).items() if mine != true[name]]


def _in_words(answer: EnvironmentAnswer, truth: EnvironmentAnswer) -> list[str]:
    """Each wrong field with its contents; of a board only that it is wrong."""
    said, right = answer_fields(answer), answer_fields(truth)
    return [
        name if name == _FIELDS[0] else f"{name} {said[name]} (right: {right[name]})"
        for name in wrong_fields(answer, truth)
    ]


ENVIRONMENT = EnvironmentTask()
