"""Truth of the fill-in task: every answer that is consistent with a masked record.

A record without its mask is consistent if

1. its state is a legal position as python-chess writes it (`rules.canonical_fen`), not yet drawn by the
   75-move rule;
2. its action leads exactly to its next state, reward and flags (`rules.transition`);
3. the last move of its history is its action;
4. its state agrees with the earlier moves of the history: the last of them can have led to the state,
   judged by its two squares, the halfmove clock and the en passant square; and no castling right remains
   after a move from or to the squares of its king and rook;
5. a complete history leads to its state. A history is complete if it has as many moves before the action
   as the state's counters say. It starts at the standard start; only a record with no move before the
   action may start elsewhere, if the visible part of its state shows that.

An incomplete history is checked by 3 and 4 only: what came before it would need retrograde analysis.
So several answers can fit: a halfmove clock before a capture, castling rights before the king's first
move, castling written as the king's two steps or as the king taking its rook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product

import chess

from ..common.errors import IllegalPositionError, NotationError, UnjudgeableError
from . import rules
from . import text as notation
from .environment import (
    parse_environment_answer,
    parse_environment_prompt,
    write_environment_answer,
    write_environment_prompt,
)
from .fill_in_text import (
    FEN_COLUMNS,
    FILL_IN_COLUMNS,
    MASK,
    fen_parts,
    fill_in_columns,
    join_fen,
    parse_fill_in_prompt,
    write_fill_in_prompt,
)
from .types import EnvironmentAnswer, EnvironmentPrompt, FillInField, FillInPrompt

_SIDE, _HALF_MOVES, _FULL_MOVES = 8, 11, 12  # of a FEN's parts


_LAST_HALF_MOVE = 149  # at 150 halfmoves the game is drawn


_DOUBLE_STEP = 2  # ranks


def answers(prompt: FillInPrompt) -> tuple[str, ...]:
    """Every answer that makes the record consistent; empty if the record is corrupt.

    The result is cached: the completions of a group share their prompt.
    """
    try:
        return truth(prompt)
    except NotationError:
        return ()


@lru_cache(maxsize=16_384)
def truth(prompt: FillInPrompt) -> tuple[str, ...]:
    """Like `answers`, but raises an error with the reason instead of returning nothing.

    Raises:
        NotationError: No answer fits, or nobody can say which do: the masked action was illegal, so any
            illegal text would fit; or a move of an incomplete history is masked.
    """
    _refuse_what_nobody_can_judge(prompt)
    found = tuple(sorted({answer for answer in _candidates(prompt) if fits(prompt, answer)}))
    if not found:
        raise UnjudgeableError("no answer is consistent with the record", _text(prompt))
    return found


def check_answer(prompt: FillInPrompt, answer: str) -> None:
    """Refuse an answer that does not fit. This is faster than `truth` if it fits.

    Args:
        prompt: The masked record.
        answer: As `fill_in_text.parse_fill_in_answer` returns it.

    Raises:
        NotationError: See `truth`, or the answer does not fit.
    """
    _refuse_what_nobody_can_judge(prompt)
    if not fits(prompt, answer):
        truth(prompt)
        raise UnjudgeableError(
            "the answer is not consistent with the record", f"{_text(prompt)} {answer}"
        )


def _refuse_what_nobody_can_judge(prompt: FillInPrompt) -> None:
    if prompt.field == "action" and prompt.truncated == "1":
        raise UnjudgeableError(
            "a masked action was illegal: any illegal text would fit", _text(prompt)
        )
    if prompt.field == "history" and _plies(prompt.state) != len(prompt.history) - 1:
        raise UnjudgeableError(
            "a masked move of an incomplete history cannot be judged", _text(prompt)
        )


_text = write_fill_in_prompt  # for messages


def fits(prompt: FillInPrompt, answer: str) -> bool:
    """Whether the record is consistent with `answer` in place of the mask; see above for the rules.

    Args:
        prompt: The masked record.
        answer: As `fill_in_text.parse_fill_in_answer` returns it.
    """
    try:
        asked, answered = filled(prompt, answer)
        board = rules.board_of(asked.fen)
        if rules.transition(asked.fen, asked.action) != answered:
            return False
    except (NotationError, IllegalPositionError):
        return False
    return (
        board.fen() == asked.fen
        and not board.is_seventyfive_moves()
        and asked.history[-1:] == (asked.action,)
        and _en_passant_agrees(board, asked)
        and last_move_agrees(board, asked.history)
        and _castling_agrees(board, asked.history)
        and _history_agrees(prompt, asked)
    )


def filled(prompt: FillInPrompt, answer: str) -> tuple[EnvironmentPrompt, EnvironmentAnswer]:
    """Replace the mask by an answer, and split the record into prompt and answer of the environment.

    Args:
        prompt: The masked record.
        answer: As `fill_in_text.parse_fill_in_answer` returns it.
    """
    columns = dict(zip(FILL_IN_COLUMNS, fill_in_columns(prompt), strict=True))
    if prompt.field == "action":
        columns["history"] = columns["history"].replace(MASK, answer)
    columns[prompt.column] = columns[prompt.column].replace(MASK, answer)
    asked, answered = ("+".join(columns[name] for name in names) for names in (_ASKED, _ANSWERED))
    return parse_environment_prompt(f"{asked}+"), parse_environment_answer(answered)


_ASKED, _ANSWERED = FILL_IN_COLUMNS[:3], FILL_IN_COLUMNS[3:]


def mask(
    asked: EnvironmentPrompt, answered: EnvironmentAnswer, column: str, part: int | None = None
) -> tuple[FillInPrompt, str]:
    """Hide a part of a record. Returns the fill-in prompt and the answer that was there.

    Args:
        asked: The environment's prompt.
        answered: The environment's answer.
        column: One of `fill_in_text.FILL_IN_COLUMNS`.
        part: Which part of a FEN or of the history, see `FillInPrompt`; None hides the whole column.

    Raises:
        NotationError: This column or part cannot be masked.
    """
    row = write_environment_prompt(asked) + write_environment_answer(answered)
    texts = row.removeprefix(notation.ENVIRONMENT_PREFIX).strip(" ").split("+")
    at = FILL_IN_COLUMNS.index(column)
    hidden, texts[at] = texts[at], MASK
    if part is not None:
        split, join = (fen_parts, join_fen) if column in FEN_COLUMNS else (str.split, " ".join)
        parts = list(split(hidden))
        hidden, parts[part] = parts[part], MASK
        texts[at] = join(parts)
    if column == "action":
        texts[2] = " ".join((*asked.history[:-1], MASK))
    return parse_fill_in_prompt(f"{notation.FILL_IN_PREFIX} {'+'.join(texts)}+"), hidden


# --------------------------------------------------------------------------------------------------
# What the history says of the state
# --------------------------------------------------------------------------------------------------
def _en_passant_agrees(board: chess.Board, asked: EnvironmentPrompt) -> bool:
    """Whether the en passant square is what the move before the action makes it."""
    if len(asked.history) < 2:
        return True
    move = _readable(asked.history[-2])
    start, end = move.from_square, move.to_square
    ranks = abs(chess.square_rank(start) - chess.square_rank(end))
    if board.piece_type_at(end) != chess.PAWN or ranks != _DOUBLE_STEP:
        return board.ep_square is None
    expected = board.copy(stack=False)
    expected.ep_square = (start + end) // 2
    return expected.fen() == asked.fen  # names the square only if a capture is legal


def last_move_agrees(board: chess.Board, history: tuple[str, ...]) -> bool:
    """Whether the move before the action can have led to the board, judged by its two squares."""
    if len(history) < 2:
        return True
    move = _readable(history[-2])
    if not move:
        return False
    start, end = move.from_square, move.to_square
    if board.piece_at(end) is None:  # castling, written as the king taking its rook
        end = chess.square(6 if end > start else 2, chess.square_rank(start))
    piece = board.piece_at(end)
    if piece is None or piece.color == board.turn or board.piece_at(start):
        return False
    if move.promotion or piece.piece_type == chess.PAWN:
        return board.halfmove_clock == 0 and move.promotion in (None, piece.piece_type)
    castled = piece.piece_type == chess.KING and abs(start - end) == 2
    return castled or start in board.attacks(end)


def _castling_agrees(board: chess.Board, history: tuple[str, ...]) -> bool:
    """Whether no move before the action touched the squares of a king and rook that may castle."""
    home = chess.SquareSet(board.castling_rights)  # of the rooks
    for rank, king in ((chess.BB_RANK_1, chess.E1), (chess.BB_RANK_8, chess.E8)):
        if home & rank:
            home.add(king)
    moves = [move for move in map(_readable, history[:-1]) if move]
    return not any(move.from_square in home or move.to_square in home for move in moves)


def _readable(text: str) -> chess.Move:
    """Read a move; the null move if it cannot be read."""
    try:
        return chess.Move.from_uci(text)
    except ValueError:
        return chess.Move.null()


def _history_agrees(prompt: FillInPrompt, asked: EnvironmentPrompt) -> bool:
    """Whether a complete history leads to the state; True if the record does not show it."""
    moves = asked.history[:-1]
    if _plies(asked.fen) != len(moves) or replay(moves) == asked.fen:
        return True
    if moves or prompt.column != "state":
        return not moves
    # No move before the action: only the state shows whether the game began at the standard start.
    assert prompt.part is not None
    start = list(fen_parts(chess.STARTING_FEN))
    start[prompt.part] = MASK
    return join_fen(start) != prompt.state


def _plies(fen: str) -> int:
    """How many moves of both sides came before a position, by its counters."""
    parts = fen_parts(fen)
    return 2 * (int(parts[_FULL_MOVES]) - 1) + (parts[_SIDE] == "b")


@lru_cache(maxsize=1_024)
def replay(moves: tuple[str, ...]) -> str | None:
    """The position after these moves from the standard start; None if one of them is illegal."""
    board = chess.Board()
    try:
        for move in moves:
            if not board.push_uci(move):  # the null move is not legal in chess
                return None
    except ValueError:
        return None
    return board.fen()


# --------------------------------------------------------------------------------------------------
# Candidates: they include every consistent answer
# --------------------------------------------------------------------------------------------------
VALUES: Mapping[FillInField, Sequence[str]] = {
    "side_to_move": "wb",
    "castling": ["".join(held) or "-" for n in range(5) for held in combinations("KQkq", n)],
    "en_passant": ["-", *map("".join, product("abcdefgh", "36"))],
    "reward": ["0.001", "0.5", "1.0", "-1.0"],
    "flags": "01",
}
"""All values of the fields that have few."""


def _candidates(prompt: FillInPrompt) -> Iterable[str]:
    if prompt.field == "action":
        return _legal_moves(prompt.state)
    if prompt.field == "history":
        return _legal_moves(replay(prompt.history[: prompt.part]))
    if prompt.column == "next_state":
        return _next_parts(prompt)
    if prompt.field == "rank":
        return _ranks(prompt)
    if prompt.field == "clocks":
        return _clocks(prompt)
    return VALUES[prompt.field]


def _legal_moves(fen: str | None) -> Iterator[str]:
    """Legal moves in UCI notation, castling in both of its notations; none without a position."""
    try:
        board = rules.board_of(fen or "")
    except IllegalPositionError:
        return
    for move in board.legal_moves:
        yield board.uci(move)
        if board.is_castling(move):
            yield board.uci(move, chess960=True)


def _next_parts(prompt: FillInPrompt) -> Iterator[str]:
    """The hidden part of the next state, which follows from the state and the action."""
    try:
        fen = rules.transition(prompt.state, prompt.action).fen
    except IllegalPositionError:
        return
    yield fen if prompt.part is None else fen_parts(fen)[prompt.part]


def _clocks(prompt: FillInPrompt) -> Iterable[str]:
    assert prompt.part is not None
    after = int(fen_parts(prompt.next_state)[prompt.part])
    if prompt.part == _HALF_MOVES and after == 0:
        return map(str, range(_LAST_HALF_MOVE + 1))
    return str(after - 1), str(after)


_BEFORE_CASTLING = ({4: "k", 5: ".", 6: ".", 7: "r"}, {0: "r", 2: ".", 3: ".", 4: "k"})  # by file


def _ranks(prompt: FillInPrompt) -> Iterator[str]:
    """Candidates for a rank of the state: any contents where the action may have changed it."""
    assert prompt.part is not None
    after = notation.expand_placement(prompt.next_state.split(" ")[0])
    rank = after[8 * prompt.part : 8 * prompt.part + 8]
    changed: dict[int, Iterable[str]] = {}
    if move := _readable(prompt.action):
        start, end = map(chess.square_mirror, (move.from_square, move.to_square))
        passed = start - start % 8 + end % 8  # where a pawn is taken in passing
        for square in (start, end, passed):
            if square // 8 == prompt.part:
                changed[square % 8] = ".pnbrqkPNBRQK"
    sides = str.lower, str.upper
    castled = ({f: side(c) for f, c in held.items()} for held in _BEFORE_CASTLING for side in sides)
    tried: list[Mapping[int, Iterable[str]]] = [changed, *castled]
    for contents in tried:
        for squares in product(*(contents.get(file, rank[file]) for file in range(8))):
            yield notation.contract_rank("".join(squares))
