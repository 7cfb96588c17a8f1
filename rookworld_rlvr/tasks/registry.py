"""The tasks by name, and by the prefix of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.errors import ConfigurationError
from .environment import ENVIRONMENT
from .fill_in import FILL_IN
from .policy import POLICY
from .task import Task
from .text import clean, shown_text
from .types import Score, Values

TASKS: dict[str, Task] = {task.name: task for task in (ENVIRONMENT, POLICY, FILL_IN)}
"""All registered tasks by name."""

NO_TASK = "other"
"""In metrics by task, the rows of no task, such as a script's own."""


def register(task: Task) -> None:
    """Add a task; ``del TASKS[task.name]`` removes it again.

    Raises:
        ConfigurationError: Another task has the same name or prefix.
    """
    for other in TASKS.values():
        if task.name == other.name or task.prefix == other.prefix:
            raise ConfigurationError(
                [f"task {task.name!r}: name or prefix {task.prefix!r} is taken by {other.name!r}"]
            )
    TASKS[task.name] = task


def register_own(name: str) -> None:
    """Add a user's task, named ``path/to/file.py:Class``. Naming it again changes nothing.

    Raises:
        ConfigurationError: It cannot be loaded or is not a task, or its name or prefix is taken.
    """
    from ..common.own import load_own_class

    kind = load_own_class(name, "tasks_from", Task)
    if not any(type(task) is kind for task in TASKS.values()):
        register(kind())


def task_of(text: str) -> str:
    """Name of a row's or prompt's task, by its prefix; text without a prefix is an environment row.

    >>> task_of("P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1")
    'policy'
    """
    row = clean(text)
    named = (name for name, task in TASKS.items() if row.startswith(task.prefix))
    return next(named, ENVIRONMENT.name)


def asked(row: Mapping[str, Any]) -> str:
    """A row's prompt as text: of a chat that of its last message; empty without a prompt.

    >>> asked({"prompt": [{"role": "user", "content": "P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1"}]})
    'P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1'
    """
    return shown_text(row.get("prompt", ""))


def row_task(row: Mapping[str, Any]) -> str | None:
    """The task of a row, by its column `task` or its prompt's prefix; None for a row of no task.

    A prompt without a prefix is of the environment task only if a column says so: a script's own rows
    may ask anything.

    >>> print(row_task({"prompt": "Name a colour."}))
    None
    """
    if row.get("task") in TASKS:
        return str(row["task"])
    prompt = clean(asked(row))
    return next((name for name, task in TASKS.items() if prompt.startswith(task.prefix)), None)


def split_row(text: str) -> tuple[str, str, str]:
    """Split a row into task, prompt and completion; the texts are as this package writes them.

    Raises:
        NotationError: The row does not have the fields of its task.
    """
    row = clean(text)
    task = task_of(row)
    return task, *TASKS[task].split(row)


def join_row(prompt: str, completion: str) -> str:
    """Join a prompt and a completion that this package wrote to a row."""
    return prompt + completion


def score_row(prompt: str, completion: str, values: Values | None = None) -> Score | None:
    """Score one completion by the prompt's task, see `Task.score`."""
    return TASKS[task_of(prompt)].score(prompt, completion, values)


def is_right(prompt: str, completion: str, values: Values | None = None) -> bool | None:
    """Whether a completion is right by its task's metric `right`; None if the truth is not known."""
    score = score_row(prompt, completion, values)
    return None if score is None else TASKS[task_of(prompt)].is_right(score)
