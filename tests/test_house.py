"""The package's rooms, read from its imports, where torch begins, and the examples in docstrings."""

import ast
import doctest
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .support import RECIPES, REPOSITORY

ROOF = "rookworld_rlvr.extras"
EXTRAS = REPOSITORY / "rookworld_rlvr" / "extras"

LEVELS = """common | tasks | engine models | data rewards inference | evaluation | training | cli |
extras"""
LEVEL = {room: level for level, rooms in enumerate(LEVELS.split("|"), 1) for room in rooms.split()}
FILES = [p.relative_to(REPOSITORY) for p in (REPOSITORY / "rookworld_rlvr").rglob("*.py")]
NAMES = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
TREES = {name: ast.parse((REPOSITORY / path).read_text()) for name, path in NAMES.items()}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes, but for those that only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from executed(child)


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
    ours = {name: imported(name, executed(tree)) & set(NAMES) for name, tree in TREES.items()}
    list(TopologicalSorter(ours).static_order())  # raises CycleError
    inside = {name: name.split(".")[1] for name in NAMES if "." in name}
    upwards = [(a, b) for a in inside for b in ours[a] if inside[a] != inside.get(b, inside[a])]
    assert [(a, b) for a, b in upwards if LEVEL[inside[a]] <= LEVEL[inside[b]]] == []
    for name in (name for name, room in inside.items() if LEVEL[room] < 3 or room == "engine"):
        libraries = {other.split(".")[0] for other in imported(name, TREES[name].body)}
        assert not libraries & {"torch", "transformers", "trl"}, name
    assert len([path for path in FILES if len(path.parts) == 2]) <= 2


def test_the_core_imports_no_piece_and_no_piece_another() -> None:
    """Nor within a function: `common.extras.extra` gives them the modules that are there."""
    scripts = {path.stem: ast.parse(path.read_text()) for path in RECIPES.glob("*.py")}
    trees = {name: (tree, imported(name, ast.walk(tree))) for name, tree in TREES.items()}
    trees |= {
        name: (tree, imported("rookworld_rlvr", ast.walk(tree))) for name, tree in scripts.items()
    }
    pieces = {path.name for path in EXTRAS.iterdir() if (path / "__init__.py").is_file()}
    asked = set()
    for name, (tree, modules) in trees.items():
        own = name.removeprefix(f"{ROOF}.").partition(".")[0]
        others = {module.split(".")[2] for module in modules if module.startswith(f"{ROOF}.")}
        assert others <= {own} & pieces, name
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        asked |= {ast.literal_eval(c.args[0]) for c in calls if ast.unparse(c.func) == "extra"}
    for module in sorted(asked):
        assert module.partition(".")[0] not in pieces or f"{ROOF}.{module}" in NAMES, module
    assert asked


WITH_EXAMPLES = [name for name, path in NAMES.items() if ">>> " in (REPOSITORY / path).read_text()]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_print_what_they_say(name: str) -> None:
    tested = doctest.testmod(importlib.import_module(name))
    assert tested.attempted and not tested.failed


OLDEST = REPOSITORY / "constraints-oldest.txt"


def lowest(requirement: Requirement) -> Version:
    (bound,) = (part for part in requirement.specifier if part.operator in (">=", "=="))
    return Version(bound.version.removesuffix(".*"))


def test_every_lower_bound_is_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["dashboard"], *extras["cluster"]]
    bounds = {
        canonicalize_name(requirement.name): lowest(requirement)
        for requirement in map(Requirement, named)
    }
    pins = re.findall(r"^([\w.-]+)==(\S+)$", OLDEST.read_text(), re.M)
    assert {canonicalize_name(name): Version(version) for name, version in pins} == bounds


def test_ci_runs_both_ends_vllm_verifiers_and_the_harness() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["environments"]
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
    in_ci = ["oldest", "canary", "test-vllm", "test-environments", "test-lm-eval"]
    assert in_ci == job["strategy"]["matrix"]["target"] and {*in_ci} <= {*targets}
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.target }}"]
