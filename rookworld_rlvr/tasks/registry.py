"""The tasks by name, and by the prefix of a prompt."""

from __future__ import annotations

from ..common.errors import NotationError
from .environment import (
    parse_environment_answer,
    parse_environment_prompt,
    write_environment_answer,
    write_environment_prompt,
)
from .fill_in import _split_fill_in_row
from .policy import (
    parse_policy_answer,
    parse_policy_prompt,
    write_policy_answer,
    write_policy_prompt,
)
from .text import FILL_IN_PREFIX, POLICY_PREFIX, clean
from .types import Task


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
