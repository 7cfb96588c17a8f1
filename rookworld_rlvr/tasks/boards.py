"""Answers as pictures: a position with the moves named in it, a predicted board beside the true one.

Every function returns one SVG element as text, a few kilobytes, that needs no style sheet, no font
file and no network: for a web page, a W&B table, a file. Pieces and squares are python-chess's
drawing; what the model wrote never raises, an answer that cannot be read says so in the picture.

======  =======================================================================================
colour  what
======  =======================================================================================
blue    the model's: `M` thin, `B` strong; dashed where the move is illegal
green   the truth: the engine's best move, the squares as they should be
red     the squares that the model has wrong
grey    the action of an environment prompt, or of a record
======  =======================================================================================
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess.svg

from ..common.errors import NotationError
from . import fill_in_truth, rules
from . import text as notation
from .environment import parse_environment_answer
from .fill_in import parse_fill_in_answer, parse_fill_in_prompt
from .policy import parse_policy_answer
from .types import EnvironmentAnswer, EnvironmentPrompt, FillInPrompt

BOARD_SIZE = 200  # pixels of a board's side


_SIDE = 8 * chess.svg.SQUARE_SIZE  # of a board, in the picture's own units


_LINE = 23  # of a caption


_LETTERS = 38  # on it


_GAP = 12


_MODEL, _TRUTH, _ACTION, _WRONG = "#1f5fbf", "#1c8f4d", "#5b6470", "#d42a1e"


_FEN_FIELDS = ("board", "side to move", "castling", "en passant", "halfmoves", "move number")


_NEEDLESS = re.compile(r'<desc>.*?</desc>| class="[^"]*"| stroke="none"| xlink:href="[^"]*"', re.S)


@dataclass(frozen=True, slots=True)
class Arrow:
    """A move drawn on a board; one square twice is drawn as a circle."""

    move: str  # UCI
    colour: str = _ACTION
    width: float = 5.0  # a square has 45
    dashed: bool = False


def position_board(
    fen: str,
    arrows: Iterable[Arrow] = (),
    *,
    size: int = BOARD_SIZE,
    caption: str = "",
) -> str:
    """A position, seen from the side to move.

    Args:
        fen: The position.
        arrows: Drawn over the pieces, the later ones on top.
        size: Pixels of the board's side; a caption's one or two lines come below.
        caption: A few words under the board, none where empty.

    Raises:
        IllegalPositionError: `fen` is no position.
    """
    board = rules.board_of(fen)
    drawn = _board(board, board.turn, arrows)
    return _picture([drawn], [caption] if caption else [], caption or fen, size)


def policy_board(
    fen: str, completion: str, values: Mapping[str, int] | None = None, size: int = BOARD_SIZE
) -> str:
    """A policy answer: the position, the model's moves and the engine's best.

    Args:
        fen: The position.
        completion: What the model wrote.
        values: Centipawns from the side to move by legal move; None leaves the engine out.
        size: Pixels of the board's side.

    Raises:
        IllegalPositionError: `fen` is no position. Nothing in `completion` raises.
    """
    try:
        answer = parse_policy_answer(completion)
    except NotationError as error:
        best = _best(values)
        arrows = [Arrow(best, _TRUTH, 13)] if best else []
        words = f"unreadable: {error.reason}"
        return position_board(fen, arrows, size=size, caption=words)
    best = _best(values, answer.best_move)
    legal = rules.legal_moves(fen)
    arrows = [Arrow(best, _TRUTH, 13)] if best else []
    arrows += [
        Arrow(move, _MODEL, width, dashed=move not in legal)
        for move, width in (*((move, 3) for move in answer.moves), (answer.best_move, 7))
    ]
    words = f"B {answer.best_move}" + ("" if answer.best_move in legal else " (illegal)")
    if best is not None:
        words += ": best" if best == answer.best_move else f", engine {best}"
    return position_board(fen, arrows, size=size, caption=words)


def environment_boards(fen: str, action: str, completion: str, size: int = BOARD_SIZE) -> str:
    """An environment answer: the predicted board, and beside it the true one.

    Wrong squares are red on the left and green on the right; what else is wrong stands below.

    Args:
        fen: The position before the action.
        action: The action as the prompt has it.
        completion: What the model wrote.
        size: Pixels of one board's side; the picture is twice as wide.

    Raises:
        IllegalPositionError: `fen` is no position. Nothing in `completion` raises.
    """
    truth = rules.transition(fen, action)
    turn = rules.board_of(fen).turn
    true_placement = _placement(truth.fen)
    arrows = action_arrows(action)
    try:
        answer = parse_environment_answer(completion)
    except NotationError as error:
        words = f"unreadable: {error.reason}"
        boards = [_blank("unreadable"), _board(_pieces(true_placement), turn, arrows)]
        return _picture(boards, [words, f"python-chess, after {action}"], words, size)
    placement = _placement(answer.fen)
    wrong = [s for s in chess.SQUARES if placement[s] != true_placement[s]]
    boards = [
        _board(_pieces(placement), turn, fill=dict.fromkeys(wrong, _WRONG + "b0")),
        _board(_pieces(true_placement), turn, arrows, dict.fromkeys(wrong, _TRUTH + "b0")),
    ]
    words = _faults(answer, truth, len(wrong))
    return _picture(boards, [words, f"python-chess, after {action}"], words, size)


def fill_in_boards(prompt: str, completion: str, size: int = BOARD_SIZE) -> str:
    """A fill-in answer: the record filled in with it, and beside it with an answer that fits.

    The board is the next state's where that is hidden or a part of it, else the state's. Wrong squares
    are red on the left and green on the right, a hidden action is an arrow in the colour of its side;
    what else is hidden stands below.

    Args:
        prompt: The masked record.
        completion: What the model wrote.
        size: Pixels of one board's side; the picture is twice as wide.

    Raises:
        NotationError: `prompt` is no fill-in prompt. Nothing in `completion` raises.
    """
    record = parse_fill_in_prompt(prompt)
    fits = fill_in_truth.answers(record)
    if not fits:
        words = f"no {_field(record)} fits the record"
        return _picture([_blank("nothing fits")], [words], words, size)
    try:
        answer = parse_fill_in_answer(record.field, completion)
    except NotationError as error:
        words, best = f"unreadable: {error.reason}", fits[0]
        boards = [_blank("unreadable"), _record_board(record, fits[0], fits[0], _TRUTH)]
    else:
        best = answer if answer in fits else fits[0]
        words = f"{'right' if answer in fits else 'wrong'}: {_field(record)} {answer}"
        boards = [
            _record_board(record, answer, best, _MODEL, _WRONG),
            _record_board(record, best, answer, _TRUTH, _TRUTH),
        ]
    others = f", or {len(fits) - 1} more" if len(fits) > 1 else ""
    return _picture(boards, [words, f"fits: {best}{others}"], words, size)


def action_arrows(action: str | None) -> list[Arrow]:
    """The action of an environment prompt; none where there is none, or none that can be read."""
    try:
        return [Arrow(notation.parse_move(action or ""))]
    except NotationError:  # an unreadable action is a task, and no arrow
        return []


def answer_board(
    row: Mapping[str, Any],
    completion: str,
    values: Mapping[str, int] | None = None,
    size: int = BOARD_SIZE,
) -> str:
    """The picture that suits a row's task.

    Args:
        row: With the columns `task`, `prompt`, `fen` and `action` that `data` documents.
        completion: What the model wrote.
        values: For policy rows, see `policy_board`.
        size: Pixels of one board's side.

    Raises:
        RookWorldError: See above.
    """
    if row["task"] == "fill_in":
        return fill_in_boards(row["prompt"], completion, size)
    if row["task"] == "environment":
        return environment_boards(row["fen"], row["action"], completion, size)
    return policy_board(row["fen"], completion, values, size)


# --------------------------------------------------------------------------------------------------
# What is drawn
# --------------------------------------------------------------------------------------------------
def _best(values: Mapping[str, int] | None, answer: str | None = None) -> str | None:
    """The move that is worth most; the answer, where none is worth more."""
    if not values:
        return None
    best = max(values, key=values.__getitem__)
    return answer if answer is not None and values.get(answer) == values[best] else best


def _placement(fen: str) -> dict[chess.Square, str]:
    """Piece letters of a FEN's board by square, ``.`` where there is none."""
    letters = notation.expand_placement(fen.split(" ")[0])
    return {chess.square_mirror(place): letter for place, letter in enumerate(letters)}


def _pieces(placement: Mapping[chess.Square, str]) -> chess.BaseBoard:
    """A board as it was written, a position or not."""
    board = chess.BaseBoard.empty()
    for square, letter in placement.items():
        if letter != ".":
            board.set_piece_at(square, chess.Piece.from_symbol(letter))
    return board


def _field(record: FillInPrompt) -> str:
    return record.field.replace("_", " ")


def _record_board(
    record: FillInPrompt, answer: str, other: str, colour: str, mark: str = ""
) -> str:
    """The board of a record as one answer fills it in, marked where another differs."""
    asked, fen = _record_position(record, answer)
    mine, theirs = _placement(fen), _placement(_record_position(record, other)[1])
    fill = dict.fromkeys((s for s in chess.SQUARES if mine[s] != theirs[s]), f"{mark}b0")
    arrows = action_arrows(asked.action)
    if record.field == "action":
        illegal = rules.transition(asked.fen, asked.action).truncated
        arrows = [Arrow(asked.action, colour, 7, dashed=illegal)]
    # Seen from the true side to move, whatever the answer says.
    true, _ = _record_position(record, fill_in_truth.answers(record)[0])
    return _board(_pieces(mine), rules.side_to_move(true.fen) == "white", arrows, fill)


def _record_position(record: FillInPrompt, answer: str) -> tuple[EnvironmentPrompt, str]:
    """What the environment was asked in a record that is filled in, and the FEN that is drawn."""
    asked, answered = fill_in_truth.filled(record, answer)
    return asked, answered.fen if record.column == "next_state" else asked.fen


def _faults(answer: EnvironmentAnswer, truth: EnvironmentAnswer, squares: int) -> str:
    """What of an answer is wrong, in one line."""
    pairs = zip(_FEN_FIELDS, answer.fen.split(" "), truth.fen.split(" "), strict=True)
    names = [name for name, mine, true in pairs if mine != true and name != "board"]
    names += [
        name
        for name in ("reward", "terminated", "truncated")
        if getattr(answer, name) != getattr(truth, name)
    ]
    if squares:
        names.insert(0, f"{squares} square{'s' if squares > 1 else ''}")
    return f"wrong: {', '.join(names)}" if names else "right"


# --------------------------------------------------------------------------------------------------
# How it is drawn
# --------------------------------------------------------------------------------------------------
def _board(
    board: chess.BaseBoard,
    orientation: chess.Color,
    arrows: Iterable[Arrow] = (),
    fill: Mapping[chess.Square, str] | None = None,
) -> str:
    drawn = chess.svg.board(
        board, orientation=orientation, fill=dict(fill or {}), size=_SIDE, coordinates=False
    )
    return _NEEDLESS.sub("", drawn) + "".join(_arrow(a, orientation) for a in arrows)


def _arrow(arrow: Arrow, orientation: chess.Color) -> str:
    """python-chess draws arrows of one width only."""
    (x, y), (to_x, to_y) = (
        _centre(chess.parse_square(name), orientation) for name in (arrow.move[:2], arrow.move[2:4])
    )
    paint = f'stroke="{arrow.colour}" stroke-width="{arrow.width:g}" opacity="0.8"'
    if arrow.dashed:
        paint += ' stroke-dasharray="9 6"'
    length = math.hypot(to_x - x, to_y - y)
    if not length:
        return f'<circle cx="{x:g}" cy="{y:g}" r="18" fill="none" {paint}/>'
    head = 8 + arrow.width
    along_x, along_y = (to_x - x) / length, (to_y - y) / length
    neck_x, neck_y = to_x - head * along_x, to_y - head * along_y
    half = 0.6 * head
    corners = (
        (to_x, to_y),
        (neck_x - half * along_y, neck_y + half * along_x),
        (neck_x + half * along_y, neck_y - half * along_x),
    )
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{neck_x:.1f}" y2="{neck_y:.1f}" {paint}/>'
        f'<polygon points="{points}" fill="{arrow.colour}" opacity="0.8"/>'
    )


def _centre(square: chess.Square, orientation: chess.Color) -> tuple[float, float]:
    column, row = chess.square_file(square), 7 - chess.square_rank(square)
    if orientation == chess.BLACK:
        column, row = 7 - column, 7 - row
    return (column + 0.5) * chess.svg.SQUARE_SIZE, (row + 0.5) * chess.svg.SQUARE_SIZE


def _blank(words: str) -> str:
    """What stands in a board's place where there is none."""
    return (
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="#d9dbde"/><text x="{_SIDE / 2:g}" '
        f'y="{_SIDE / 2:g}" text-anchor="middle" font-family="sans-serif" font-size="32" '
        f'fill="{_WRONG}">{html.escape(words)}</text>'
    )


def _picture(boards: Sequence[str], captions: Sequence[str], label: str, size: int) -> str:
    """Boards side by side, each with its caption, in one SVG element of its own colours."""
    lines = [textwrap.wrap(text, _LETTERS, max_lines=2, placeholder=" …") for text in captions]
    width = len(boards) * _SIDE + (len(boards) - 1) * _GAP
    height = _SIDE + max((_LINE * len(texts) + 8 for texts in lines), default=0)
    parts = [
        f'<g transform="translate({place * (_SIDE + _GAP)} 0)">{board}</g>'
        for place, board in enumerate(boards)
    ]
    if captions:  # on a ground of its own: pages are light or dark
        parts.insert(0, f'<rect width="{width}" height="{height}" fill="#f3f4f6"/>')
    parts += [
        f'<text x="{place * (_SIDE + _GAP) + 4}" y="{_SIDE + _LINE * number - 4}" '
        f'font-family="sans-serif" font-size="18" fill="#1c1f23">{html.escape(line)}</text>'
        for place, texts in enumerate(lines)
        for number, line in enumerate(texts, 1)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{size * width / _SIDE:.0f}" height="{size * height / _SIDE:.0f}" role="img" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )
