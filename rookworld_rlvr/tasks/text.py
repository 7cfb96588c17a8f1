"""What reading and writing of ``P:``, ``A:`` and ``F:`` text have in common.

A row is one line of RookWorld data. It splits into a prompt and a completion::

    P: FEN.............. M: moves....... E: evaluations....... B: move     policy
    |---- prompt ------||---------------- completion ----------------|

    A: state+action+history+next_state+reward+terminated+truncated         environment
    |------- prompt -------||------------ completion ------------|

    F: state+action+history+next_state+reward+terminated+truncated+ hidden  fill-in
    |--------------------------- prompt --------------------------||-----|

The prompt of a fill-in row is an environment row in which ``[MASK]`` replaces a field or a part of a
field, see `fill_in_record.parse_fill_in_prompt`. The completion is the hidden text.

Reading is strict about fields and their order, but accepts any number of spaces between them. Writing
pads like the public data. The policy prompt includes its padding except for the last space, which
GPT-2's tokenizer joins to ``M``: so the tokens of the prompt are a prefix of the tokens of the row. For
the same reason a fill-in answer begins with a space: ``+`` followed by a minus sign would be one token.

This module checks text only; `rules` decides whether a move is legal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ..common.errors import NotationError, RookWorldError

END_OF_TEXT = "<|endoftext|>"


POLICY_PREFIX = "P:"


ENVIRONMENT_PREFIX = "A:"


FILL_IN_PREFIX = "F:"


MAX_HISTORY = 10


# [0-9], not \d, which also matches digits of other scripts. No exponent, and no sign but minus.
_DECIMAL = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")


_MOVE = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")


COUNTER = re.compile(r"[0-9]{1,6}")


CASTLING = re.compile(r"-|(?=[KQkq])K?Q?k?q?")


EN_PASSANT = re.compile(r"-|[a-h][36]")


_RANK = re.compile(r"[1-8pnbrqkPNBRQK]{1,8}")


# --------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------
def clean(text: str) -> str:
    """Remove end-of-text and surrounding spaces, and nothing else.

    >>> clean(" B: e2e4 <|endoftext|>")
    'B: e2e4'
    """
    return text.replace(END_OF_TEXT, "").strip(" ")


def message_text(said: Any) -> str:
    """A prompt or completion as text; of a chat, that of its last message.

    Raises:
        RookWorldError: It is neither text nor a list of messages.

    >>> message_text([{"role": "user", "content": "P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1"}])
    'P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1'
    """
    match said:
        case str():
            return said
        case [*_, {"content": str(text)}]:
            return text
    raise RookWorldError(
        f"cannot read {said!r} as a prompt or completion: give text, or a list of messages of which "
        "the last has text as its content"
    )


def shown_text(said: Any) -> str:
    """A prompt or completion as text, as `message_text`; of what has none, such as images, its repr."""
    match said:
        case str(text) | [*_, {"content": str(text)}]:
            return text
    return repr(said)


def write_texts(said: list[Any], texts: Sequence[str]) -> None:
    """Put texts in place of what was said, see `message_text`; of a chat only the last message changes.

    >>> said = [[{"role": "assistant", "content": "e2e4"}]]
    >>> write_texts(said, ["d2d4"])
    >>> said
    [[{'role': 'assistant', 'content': 'd2d4'}]]
    """
    for place, (before, text) in enumerate(zip(said, texts, strict=True)):
        chat = [] if isinstance(before, str) else before
        said[place] = [*chat[:-1], {**chat[-1], "content": text}] if chat else text


def clean_answer(text: str) -> str:
    """Like `clean`; also forgive white space and one ``+`` after a complete answer.

    This is all that rewards forgive. The packaged tasks read every answer through it.

    >>> (
    ...     clean_answer(" B: e2e4 \\n"),
    ...     clean_answer("8/8/8/8/8/4k3/8/4K3 w - - 0 1+0.5+1+0+ \\n")[-8:],
    ... )
    ('B: e2e4', '+0.5+1+0')
    """
    return clean(text).rstrip().removesuffix("+").rstrip()


# --------------------------------------------------------------------------------------------------
# Fields
# --------------------------------------------------------------------------------------------------
def parse_fen(text: str) -> str:
    """Check the form of a FEN and return it with single spaces.

    It needs six fields, and eight ranks of eight squares. `rules` decides whether the position is legal.

    Raises:
        NotationError: One of the fields is missing or malformed.
    """
    fen = parse_loose_fen(text)
    placement = fen.split(" ")[0]
    ranks = placement.split("/", 8)
    if len(ranks) != 8 or not all(map(is_rank, ranks)):
        raise NotationError("a FEN's board is not eight ranks of eight squares", placement)
    return fen


def parse_loose_fen(text: str) -> str:
    """Like `parse_fen`, for a FEN whose board may have other than eight ranks of eight squares.

    Raises:
        NotationError: A field is missing or malformed, or the board has a character that no board has.
    """
    fields = [field for field in text.split(" ") if field]
    if len(fields) != 6:
        raise NotationError("a FEN has six fields", text)
    for field, (form, fault) in zip(fields, _FEN_FORMS, strict=True):
        if not form.fullmatch(field):
            raise NotationError(f"a FEN's {fault}", field)
    return " ".join(fields)


_FEN_FORMS = (
    (re.compile(r"[1-8pnbrqkPNBRQK/]{1,200}"), "board is not pieces, numbers and slashes"),
    (re.compile("[wb]"), "side to move is neither 'w' nor 'b'"),
    (CASTLING, "castling field is neither '-' nor some of 'KQkq' in order"),
    (EN_PASSANT, "en passant field is neither '-' nor a square of rank 3 or 6"),
    (COUNTER, "counter is not a whole number"),
    (COUNTER, "counter is not a whole number"),
)


def parse_move(text: str) -> str:
    """Check the form of a UCI move.

    Raises:
        NotationError: The text does not have the form of a move.
    """
    if not _MOVE.fullmatch(text):
        raise NotationError("not a move in UCI notation", text)
    return text


def parse_decimal(text: str) -> float:
    """Read a finite decimal of ASCII digits, such as ``-2.3``.

    Raises:
        NotationError: The text is ``nan``, ``inf`` or not a number, or has an exponent or digits of
            another script.
    """
    if not _DECIMAL.fullmatch(text):
        raise NotationError("not a finite decimal number", text)
    return float(text)  # at most 20 digits before the point, so never infinite


def write_decimal(value: float) -> str:
    """Write a number as Python writes a float, but never with an exponent: ``-2.3``, ``0.0``.

    >>> write_decimal(0.001)
    '0.001'
    """
    text = repr(float(value))
    return f"{Decimal(text):f}" if "e" in text else text


def expand_placement(placement: str) -> str:
    """The 64 squares of a FEN's board, a8 first, ``.`` for an empty one; slashes left out.

    A malformed board has other than 64.

    >>> expand_placement("8/8/8/8/8/8/8/4K3")[-8:]
    '....K...'
    """
    return placement.translate(_EXPANSION)


def contract_rank(squares: str) -> str:
    """Write a rank as in a FEN, from its eight squares as `expand_placement` gives them.

    >>> contract_rank("..K..p..")
    '2K2p2'
    """
    return re.sub(r"\.+", lambda empty: str(len(empty[0])), squares)


def is_rank(text: str) -> bool:
    """Whether a text has the form of a rank of a FEN's board: eight squares."""
    return bool(_RANK.fullmatch(text)) and len(text.translate(_EXPANSION)) == 8


_EXPANSION = str.maketrans({**{str(n): "." * n for n in range(1, 9)}, "/": ""})
