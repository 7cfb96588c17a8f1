"""The games of a PGN file, as python-chess reads them, but only what they say.

python-chess goes on wherever it can. It leaves out text that is no move, so ``Sf3``, a German knight's
move, becomes the pawn move ``f3``. It ends a game at every empty line, although a comment or the rest
of the moves may follow, and takes tags that follow moves at once for moves. Each of these gives
positions that no game had.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import chess
import chess.pgn

_TAG = r'\[[A-Za-z0-9][\w+#=:-]*\s+"'
_RESULT = r"(?<![\w/-])(?:1-0|0-1|1/2-1/2|\*)(?![\w/-])"
_MARKS = re.compile(rf"[{{}};]|(?P<tag>{_TAG})|(?P<result>{_RESULT})|(?P<move>[a-h][1-8]|[O0]-)")
_FIRST_MOVE = re.compile(r"\s*1\s*\.(?!\s*\.)")
_COMMENT = r"\{[^}]*\}?|;.*|^%.*"
_NO_GAME = re.compile(_COMMENT, re.MULTILINE)
_NO_MOVES = re.compile(rf"{_COMMENT}|^\[.*", re.MULTILINE)
_LETTERS = re.compile(r"(?:[^\W\d_]|[♔-♟\ufffd])+\Z")  # also figurines, and bytes that are no text
_DASH = r"[-\u2010-\u2015\u2212]"
_CASTLING = re.compile(rf"[oO0]{_DASH}[oO0](?:{_DASH}[oO0])?")
_STANDARD_CASTLING = ("O-O", "O-O-O", "0-0", "0-0-0")


def read_game(text: str) -> chess.pgn.Game:
    """A game with its main line. If its `errors` are not empty, they say why the moves end early.

    A game with a word that looks like a move, but is not in standard notation, is left without moves.

    Args:
        text: See `split_games`.

    Raises:
        ValueError: It holds no game.
    """
    game = chess.pgn.read_game(io.StringIO(text), Visitor=_MainLine)
    if game is None:
        raise ValueError("neither tags nor moves")
    if word := unread_move(text):
        game.variations.clear()
        said = f"{word!r} is not standard notation (K, Q, R, B, N and O-O, in English letters)"
        game.errors.insert(0, ValueError(said))
    return game


def unread_move(text: str) -> str:
    """The first word of a game's moves that python-chess would read as another move, or leave out.

    >>> unread_move("1. e4 e5 2. Sf3 Sc6 *"), unread_move("1. e4 {Sf3} e5 2. Nf3 *")
    ('Sf3', '')
    """
    moves = _NO_MOVES.sub(" ", text)
    for token in chess.pgn.MOVETEXT_REGEX.finditer(moves):
        before = _LETTERS.search(moves[max(0, token.start() - 10) : token.start()])
        if token[1] and before:  # it would be left out
            return before[0] + token[0]
    castlings = (castling[0] for castling in _CASTLING.finditer(moves))
    return next((word for word in castlings if word not in _STANDARD_CASTLING), "")


class _MainLine(chess.pgn.GameBuilder[chess.pgn.Game]):
    """A game without its variations, up to the first error."""

    def begin_variation(self) -> chess.pgn.SkipType:  # type: ignore[override]  # `BaseVisitor` may skip
        return chess.pgn.SKIP

    def end_variation(self) -> None:
        """Nothing to do: none began. python-chess also calls this at a stray bracket."""

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        if not self.game.errors:
            super().visit_move(board, move)


# --------------------------------------------------------------------------------------------------
# Where a game ends
# --------------------------------------------------------------------------------------------------
def split_games(lines: Iterable[str]) -> Iterator[str]:
    """The text of each game of a PGN file, without empty lines outside comments.

    A game ends where the next one's tags begin; if it has no moves, at the next tag ``Event`` after an
    empty line. As not all games have tags, one also ends at an empty line that follows its result, or
    that comes before a move number 1. Comments that stand alone are left out.

    Args:
        lines: The file's lines, with their ends.
    """
    return (text for text in _texts(lines) if _NO_GAME.sub("", text).strip())


def _texts(lines: Iterable[str]) -> Iterator[str]:
    """The same, with comments that stand alone."""
    game = _Text()
    for line in lines:
        rest = line.lstrip("\ufeff")  # files that were joined have byte order marks in between
        while rest:
            if game.ends_before(rest):
                yield "".join(game.lines)
                game = _Text()
            rest = game.take(rest)
    yield "".join(game.lines)


@dataclass
class _Text:
    """What has been read of a game."""

    lines: list[str] = field(default_factory=list)
    has_text: bool = False  # behind its tags: moves or comments
    has_move: bool = False
    has_result: bool = False
    has_gap: bool = False  # an empty line after what was read last
    in_comment: bool = False

    def ends_before(self, line: str) -> bool:
        """Whether text belongs to the next game."""
        if self.in_comment or line.isspace():
            return False
        if not self.has_text:
            return self.has_gap and line.startswith("[Event ")
        is_next = self.has_result or (self.has_move and _FIRST_MOVE.match(line))
        return bool(re.match(_TAG, line) or (self.has_gap and is_next))

    def take(self, line: str) -> str:
        """Read a line up to the next game's tags; what is left of it is returned."""
        if not self.in_comment and line.isspace():
            self.has_gap = bool(self.lines)
            return ""
        if not self.in_comment and line.startswith("%"):
            return ""
        end = self._read(line)
        self.lines.append(line[:end])
        if end < len(line):
            self.lines.append("\n")
        return line[end:]

    def _read(self, line: str) -> int:
        """Where the next game's tags begin in a line, else its end; what the line holds is kept."""
        self.has_gap = False
        if not self.has_text and re.match(_TAG, line):
            return len(line)  # a tag's value may hold braces
        self.has_text = True
        for mark in _MARKS.finditer(line):
            if self.in_comment:
                self.in_comment = mark[0] != "}"
            elif mark["tag"]:
                return mark.start()
            elif mark[0] == ";":
                break
            else:
                self.in_comment = mark[0] == "{"
                self.has_result |= bool(mark["result"])
                self.has_move |= bool(mark["move"])
        return len(line)
