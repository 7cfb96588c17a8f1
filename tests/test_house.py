"""The rooms of the package, read from its imports: which may import which, and where torch begins."""

import ast
from collections.abc import Iterable
from graphlib import TopologicalSorter

from .conftest import REPOSITORY

LEVELS = """common | tasks | engine models | data rewards inference | evaluation | training |
diagnosis reports cli lm_eval | evolution web"""
LEVEL = {room: level for level, rooms in enumerate(LEVELS.split("|"), 1) for room in rooms.split()}
FILES = [p.relative_to(REPOSITORY) for p in (REPOSITORY / "rookworld_rlvr").rglob("*.py")]
NAMES = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
TREES = {name: ast.parse((REPOSITORY / path).read_text()) for name, path in NAMES.items()}


def imported(module: str, nodes: Iterable[ast.AST]) -> set[str]:
    package = list(NAMES[module].parent.parts)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            stem = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*stem, *([node.module] if node.module else [])])
            found |= {n if (n := f"{base}.{a.name}") in NAMES else base for a in node.names}
    return found


def test_imports_run_downwards_without_a_circle_and_torch_starts_at_level_3() -> None:
    ours = {name: imported(name, ast.walk(tree)) & set(NAMES) for name, tree in TREES.items()}
    list(TopologicalSorter(ours).static_order())  # raises CycleError
    inside = {name: name.split(".")[1] for name in NAMES if "." in name}
    upwards = [(a, b) for a in inside for b in ours[a] if inside[a] != inside.get(b, inside[a])]
    assert [(a, b) for a, b in upwards if LEVEL[inside[a]] <= LEVEL[inside[b]]] == []
    for name in (name for name, room in inside.items() if LEVEL[room] < 3 or room == "engine"):
        libraries = {other.split(".")[0] for other in imported(name, TREES[name].body)}
        assert not libraries & {"torch", "transformers", "trl"}, name
    assert len([path for path in FILES if len(path.parts) == 2]) <= 2
