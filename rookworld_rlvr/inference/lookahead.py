"""Look a move ahead with the model's own answers: where a candidate leads, and what that is worth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import chess

from ..tasks import positions, rules
from ..tasks.environment import parse_environment_answer
from ..tasks.policy import parse_policy_answer, write_policy_answer, write_policy_prompt
from ..tasks.types import MATE_CP, EnvironmentAnswer, PolicyAnswer
from .replies import environment_prompt, legal_candidates, reply_of

Complete = Callable[[Sequence[str]], list[str]]
"""Prompts → a completion of each."""

_MATE_PAWNS = (MATE_CP - 1) / 100  # a mate in one, as in the data


def look_ahead(
    boards: Sequence[chess.Board], answers: Sequence[str], complete: Complete
) -> list[str]:
    """Value the candidates of answers by the positions that the model says they lead to.

    For each candidate of `M` the model is asked for the next state (`A:`), and in that state for the
    opponent's candidates (`P:`). The candidate is worth the opposite of the highest of their `E`; or,
    if the model says that the game is over, a mate or a draw. This is a minimax of two plies with the
    model as the board and as the evaluation: it asks up to eleven times instead of once. python-chess
    only removes illegal candidates beforehand, as a program that plays does.

    Args:
        boards: `N` positions. The model is told the last moves on them, as in its data.
        answers: What it says of each position.
        complete: Asks the model.

    Returns:
        `N` answers of the same form: `M` has the candidates that got a value, in their order, `E` has
        the values, and `B` is the first with the highest. An answer without any stays as it is. No value
        has a candidate after which the model cannot be read, or that it says is illegal.
    """
    records = [reply_of(answer, parse_policy_answer).record for answer in answers]
    moves = [
        [*legal_candidates(board, record)] if record else []
        for board, record in zip(boards, records, strict=True)
    ]
    pairs = [(board, move) for board, its in zip(boards, moves, strict=True) for move in its]
    values = iter(_values(pairs, complete))
    valued = [dict(zip(its, itertools.islice(values, len(its)), strict=True)) for its in moves]
    return [_revalued(*pair) for pair in zip(answers, valued, strict=True)]


def _values(
    pairs: Sequence[tuple[chess.Board, chess.Move]], complete: Complete
) -> list[float | None]:
    """What each move is worth to the side that plays it, in pawns; None where there is no value."""
    if not pairs:
        return []
    states = complete([environment_prompt(board, move, board.move_stack) for board, move in pairs])
    values: list[float | None] = [None] * len(pairs)
    asked: dict[int, str] = {}
    for place, ((board, _), text) in enumerate(zip(pairs, states, strict=True)):
        state = reply_of(text, parse_environment_answer).record
        if state is None or _is_refused(board, state):
            continue
        if state.terminated:
            values[place] = _MATE_PAWNS if state.reward == rules.REWARD_CHECKMATE else 0.0
        else:
            asked[place] = write_policy_prompt(state.fen)
    replies = complete([*asked.values()]) if asked else []
    for place, text in zip(asked, replies, strict=True):
        reply = reply_of(text, parse_policy_answer).record
        if reply is not None:
            values[place] = 0.0 - max(reply.evaluations)  # -0.0 would look odd
    return values


def _is_refused(board: chess.Board, state: EnvironmentAnswer) -> bool:
    """Whether the model says that a move is illegal: the same side is to move, and would be asked."""
    return state.truncated or positions.side_to_move(state.fen) == chess.COLOR_NAMES[board.turn]


def _revalued(answer: str, values: Mapping[chess.Move, float | None]) -> str:
    found = {move.uci(): pawns for move, pawns in values.items() if pawns is not None}
    if not found:
        return answer
    best = max(found, key=found.__getitem__)
    return write_policy_answer(PolicyAnswer((*found,), (*found.values(),), best))
