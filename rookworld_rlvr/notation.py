"""The only grammar of ``P:``, ``A:`` and ``F:`` text, in both directions.

A row is one line of RookWorld data. It splits into a prompt and a completion::

    P: FEN.............. M: moves....... E: evaluations....... B: move     policy
    |---- prompt ------||---------------- completion ----------------|

    A: state+action+history+next_state+reward+terminated+truncated         environment
    |------- prompt -------||------------ completion ------------|

    F: state+action+history+next_state+reward+terminated+truncated+ hidden  fill-in
    |--------------------------- prompt --------------------------||-----|

The prompt of a fill-in row is an environment row in which ``[MASK]`` stands for one field or part of
one, see `parse_fill_in_prompt`; the completion is what was there.

Reading is strict about fields and their order, and indifferent to how many spaces stand between
them. Writing pads as the public data pads. The policy prompt carries its padding but for the last
space, which GPT-2's tokenizer joins to ``M``: so the tokens of the prompt are a prefix of the
tokens of the row. For the same reason a fill-in answer begins with a space: ``+`` and a minus sign
behind it would be one token.

Everything here is text; whether a move is legal is the business of `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from .records import (
    EnvironmentAnswer,
    EnvironmentPrompt,
    FillInField,
    FillInPrompt,
    NotationError,
    PolicyAnswer,
    PolicyPrompt,
    Task,
)

END_OF_TEXT = "<|endoftext|>"
POLICY_PREFIX = "P:"
ENVIRONMENT_PREFIX = "A:"
FILL_IN_PREFIX = "F:"
MASK = "[MASK]"
MAX_CANDIDATES = 5
MAX_HISTORY = 10

# Columns of the public data: "M:" starts at 92, "E:" at 125 and "B:" at 168 (measured on 500 rows).
_FEN_WIDTH = 88
_MOVES_WIDTH = 30
_EVALUATIONS_WIDTH = 40

# [0-9], not \d: other scripts' digits are no numbers here. No exponent, no sign but minus.
_DECIMAL = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")
_MOVE = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
_COUNTER = re.compile(r"[0-9]{1,6}")
_CASTLING = re.compile(r"-|(?=[KQkq])K?Q?k?q?")
_EN_PASSANT = re.compile(r"-|[a-h][36]")
_RANK = re.compile(r"[1-8pnbrqkPNBRQK]{1,8}")
_SECTIONS = re.compile(r"M:( [^:]*) E:( [^:]*) B:( [^:]*)")


# --------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------
def clean(text: str) -> str:
    """Remove end-of-text and surrounding spaces, and nothing else.

    >>> clean(" B: e2e4 <|endoftext|>")
    'B: e2e4'
    """
    return text.replace(END_OF_TEXT, "").strip(" ")


def task_of(text: str) -> Task:
    """Task of a row or prompt by its prefix; text without a prefix is an environment row.

    >>> task_of("P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1")
    'policy'
    """
    row = clean(text)
    if row.startswith(POLICY_PREFIX):
        return "policy"
    return "fill_in" if row.startswith(FILL_IN_PREFIX) else "environment"


def split_row(text: str) -> tuple[Task, str, str]:
    """Split one row into task, prompt and completion, both as this module writes them.

    Raises:
        NotationError: The row does not have the fields of its task.
    """
    row = clean(text)
    task = task_of(row)
    if task == "fill_in":
        return task, *_split_fill_in_row(row)
    if task == "policy":
        head, mark, tail = row.partition(" M:")
        if not mark:
            raise NotationError("no section 'M:' in the policy row", row)
        policy_answer = parse_policy_answer("M:" + tail)
        return (
            "policy",
            write_policy_prompt(parse_policy_prompt(head)),
            write_policy_answer(policy_answer),
        )
    fields = row.split("+", 3)
    if len(fields) < 4:
        raise NotationError("fewer than seven fields in the environment row", row)
    prompt = parse_environment_prompt("+".join(fields[:3]) + "+")
    answer = parse_environment_answer(fields[3])
    return "environment", write_environment_prompt(prompt), write_environment_answer(answer)


def join_row(prompt: str, completion: str) -> str:
    """Put a prompt and a completion of this module together to the row that they came from."""
    return prompt + completion


# --------------------------------------------------------------------------------------------------
# Policy
# --------------------------------------------------------------------------------------------------
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


# --------------------------------------------------------------------------------------------------
# Environment
# --------------------------------------------------------------------------------------------------
def write_environment_prompt(prompt: EnvironmentPrompt) -> str:
    """``A: state+action+history+``."""
    return f"{ENVIRONMENT_PREFIX} {prompt.fen}+{prompt.action}+{' '.join(prompt.history)}+"


def parse_environment_prompt(text: str) -> EnvironmentPrompt:
    """Read ``A: state+action+history+``; the prefix may be missing, the last ``+`` may not.

    The action is taken as it stands: an unreadable action is a task, not an error.

    Raises:
        NotationError: Not three fields, no FEN, or more than ten moves of history.
    """
    body = clean(text).removeprefix(ENVIRONMENT_PREFIX)
    fields = body.split("+")
    if len(fields) != 4 or fields[3].strip(" "):
        raise NotationError("not the three fields 'state+action+history+'", body)
    history = tuple(item for item in fields[2].split(" ") if item)
    if len(history) > MAX_HISTORY:
        raise NotationError(f"more than {MAX_HISTORY} moves of history", body)
    return EnvironmentPrompt(parse_fen(fields[0]), fields[1].strip(" "), history)


def write_environment_answer(answer: EnvironmentAnswer) -> str:
    """``next_state+reward+terminated+truncated``.

    >>> write_environment_answer(
    ...     EnvironmentAnswer("8/8/8/8/8/4k3/8/4K3 w - - 0 1", 0.5, True, False)
    ... )
    '8/8/8/8/8/4k3/8/4K3 w - - 0 1+0.5+1+0'
    """
    flags = f"{int(answer.terminated)}+{int(answer.truncated)}"
    return f"{answer.fen}+{write_decimal(answer.reward)}+{flags}"


def parse_environment_answer(text: str) -> EnvironmentAnswer:
    """Read the four fields of an environment answer.

    Raises:
        NotationError: Not four fields, or one of them is no FEN, number or flag.
    """
    body = clean(text)
    fields = [field.strip(" ") for field in body.split("+", 4)]
    if len(fields) != 4:
        raise NotationError("not the four fields 'next_state+reward+terminated+truncated'", body)
    for flag in fields[2:]:
        if flag not in ("0", "1"):
            raise NotationError("a flag is neither 0 nor 1", flag)
    return EnvironmentAnswer(
        parse_fen(fields[0]), parse_decimal(fields[1]), fields[2] == "1", fields[3] == "1"
    )


# --------------------------------------------------------------------------------------------------
# Fill-in
# --------------------------------------------------------------------------------------------------
FILL_IN_COLUMNS = (
    "state",
    "action",
    "history",
    "next_state",
    "reward",
    "terminated",
    "truncated",
)
FEN_COLUMNS = ("state", "next_state")

FEN_FIELDS: tuple[FillInField, ...] = (
    *(("rank",) * 8),  # from the eighth down
    "side_to_move",
    "castling",
    "en_passant",
    "clocks",  # half moves
    "clocks",  # full moves
)
_COLUMN_FIELDS: Mapping[str, FillInField] = {
    "action": "action",
    "next_state": "next_state",
    "reward": "reward",
    "terminated": "flags",
    "truncated": "flags",
}
_UNMASKED = (*(("8",) * 8), "w", "-", "-", "0", "1")  # of the right form, by part of a FEN


def fen_parts(fen: str) -> tuple[str, ...]:
    """The 13 parts of a FEN: eight ranks from the eighth down, side, castling, en passant, two clocks.

    >>> fen_parts("8/8/8/8/8/4k3/8/4K3 w - - 0 1")[5:9]
    ('4k3', '8', '4K3', 'w')
    """
    placement, *rest = fen.split(" ")
    return (*placement.split("/"), *rest)


def join_fen(parts: Sequence[str]) -> str:
    """The FEN of `fen_parts`."""
    return " ".join(("/".join(parts[:8]), *parts[8:]))


def write_fill_in_prompt(prompt: FillInPrompt) -> str:
    """``F: state+action+history+next_state+reward+terminated+truncated+``, the mask in it."""
    return f"{FILL_IN_PREFIX} {'+'.join(fill_in_columns(prompt))}+"


def fill_in_columns(prompt: FillInPrompt) -> tuple[str, ...]:
    """The texts of the seven columns, in the order of `FILL_IN_COLUMNS`."""
    history = " ".join(prompt.history)
    flags = prompt.terminated, prompt.truncated
    return (prompt.state, prompt.action, history, prompt.next_state, prompt.reward, *flags)


def parse_fill_in_prompt(text: str) -> FillInPrompt:
    """Read a fill-in prompt and find what is masked.

    ``[MASK]`` stands for the action (and for the last move of the history, which is the action), the
    whole next state, one of the 13 parts of either FEN, another move of the history, the reward, or a
    flag. Everything else has the form of an environment row.

    Raises:
        NotationError: Not seven columns, one of them malformed, or no mask, several, or one that
            stands for something else.
    """
    body = clean(text)
    columns = [column.strip(" ") for column in body.removeprefix(FILL_IN_PREFIX).split("+")]
    if not body.startswith(FILL_IN_PREFIX) or len(columns) != 8 or columns[7]:
        raise NotationError("not the seven fields of a fill-in prompt behind 'F:'", body)
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
        raise NotationError(f"the action is {MASK}, the last move of the history is not", body)
    if len(history) > MAX_HISTORY:
        raise NotationError(f"more than {MAX_HISTORY} moves of history", body)
    field, part = _masked_part(masked[0], columns[FILL_IN_COLUMNS.index(masked[0])], history)
    state, next_state = (_parse_masked_fen(columns[index]) for index in (0, 3))
    reward, terminated, truncated = map(_parse_masked, _SUFFIX_FIELDS, columns[4:7])
    suffix = reward, terminated, truncated
    return FillInPrompt(state, columns[1], history, next_state, *suffix, field, masked[0], part)


def write_fill_in_answer(answer: str) -> str:
    """A space, which keeps the answer's tokens apart from the prompt's, and the answer.

    >>> write_fill_in_answer("e2e4")
    ' e2e4'
    """
    return f" {answer}"


def parse_fill_in_answer(field: FillInField, text: str) -> str:
    """Read what was behind the mask, by its form alone, as a record writes it.

    >>> parse_fill_in_answer("reward", " 1 ")
    '1.0'

    Raises:
        NotationError: The text has not the form of the field.
    """
    return _ANSWER_PARSERS[field](clean(text))


def _split_fill_in_row(row: str) -> tuple[str, str]:
    fields = row.split("+", 7)
    if len(fields) < 8:
        raise NotationError("fewer than eight fields in the fill-in row", row)
    prompt = parse_fill_in_prompt("+".join(fields[:7]) + "+")
    answer = parse_fill_in_answer(prompt.field, fields[7])
    return write_fill_in_prompt(prompt), write_fill_in_answer(answer)


def _masked_part(
    column: str, text: str, history: tuple[str, ...]
) -> tuple[FillInField, int | None]:
    """What the mask stands for, and which part of its column it is."""
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
    raise NotationError(f"{MASK} stands for no field, nor part of one, of column {column}", text)


def _parse_masked_fen(text: str) -> str:
    """`parse_fen` for a FEN that may be masked, in part or as a whole."""
    if text == MASK:
        return text
    if MASK not in text:
        return parse_fen(text)
    parts = re.split(" +|/", text)  # 13 of them, or `_masked_part` had refused the mask
    at = parts.index(MASK)
    shown = fen_parts(parse_fen(text.replace(MASK, _UNMASKED[at])))
    return join_fen((*shown[:at], MASK, *shown[at + 1 :]))


def _parse_masked(field: FillInField, text: str) -> str:
    return text if text == MASK else _ANSWER_PARSERS[field](text)


def _of_form(pattern: re.Pattern[str], reason: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise NotationError(reason, text)
        return text

    return parse


# --------------------------------------------------------------------------------------------------
# Fields
# --------------------------------------------------------------------------------------------------
def parse_fen(text: str) -> str:
    """Check the form of a FEN and return it with single spaces.

    Six fields, eight ranks of eight squares; whether it is a position is the business of `rules`.

    Raises:
        NotationError: One of the fields is missing or malformed.
    """
    fields = [field for field in text.split(" ") if field]
    if len(fields) != 6:
        raise NotationError("a FEN has six fields", text)
    placement, turn, castling, en_passant, halfmoves, fullmoves = fields
    ranks = placement.split("/", 8)
    if len(ranks) != 8 or not all(map(_is_rank, ranks)):
        raise NotationError("a FEN's board is not eight ranks of eight squares", placement)
    if turn not in ("w", "b"):
        raise NotationError("a FEN's side to move is neither 'w' nor 'b'", turn)
    if not _CASTLING.fullmatch(castling):
        raise NotationError("a FEN's castling field is none of '-' and 'KQkq' in order", castling)
    if not _EN_PASSANT.fullmatch(en_passant):
        raise NotationError("a FEN's en passant field is no square of rank 3 or 6", en_passant)
    for counter in (halfmoves, fullmoves):
        if not _COUNTER.fullmatch(counter):
            raise NotationError("a FEN's counter is no whole number", counter)
    return " ".join(fields)


def parse_move(text: str) -> str:
    """Check the form of a UCI move.

    Raises:
        NotationError: The text has not the form of a move.
    """
    if not _MOVE.fullmatch(text):
        raise NotationError("not a move in UCI notation", text)
    return text


def parse_decimal(text: str) -> float:
    """Read a finite decimal of ASCII digits, such as ``-2.3``.

    Raises:
        NotationError: ``nan``, ``inf``, an exponent, another script's digits, or no number at all.
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

    >>> expand_placement("8/8/8/8/8/8/8/4K3")[-8:]
    '....K...'
    """
    return placement.translate(_EXPANSION)


def contract_rank(squares: str) -> str:
    """A rank as a FEN writes it, from its eight squares as `expand_placement` gives them.

    >>> contract_rank("..K..p..")
    '2K2p2'
    """
    return re.sub(r"\.+", lambda empty: str(len(empty[0])), squares)


def _parse_rank(text: str) -> str:
    if not _is_rank(text):
        raise NotationError("not a rank of eight squares", text)
    return text


def _is_rank(rank: str) -> bool:
    return bool(_RANK.fullmatch(rank)) and len(rank.translate(_EXPANSION)) == 8


_EXPANSION = str.maketrans({**{str(n): "." * n for n in range(1, 9)}, "/": ""})

_SUFFIX_FIELDS: tuple[FillInField, ...] = ("reward", "flags", "flags")
_ANSWER_PARSERS: Mapping[FillInField, Callable[[str], str]] = {
    "action": parse_move,
    "next_state": parse_fen,
    "rank": _parse_rank,
    "side_to_move": _of_form(re.compile("[wb]"), "a side to move is neither 'w' nor 'b'"),
    "castling": _of_form(_CASTLING, "castling rights are none of '-' and 'KQkq' in order"),
    "en_passant": _of_form(_EN_PASSANT, "an en passant square is none of rank 3 or 6"),
    "clocks": _of_form(_COUNTER, "a clock is no whole number"),
    "history": parse_move,
    "reward": lambda text: write_decimal(parse_decimal(text)),
    "flags": _of_form(re.compile("[01]"), "a flag is neither 0 nor 1"),
}
