"""Each piece of `extras` can be deleted by its name alone, and so can all of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .support import REPOSITORY, ran

PIECES = sorted(path.parent.name for path in REPOSITORY.glob("rookworld_rlvr/extras/*/__init__.py"))
NOT_COPIED = {".git", ".venv", "runs", "wandb", "build", "dist"}
IMPORTED = """
import importlib, pkgutil, sys
from pathlib import Path
from rookworld_rlvr.cli.main import recipes, usage
import rookworld_rlvr
absent = {name for name in ("gradio", "lm_eval", "datatrove") if importlib.util.find_spec(name) is None}
sys.path.insert(0, "recipes")
names = [m.name for m in pkgutil.walk_packages(rookworld_rlvr.__path__, "rookworld_rlvr.")]
names += sorted(path.stem for path in Path("recipes").glob("*.py"))
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in absent:
            raise
assert rookworld_rlvr.__file__ == str(Path("rookworld_rlvr/__init__.py").absolute())
print(usage())
print("\\n".join(recipes([])))
"""


def of_piece(piece: str, root: Path) -> list[Path]:
    """What belongs to a piece, by its name."""
    patterns = (f"rookworld_rlvr/extras/{piece}", f"tests/extras/{piece}", f"recipes/{piece}.py")
    return [path for name in (*patterns, f"recipes/*{piece}*.yaml") for path in root.glob(name)]


def house_without(pieces: Sequence[str], folder: Path) -> Path:
    """A copy of the repository without some pieces."""
    house = folder / "house"
    house.mkdir()
    for path in REPOSITORY.iterdir():
        if path.name in ("rookworld_rlvr", "recipes", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, house / path.name, ignore=ignored)
        elif path.name not in NOT_COPIED and not path.name.endswith("_cache"):
            (house / path.name).symlink_to(path)
    for piece in pieces:
        found = of_piece(piece, house)
        assert found, piece
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return house


def assert_stands_without(pieces: Sequence[str], folder: Path) -> None:
    """Every module and script that remains is imported; commands and recipes are those that remain."""
    house = house_without(pieces, folder)
    environment = {**os.environ, "PYTHONPATH": str(house), "PYTHONDONTWRITEBYTECODE": "1"}
    said = ran(sys.executable, "-c", IMPORTED, cwd=house, env=environment).stdout
    listed = {line.split()[0] for line in said.splitlines() if line.strip()}
    gone = {path.stem for piece in pieces for path in of_piece(piece, REPOSITORY)}
    assert not listed & gone, listed & gone
    left = {*house.glob("recipes/*.py"), *house.glob("recipes/*.yaml")}
    assert {path.stem for path in left} <= listed


def test_without_any_piece_all_that_remains_is_imported(tmp_path: Path) -> None:
    assert_stands_without(PIECES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_without_a_piece_all_that_remains_is_imported(piece: str, tmp_path: Path) -> None:
    assert_stands_without([piece], tmp_path)


@pytest.mark.slow
def test_without_any_piece_the_suite_passes(tmp_path: Path) -> None:
    """But for the pages, which describe the whole house."""
    house = house_without(PIECES, tmp_path)
    words = "-m pytest -q -p no:cacheprovider -n 2 --dist loadfile --no-loadscope-reorder"
    chosen = ["-m", "not slow and not gpu", "--ignore", "tests/docs"]
    environment = {**os.environ, "PYTHONPATH": str(house), "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith("PYTEST")]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, *words.split(), *chosen],
        cwd=house,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
