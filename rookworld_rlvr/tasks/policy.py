"""The policy task: analyse a position."""

from __future__ import annotations

import re

from ..common.errors import NotationError
from .text import POLICY_PREFIX, clean, parse_decimal, parse_fen, parse_move, write_decimal
from .types import PolicyAnswer, PolicyPrompt

MAX_CANDIDATES = 5


# Columns of the public data: "M:" starts at 92, "E:" at 125 and "B:" at 168 (measured on 500 rows).
_FEN_WIDTH = 88


_MOVES_WIDTH = 30


_EVALUATIONS_WIDTH = 40


_SECTIONS = re.compile(r"M:( [^:]*) E:( [^:]*) B:( [^:]*)")


def write_policy_prompt(prompt: PolicyPrompt) -> str:
    """``P: FEN`` and its padding but for the last space."""
    return f"{POLICY_PREFIX} {prompt.fen:<{_FEN_WIDTH}}"


def parse_policy_prompt(text: str) -> PolicyPrompt:
    """Read ``P: FEN`` with any padding.

    Raises:
        NotationError: No prefix, or no FEN behind it.
    """
    body = clean(text)
    if not body.startswith(POLICY_PREFIX):
        raise NotationError("a policy prompt starts with 'P:'", body)
    return PolicyPrompt(parse_fen(body[len(POLICY_PREFIX) :]))


def write_policy_answer(answer: PolicyAnswer) -> str:
    """`` M: moves E: evaluations B: move``, padded as the public data pads it."""
    moves = " ".join(answer.moves) + " "
    evaluations = " ".join(map(write_decimal, answer.evaluations)) + " "
    return f" M: {moves:<{_MOVES_WIDTH}}E: {evaluations:<{_EVALUATIONS_WIDTH}}B: {answer.best_move}"


def parse_policy_answer(text: str) -> PolicyAnswer:
    """Read the three sections ``M: E: B:``.

    As many evaluations as moves are not asked for here: `scoring` judges consistency.

    Raises:
        NotationError: A section is missing, out of order or empty, or holds what is no move or
            number.
    """
    body = clean(text)
    sections = _SECTIONS.fullmatch(body)
    if sections is None:
        raise NotationError("not the three sections 'M: … E: … B: …'", body)
    moves, evaluations, best = (
        [item for item in section.split(" ") if item] for section in sections.groups()
    )
    if not 1 <= len(moves) <= MAX_CANDIDATES:
        raise NotationError(f"section 'M:' needs 1 to {MAX_CANDIDATES} moves", body)
    if not 1 <= len(evaluations) <= MAX_CANDIDATES:
        raise NotationError(f"section 'E:' needs 1 to {MAX_CANDIDATES} evaluations", body)
    if len(best) != 1:
        raise NotationError("section 'B:' needs one move", body)
    for move in (*moves, *best):
        parse_move(move)
    return PolicyAnswer(tuple(moves), tuple(map(parse_decimal, evaluations)), best[0])
