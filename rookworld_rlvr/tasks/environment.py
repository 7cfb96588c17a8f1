"""The environment task: simulate one move."""

from __future__ import annotations

from ..common.errors import NotationError
from .text import ENVIRONMENT_PREFIX, MAX_HISTORY, clean, parse_decimal, parse_fen, write_decimal
from .types import EnvironmentAnswer, EnvironmentPrompt


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
