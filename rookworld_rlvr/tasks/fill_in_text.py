"""Read and write the text of the fill-in task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from ..common.errors import NotationError
from .text import (
    _CASTLING,
    _COUNTER,
    _EN_PASSANT,
    FILL_IN_PREFIX,
    MAX_HISTORY,
    _parse_rank,
    clean,
    clean_answer,
    parse_decimal,
    parse_fen,
    parse_move,
    write_decimal,
)
from .types import FillInField, FillInPrompt

MASK = "[MASK]"


FILL_IN_COLUMNS = tuple(column.name for column in fields(FillInPrompt)[:7])


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


_UNMASKED = (*(("8",) * 8), "w", "-", "-", "0", "1")  # a valid value for each part of a FEN


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
    return f"{FILL_IN_PREFIX} {'+'.join(fill_in_columns(prompt))}+"


def fill_in_columns(prompt: FillInPrompt) -> tuple[str, ...]:
    """The text of each of the seven columns, in the order of `FILL_IN_COLUMNS`."""
    history = " ".join(prompt.history)
    flags = prompt.terminated, prompt.truncated
    return (prompt.state, prompt.action, history, prompt.next_state, prompt.reward, *flags)


def parse_fill_in_prompt(text: str) -> FillInPrompt:
    """Read a fill-in prompt and find what is masked.

    ``[MASK]`` hides one of: the action, the whole next state, one of the 13 parts of either FEN, a move
    of the history, the reward, a flag. If it hides the action, it also hides the last move of the
    history, which is the action. Everything else has the form of an environment row.

    Raises:
        NotationError: There are not seven columns, one of them is malformed, there is not exactly one
            mask, or the mask hides something else.
    """
    body = clean(text)
    columns = [column.strip(" ") for column in body.removeprefix(FILL_IN_PREFIX).split("+")]
    if not body.startswith(FILL_IN_PREFIX) or len(columns) != 8 or columns[7]:
        raise NotationError("not the seven fields of a fill-in prompt after 'F:'", body)
    masked = [
        name for name, column in zip(FILL_IN_COLUMNS, columns, strict=False) if MASK in column
    ]
    history = tuple(item for item in columns[2].split(" ") if item)
    if masked == ["action", "history"] and history[-1] == MASK and body.count(MASK) == 2:
        masked = ["action"]
    elif not masked:
        raise NotationError(f"no {MASK} in the fill-in prompt", body)
    elif len(masked) > 1 or body.count(MASK) > 1:
        raise NotationError(f"more than one {MASK} in the fill-in prompt", body)
    elif masked == ["action"]:
        raise NotationError(f"the action is {MASK}, but the last move of the history is not", body)
    if len(history) > MAX_HISTORY:
        raise NotationError(f"more than {MAX_HISTORY} moves of history", body)
    field, part = _masked_part(masked[0], columns[FILL_IN_COLUMNS.index(masked[0])], history)
    state, next_state = (_parse_masked_fen(columns[index]) for index in (0, 3))
    reward, terminated, truncated = map(_parse_masked, FILL_IN_COLUMNS[4:], columns[4:7])
    suffix = reward, terminated, truncated
    return FillInPrompt(state, columns[1], history, next_state, *suffix, field, masked[0], part)


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
    return _ANSWER_PARSERS[field](clean_answer(text))


def _masked_part(
    column: str, text: str, history: tuple[str, ...]
) -> tuple[FillInField, int | None]:
    """The field that the mask hides, and which part of its column that is."""
    if text == MASK and column in _COLUMN_FIELDS:
        return _COLUMN_FIELDS[column], None
    if column in FEN_COLUMNS:
        parts = re.split(" +|/", text)
        if len(parts) == len(FEN_FIELDS) and MASK in parts:
            return FEN_FIELDS[parts.index(MASK)], parts.index(MASK)
    if column == "history" and MASK in history:
        if history[-1] == MASK:
            raise NotationError(f"{MASK} hides the last move of the history, not the action", text)
        return "history", history.index(MASK)
    raise NotationError(f"{MASK} does not hide a field or a part of one in column {column}", text)


def _parse_masked_fen(text: str) -> str:
    """Like `parse_fen`, for a FEN that may be masked in part or as a whole."""
    if text == MASK:
        return text
    if MASK not in text:
        return parse_fen(text)
    parts = re.split(" +|/", text)  # 13 parts: `_masked_part` has checked that
    at = parts.index(MASK)
    shown = fen_parts(parse_fen(text.replace(MASK, _UNMASKED[at])))
    return join_fen((*shown[:at], MASK, *shown[at + 1 :]))


def _parse_masked(column: str, text: str) -> str:
    return text if text == MASK else _ANSWER_PARSERS[_COLUMN_FIELDS[column]](text)


def _of_form(pattern: re.Pattern[str], reason: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise NotationError(reason, text)
        return text

    return parse


_ANSWER_PARSERS: Mapping[FillInField, Callable[[str], str]] = {
    "action": parse_move,
    "next_state": parse_fen,
    "rank": _parse_rank,
    "side_to_move": _of_form(re.compile("[wb]"), "a side to move is neither 'w' nor 'b'"),
    "castling": _of_form(_CASTLING, "castling rights are neither '-' nor some of 'KQkq' in order"),
    "en_passant": _of_form(
        _EN_PASSANT, "an en passant field is neither '-' nor a square of rank 3 or 6"
    ),
    "clocks": _of_form(_COUNTER, "a clock is not a whole number"),
    "history": parse_move,
    "reward": lambda text: write_decimal(parse_decimal(text)),
    "flags": _of_form(re.compile("[01]"), "a flag is neither 0 nor 1"),
}
