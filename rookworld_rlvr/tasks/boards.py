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
from collections.abc import Iterable, Sequence

import chess.svg
from chess.svg import Arrow

from ..common.errors import NotationError
from . import rules
from .text import contract_rank, expand_placement, parse_move

BOARD_SIZE = 200  # pixels of a board's side


_SIDE = 8 * chess.svg.SQUARE_SIZE  # a board's side in the picture's own units


_LINE = 23  # height of a caption's line


_LETTERS = 38  # in a caption's line


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
) -> str:
    drawn = chess.svg.board(
        board, orientation=below, fill=fill or {}, arrows=arrows, size=_SIDE, coordinates=False
    )
    return _STYLE.sub(_as_attributes, _NEEDLESS.sub("", drawn))


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
        f'<text x="{place * (_SIDE + _GAP) + 4}" y="{_SIDE + _LINE * number - 4}" '
        f'font-family="sans-serif" font-size="18" fill="#1c1f23">{html.escape(line)}</text>'
        for place, texts in enumerate(lines)
        for number, line in enumerate(texts, 1)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{BOARD_SIZE * width / _SIDE:.0f}" height="{BOARD_SIZE * height / _SIDE:.0f}" '
        f'role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )
