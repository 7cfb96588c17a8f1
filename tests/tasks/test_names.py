"""Nothing outside of `tasks/` tells tasks apart by a name that it spells out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rookworld_rlvr.tasks.registry import TASKS

from ..conftest import REPOSITORY

PACKAGE = REPOSITORY / "rookworld_rlvr"


def spelled_out(tree: ast.AST) -> Iterator[int]:
    """Lines that compare with a task's name, match it, or have several tasks' names as keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            if len(_texts(*node.keys) & set(TASKS)) > 1:
                yield node.lineno
        elif isinstance(node, ast.Compare):
            if _texts(node.left, *node.comparators) & set(TASKS):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and _texts(node.value) & set(TASKS):
            yield node.lineno


def _texts(*nodes: ast.AST | None) -> set[object]:
    """Of constants, and of those in a list, tuple or set."""
    found: set[object] = set()
    for node in nodes:
        if isinstance(node, ast.Constant):
            found.add(node.value)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            found |= _texts(*node.elts)
    return found


def test_no_task_s_name_is_compared_with_outside_of_tasks() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "tasks" not in path.relative_to(PACKAGE).parts:
            assert not list(spelled_out(ast.parse(path.read_text()))), path
