"""Answers as pictures: a position with the answer's moves, or a predicted board beside the true one.

Every function returns one SVG element as text, a few kilobytes. It needs no style sheet, font file or
network, so it can go into a web page, a W&B table or a file. python-chess draws pieces and squares. A
model's text never raises an error: if it cannot be read, the picture says so.

======  =======================================================================================
colour  what
======  =======================================================================================
blue    the model's moves: `M` faint, `B` full
green   the truth: the engine's best move, the right contents of squares
red     the squares that the model got wrong, and its illegal moves
grey    the action of an environment prompt or of a fill-in record
======  =======================================================================================
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import chess.svg
from chess.svg import Arrow

from ..common.errors import NotationError
from . import rules
from .text import contract_rank, expand_placement, parse_move
from .types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer, Values

BOARD_SIZE = 200  # pixels of a board's side


_SIDE = 8 * chess.svg.SQUARE_SIZE  # a board's side in the picture's own units


_LINE = 28  # height of a caption's line


_LETTERS = 31  # in a caption's line


_GAP = 12


MODEL, TRUTH, ACTION, WRONG = "#1f5fbf", "#1c8f4d", "#5b6470", "#d42a1e"


_NEEDLESS = re.compile(r'<desc>.*?</desc>| class="[^"]*"| stroke="none"| xlink:href="[^"]*"', re.S)


_STYLE = re.compile(r'style="([^"]*)"')  # a page's content-security policy forbids it


def arrow(move: str, colour: str) -> Arrow:
    """A move drawn on a board; a move from a square to itself is drawn as a circle.

    Args:
        move: In UCI.
        colour: As ``#rrggbb``, or ``#rrggbbaa`` for a faint one.
    """
    start, end = map(chess.parse_square, (move[:2], move[2:4]))
    return Arrow(start, end, color=colour)


def position_board(fen: str, arrows: Iterable[Arrow] = (), *, caption: str = "") -> str:
    """Draw a position, seen from the side to move.

    Args:
        fen: The position.
        arrows: Drawn over the pieces, later ones on top.
        caption: A few words for one or two lines under the board; empty for no caption.

    Raises:
        IllegalPositionError: `fen` is not a legal position.
    """
    position = rules.board_of(fen)
    drawn = draw_board(position, position.turn, arrows)
    return picture([drawn], [caption] if caption else [], caption or fen)


def policy_board(fen: str, answer: PolicyAnswer | NotationError, values: Values | None) -> str:
    """Draw a policy answer: the position, the model's moves and the engine's best.

    Args:
        fen: The position.
        answer: What the model wrote, or why it cannot be read.
        values: Values of all legal moves; without them the engine's move is not drawn.
    """
    arrows, words = policy_arrows(fen, answer, values)
    return position_board(fen, arrows, caption=words)


def policy_arrows(
    fen: str, answer: PolicyAnswer | NotationError, values: Values | None
) -> tuple[list[Arrow], str]:
    """The arrows and the caption of a policy answer, see `policy_board`.

    The engine's best move is a green arrow; if it is the answer's too, a green circle where that ends.
    """
    best = max(values, key=values.__getitem__) if values else None
    arrows = []
    if isinstance(answer, NotationError):
        words = _unreadable(answer)
    else:
        if values and best and values.get(answer.best_move) == values[best]:
            best = answer.best_move  # of equally good moves, the answer's
        legal = rules.legal_moves(fen)
        # One arrow a move: two half-transparent ones would mix their colours.
        others = [move for move in answer.moves if move not in (best, answer.best_move)]
        arrows = [
            arrow(move, (MODEL if move in legal else WRONG) + shade)
            for move, shade in (*((m, "70") for m in others), (answer.best_move, ""))
        ]
        words = f"B {answer.best_move}" + ("" if answer.best_move in legal else " (illegal)")
        if best is not None:
            words += ": best" if best == answer.best_move else f", engine {best}"
        if best == answer.best_move:
            return [*arrows, arrow(best[2:4] * 2, TRUTH)], words
    if best is not None:
        arrows.insert(0, arrow(best, TRUTH))
    return arrows, words


def environment_board(
    row: Mapping[str, Any],
    answer: EnvironmentAnswer | NotationError,
    truth: EnvironmentAnswer,
    wrong: Sequence[str],
) -> str:
    """Draw an environment answer: the predicted board, and beside it the true one.

    Args:
        row: The position and the action.
        answer: What the model wrote, or why it cannot be read.
        truth: The right answer.
        wrong: What is wrong, a few words for each field.
    """
    turn = rules.board_of(row["fen"]).turn
    true_board = written_board(truth.fen)
    differ: list[chess.Square] = []
    if isinstance(answer, NotationError):
        words, board = _unreadable(answer), chess.BaseBoard.empty()
    else:
        board = written_board(answer.fen)
        differ = [s for s in chess.SQUARES if board.piece_at(s) != true_board.piece_at(s)]
        words = f"wrong: {', '.join(wrong)}" if answer != truth else "right"
    said = set() if isinstance(answer, NotationError) else _en_passant(answer.fen)
    true = _en_passant(truth.fen)
    mine = draw_board(board, turn, fill=dict.fromkeys([*differ, *(said - true)], WRONG + "b0"))
    fill = dict.fromkeys([*differ, *(true - said)], TRUTH + "b0")
    right = draw_board(true_board, turn, action_arrows(row["action"]), fill)
    return picture([mine, right], [words, f"python-chess, after {row['action']}"], words)


def _en_passant(fen: str) -> set[chess.Square]:
    """The square behind a pawn that has just made a double step, where a FEN names one."""
    field = fen.split(" ")[3]
    return set() if field == "-" else {chess.parse_square(field)}


def fill_in_board(
    position: EnvironmentPrompt, field: str, answer: str | NotationError, fits: Sequence[str]
) -> str:
    """Draw a fill-in answer: the record's state and action; the caption has one that fits, too.

    Args:
        position: The record, filled in.
        field: What is hidden.
        answer: What the model wrote, or why it cannot be read.
        fits: The answers that fit.
    """
    if isinstance(answer, NotationError):
        words = _unreadable(answer)
    else:
        verdict = "right" if answer in fits else "wrong"
        words = f"{verdict}: {field.replace('_', ' ')} {answer}"
    others = f", or {len(fits) - 1} more" if len(fits) > 1 else ""
    words += f"; fits: {fits[0]}{others}"
    return position_board(position.fen, action_arrows(position.action), caption=words)


def _unreadable(fault: NotationError) -> str:
    return f"unreadable: {fault.reason}"


def action_arrows(action: str | None) -> list[Arrow]:
    """The arrow of an environment prompt's action; empty if the action is missing or unreadable."""
    try:
        return [arrow(parse_move(action or ""), ACTION)]
    except NotationError:  # allowed in a prompt, but there is nothing to draw
        return []


# --------------------------------------------------------------------------------------------------
# What is drawn
# --------------------------------------------------------------------------------------------------
def written_board(fen: str) -> chess.BaseBoard:
    """The board of a FEN, even if it is not a legal position."""
    ranks = fen.split(" ")[0].split("/")
    # python-chess refuses ``44`` for an empty rank.
    return chess.BaseBoard("/".join(contract_rank(expand_placement(rank)) for rank in ranks))


# --------------------------------------------------------------------------------------------------
# How it is drawn
# --------------------------------------------------------------------------------------------------
def draw_board(
    board: chess.BaseBoard,
    below: chess.Color,
    arrows: Iterable[Arrow] = (),
    fill: dict[chess.Square, str] | None = None,
    *,
    last: chess.Move | None = None,
    dots: Iterable[chess.Square] = (),
) -> str:
    """A board with its coordinates inside the outer squares, as on lichess.org.

    Args:
        board: The pieces.
        below: The side at the bottom.
        arrows: Drawn over the pieces.
        fill: Square → the colour that it is filled with.
        last: A move whose squares are marked.
        dots: Squares that get a dot.
    """
    drawn = chess.svg.board(
        board,
        orientation=below,
        lastmove=last,
        fill=fill or {},
        arrows=arrows,
        size=_SIDE,
        coordinates=False,
    )
    marks = [*_coordinates(below), *(_dot(square, below) for square in dots)]
    drawn = drawn.replace("</svg>", f"{''.join(marks)}</svg>")
    return _STYLE.sub(_as_attributes, _NEEDLESS.sub("", drawn))


def _coordinates(below: chess.Color) -> Iterator[str]:
    """The ranks in the squares at the left, the files in those at the bottom."""
    for place in range(8):
        rank, file = (7 - place, place) if below else (place, 7 - place)
        top, left = place * chess.svg.SQUARE_SIZE, place * chess.svg.SQUARE_SIZE
        yield _coordinate(chess.RANK_NAMES[rank], 2, top + 13)
        yield _coordinate(chess.FILE_NAMES[file], left + 36, _SIDE - 3)


def _coordinate(name: str, x: int, y: int) -> str:
    return f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="14" fill="#5b3510">{name}</text>'


def _dot(square: chess.Square, below: chess.Color) -> str:
    file, rank = chess.square_file(square), chess.square_rank(square)
    column, row = (file, 7 - rank) if below else (7 - file, rank)
    x, y = ((place + 0.5) * chess.svg.SQUARE_SIZE for place in (column, row))
    return f'<circle cx="{x}" cy="{y}" r="7" fill="#14532d" opacity="0.55"/>'


def _as_attributes(style: re.Match[str]) -> str:
    rules = (rule.split(":") for rule in style[1].split(";") if rule.strip())
    return " ".join(f'{name.strip()}="{value.strip()}"' for name, value in rules)


def picture(boards: Sequence[str], captions: Sequence[str], label: str) -> str:
    """Boards side by side, each with its caption, as one SVG element with its own background."""
    lines = [textwrap.wrap(text, _LETTERS, max_lines=2, placeholder=" …") for text in captions]
    width = len(boards) * _SIDE + (len(boards) - 1) * _GAP
    height = _SIDE + max((_LINE * len(texts) + 8 for texts in lines), default=0)
    parts = [
        f'<g transform="translate({place * (_SIDE + _GAP)} 0)">{board}</g>'
        for place, board in enumerate(boards)
    ]
    if captions:  # a background of its own, as pages may be light or dark
        parts.insert(0, f'<rect width="{width}" height="{height}" fill="#f3f4f6"/>')
    parts += [
        f'<text x="{place * (_SIDE + _GAP) + 4}" y="{_SIDE + _LINE * number - 5}" '
        f'font-family="sans-serif" font-size="22" fill="#1c1f23">{html.escape(line)}</text>'
        for place, texts in enumerate(lines)
        for number, line in enumerate(texts, 1)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{BOARD_SIZE * width / _SIDE:.0f}" height="{BOARD_SIZE * height / _SIDE:.0f}" '
        f'role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )
