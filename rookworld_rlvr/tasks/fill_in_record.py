"""Records with a mask: how they are written, and every answer that fits.

The truth is every answer that is consistent with the record. A record without its mask is consistent if

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

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import chess

from ..common.errors import IllegalPositionError, NotationError, UnjudgeableError
from . import environment, rules
from . import text as notation
from .types import EnvironmentAnswer, EnvironmentPrompt, FillInField


class Columns(NamedTuple):
    """The columns of a record as text; one or two of them may hold the mask."""

    state: str  # the FEN before the action
    action: str  # UCI, or any other text as it was written
    history: str  # up to ten actions, oldest first, the current action last
    next_state: str  # the FEN after the action
    reward: str
    terminated: str
    truncated: str


@dataclass(frozen=True)
class FillInPrompt:
    """``F: state+action+history+next_state+reward+terminated+truncated+`` with one part masked.

    If the action is masked, the last move of the history, which is the action, is masked too.
    """

    columns: Columns
    field: FillInField  # what is masked
    column: str  # the name of the column with the mask
    # Index of a move in the history, or of a FEN's 13 parts; None: the whole column.
    part: int | None

    @property
    def history(self) -> tuple[str, ...]:
        """The moves of the history."""
        return tuple(self.columns.history.split())


# --------------------------------------------------------------------------------------------------
# Text
# --------------------------------------------------------------------------------------------------
MASK = "[MASK]"


FEN_COLUMNS = ("state", "next_state")


FEN_FIELDS: tuple[FillInField, ...] = (
    *(("rank",) * 8),  # from rank 8 down
    "side_to_move",
    "castling",
    "en_passant",
    "clocks",  # the halfmove clock
    "clocks",  # the move number
)


_COLUMN_FIELDS: Mapping[str, FillInField] = {
    "action": "action",
    "next_state": "next_state",
    "reward": "reward",
    "terminated": "flags",
    "truncated": "flags",
}


_VALUES: Mapping[FillInField, Sequence[str]] = {
    "side_to_move": ["w", "b"],
    "castling": ["".join(some) or "-" for n in range(5) for some in combinations("KQkq", n)],
    "en_passant": ["-", *map("".join, product("abcdefgh", "36"))],
    "reward": ["0.001", "0.5", "1.0", "-1.0"],
    "flags": ["0", "1"],
}
"""All values of the fields that have few."""


_UNMASKED: Mapping[FillInField, str] = {  # a valid value for each field
    **{field: values[0] for field, values in _VALUES.items()},
    "action": "e2e4",
    "next_state": "8/8/8/8/8/8/8/8 w - - 0 1",
    "rank": "8",
    "clocks": "0",
    "history": "e2e4",
}


def fen_parts(fen: str) -> tuple[str, ...]:
    """The 13 parts of a FEN: the ranks from 8 to 1, side, castling, en passant, two clocks.

    >>> fen_parts("8/8/8/8/8/4k3/8/4K3 w - - 0 1")[5:9]
    ('4k3', '8', '4K3', 'w')
    """
    placement, *rest = fen.split(" ")
    return (*placement.split("/"), *rest)


def join_fen(parts: Sequence[str]) -> str:
    """Join the parts of `fen_parts` to a FEN."""
    return " ".join(("/".join(parts[:8]), *parts[8:]))


def write_fill_in_prompt(prompt: FillInPrompt) -> str:
    """Write ``F: state+action+history+next_state+reward+terminated+truncated+`` with a mask in it."""
    return f"{notation.FILL_IN_PREFIX} {'+'.join(prompt.columns)}+"


def parse_fill_in_prompt(text: str) -> FillInPrompt:
    """Read a fill-in prompt and find what is masked.

    ``[MASK]`` hides one of: the action, the whole next state, one of the 13 parts of either FEN, a move
    of the history, the reward, a flag. If it hides the action, it also hides the last move of the
    history, which is the action. Everything else has the form of an environment row.

    Raises:
        NotationError: There are not seven columns, one of them is malformed, there is not exactly one
            mask, or the mask hides something else.
    """
    body = notation.clean(text)
    columns = [
        column.strip(" ") for column in body.removeprefix(notation.FILL_IN_PREFIX).split("+")
    ]
    if not body.startswith(notation.FILL_IN_PREFIX) or len(columns) != 8 or columns[7]:
        raise NotationError("not the seven fields of a fill-in prompt after 'F:'", body)
    masked = [
        name for name, column in zip(Columns._fields, columns, strict=False) if MASK in column
    ]
    if masked == ["action", "history"] and columns[2].endswith(MASK) and body.count(MASK) == 2:
        masked = ["action"]
    elif len(masked) != 1 or body.count(MASK) != 1 or masked == ["action"]:
        raise NotationError(f"not one {MASK} (of the action two, one ends the history)", body)
    (column,) = masked
    field, part = _masked_part(column, columns[Columns._fields.index(column)])
    asked, answered = filled(columns, _UNMASKED[field])
    return mask(asked, answered, column, part)[0]


def write_fill_in_answer(answer: str) -> str:
    """Write an answer, after a space that keeps its tokens apart from those of the prompt.

    >>> write_fill_in_answer("e2e4")
    ' e2e4'
    """
    return f" {answer}"


def parse_fill_in_answer(field: FillInField, text: str) -> str:
    """Check the form of an answer and return it as a record writes it.

    >>> parse_fill_in_answer("reward", " 1 ")
    '1.0'

    Raises:
        NotationError: The text does not have the form of the field.
    """
    text = notation.clean_answer(text)
    match field:
        case "action" | "history":
            return notation.parse_move(text)
        case "next_state":
            return notation.parse_fen(text)
        case "reward":
            return notation.write_decimal(notation.parse_decimal(text))
        case "rank":
            is_value = notation.is_rank(text)
        case "clocks":
            is_value = notation.COUNTER.fullmatch(text) is not None
        case _:
            is_value = text in _VALUES[field]
    if not is_value:
        raise NotationError(f"not a value of the field {field}", text)
    return text


def _masked_part(column: str, text: str) -> tuple[FillInField, int | None]:
    """The field that the mask hides, and which part of its column that is."""
    if text == MASK and column in _COLUMN_FIELDS:
        return _COLUMN_FIELDS[column], None
    parts = re.split(" +|/", text) if column in FEN_COLUMNS else text.split()
    if MASK in parts:
        part = parts.index(MASK)
        if column in FEN_COLUMNS and len(parts) == len(FEN_FIELDS):
            return FEN_FIELDS[part], part
        if column == "history":
            if part == len(parts) - 1:
                raise NotationError(
                    f"{MASK} hides the last move of the history, not the action", text
                )
            return "history", part
    raise NotationError(f"{MASK} does not hide a field or a part of one in column {column}", text)


# --------------------------------------------------------------------------------------------------
# Truth
# --------------------------------------------------------------------------------------------------
_SIDE, _HALF_MOVES, _FULL_MOVES = 8, 11, 12  # of a FEN's parts


_LAST_HALF_MOVE = 149  # at 150 halfmoves the game is drawn


_DOUBLE_STEP = 2  # ranks


@lru_cache(maxsize=16_384)
def fitting(prompt: FillInPrompt) -> tuple[str, ...]:
    """Every answer that makes the record consistent, see above.

    The result is cached: the completions of a group share their prompt.

    Raises:
        NotationError: No answer fits, or nobody can say which do: the masked action was illegal, so any
            illegal text would fit; or a move of an incomplete history is masked.
    """
    if prompt.field == "action" and prompt.columns.truncated == "1":
        reason = "a masked action was illegal: any illegal text would fit"
    elif prompt.field == "history" and _plies(prompt.columns.state) != len(prompt.history) - 1:
        reason = "a masked move of an incomplete history cannot be judged"
    else:
        with suppress(IllegalPositionError):
            if found := {answer for answer in _candidates(prompt) if fits(prompt, answer)}:
                return tuple(sorted(found))
        reason = "no answer is consistent with the record"
    raise UnjudgeableError(reason, write_fill_in_prompt(prompt))


def check_answer(prompt: FillInPrompt, answer: str) -> None:
    """Refuse an answer, as `parse_fill_in_answer` returns it, that does not fit.

    Raises:
        NotationError: See `fitting`, or the answer does not fit.
    """
    if answer not in fitting(prompt):
        raise UnjudgeableError(
            "the answer is not consistent with the record",
            f"{write_fill_in_prompt(prompt)} {answer}",
        )


def fits(prompt: FillInPrompt, answer: str) -> bool:
    """Whether the record is consistent with `answer` in place of the mask; see above for the rules.

    Args:
        prompt: The masked record.
        answer: As `parse_fill_in_answer` returns it.
    """
    try:
        asked, answered = filled(prompt.columns, answer)
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


def filled(columns: Sequence[str], answer: str) -> tuple[EnvironmentPrompt, EnvironmentAnswer]:
    """Replace the mask by an answer, and split the record into prompt and answer of the environment.

    Args:
        columns: The seven of a masked record.
        answer: As `parse_fill_in_answer` returns it.
    """
    shown = [column.replace(MASK, answer) for column in columns]
    asked = environment.parse_environment_prompt("+".join(shown[:3]) + "+")
    return asked, environment.parse_environment_answer("+".join(shown[3:7]))


def mask(
    asked: EnvironmentPrompt, answered: EnvironmentAnswer, column: str, part: int | None = None
) -> tuple[FillInPrompt, str]:
    """Hide a part of a record. Returns the fill-in prompt and the answer that was there.

    Args:
        asked: The environment's prompt.
        answered: The environment's answer.
        column: One of `Columns`.
        part: Which part of a FEN or of the history, see `FillInPrompt`; None hides the whole column.

    Raises:
        NotationError: This column or part cannot be masked.
    """
    row = environment.write_environment_prompt(asked)
    row += environment.write_environment_answer(answered)
    columns = Columns(*row.removeprefix(notation.ENVIRONMENT_PREFIX).strip(" ").split("+"))
    hidden, left = getattr(columns, column), MASK
    if part is not None:
        split, join = (fen_parts, join_fen) if column in FEN_COLUMNS else (str.split, " ".join)
        parts = list(split(hidden))
        hidden, parts[part] = parts[part], MASK
        left = join(parts)
    if column == "action":
        columns = columns._replace(history=" ".join((*asked.history[:-1], MASK)))
    field, _ = _masked_part(column, left)
    return FillInPrompt(columns._replace(**{column: left}), field, column, part), hidden


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
    is_double = board.piece_type_at(end) == chess.PAWN and ranks == _DOUBLE_STEP
    expected = board.copy(stack=False)
    expected.ep_square = (start + end) // 2 if is_double else None
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
    hidden = fen_parts(chess.STARTING_FEN)[prompt.part]
    return prompt.columns.state.replace(MASK, hidden) != chess.STARTING_FEN


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
def _candidates(prompt: FillInPrompt) -> Iterable[str]:
    """Answers to try.

    Raises:
        IllegalPositionError: The record has a position that is not legal, so no answer fits.
    """
    if prompt.field == "action":
        return _legal_moves(prompt.columns.state)
    if prompt.field == "history":
        return _legal_moves(replay(prompt.history[: prompt.part]) or "")
    if prompt.column == "next_state":
        fen = rules.transition(prompt.columns.state, prompt.columns.action).fen
        return [fen if prompt.part is None else fen_parts(fen)[prompt.part]]
    if prompt.field == "rank":
        return _ranks(prompt)
    if prompt.field == "clocks":
        return _clocks(prompt)
    return _VALUES[prompt.field]


def _legal_moves(fen: str) -> Iterator[str]:
    """Legal moves in UCI notation, castling in both of its notations."""
    board = rules.board_of(fen)
    for move in board.legal_moves:
        yield board.uci(move)
        if board.is_castling(move):
            yield board.uci(move, chess960=True)


def _clocks(prompt: FillInPrompt) -> Iterable[str]:
    assert prompt.part is not None
    after = int(fen_parts(prompt.columns.next_state)[prompt.part])
    if prompt.part == _HALF_MOVES and after == 0:
        return map(str, range(_LAST_HALF_MOVE + 1))
    return str(after - 1), str(after)


_BEFORE_CASTLING = ({4: "k", 5: ".", 6: ".", 7: "r"}, {0: "r", 2: ".", 3: ".", 4: "k"})  # by file


def _ranks(prompt: FillInPrompt) -> Iterator[str]:
    """Candidates for a rank of the state: any contents where the action may have changed it."""
    assert prompt.part is not None
    after = notation.expand_placement(prompt.columns.next_state.split(" ")[0])
    rank = after[8 * prompt.part : 8 * prompt.part + 8]
    changed: dict[int, Iterable[str]] = {}
    if move := _readable(prompt.columns.action):
        start, end = map(chess.square_mirror, (move.from_square, move.to_square))
        passed = start - start % 8 + end % 8  # where a pawn is taken in passing
        for square in (start, end, passed):
            if square // 8 == prompt.part:
                changed[square % 8] = ".pnbrqkPNBRQK"
    sides = str.lower, str.upper
    castled = (
        {f: side(c) for f, c in before.items()} for before in _BEFORE_CASTLING for side in sides
    )
    tried: list[Mapping[int, Iterable[str]]] = [changed, *castled]
    for contents in tried:
        for squares in product(*(contents.get(file, rank[file]) for file in range(8))):
            yield notation.contract_rank("".join(squares))


@lru_cache(maxsize=4_096)
def judged_prompt(text: str) -> FillInPrompt | None:
    """Parse a prompt; None if it is malformed or no answer fits, so that nothing is scored."""
    try:
        prompt = parse_fill_in_prompt(text)
        fitting(prompt)
    except NotationError:
        return None
    return prompt


# --------------------------------------------------------------------------------------------------
# Chance
# --------------------------------------------------------------------------------------------------
def guesses(prompt: FillInPrompt) -> Sequence[str]:
    """The answers that a random guess chooses from: texts that have the form of the hidden field.

    They are the legal moves, the states after a legal move, the ranks of the other board, clocks below
    100, or all values of the other fields.
    """
    if prompt.field == "action":
        return rules.legal_moves(prompt.columns.state)
    if prompt.field == "history":
        before = replay(prompt.history[: prompt.part])
        return rules.legal_moves(before) if before is not None else []
    if prompt.field == "next_state":
        moves = rules.legal_moves(prompt.columns.state)
        return [rules.transition(prompt.columns.state, move).fen for move in moves]
    if prompt.field == "rank":
        other = prompt.columns.next_state if prompt.column == "state" else prompt.columns.state
        return fen_parts(other)[:8]
    if prompt.field == "clocks":
        return [str(number) for number in range(100)]
    return _VALUES[prompt.field]
