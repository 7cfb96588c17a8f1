"""The examples in the package's docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import rookworld_rlvr

PACKAGE = Path(rookworld_rlvr.__file__).parent
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(PACKAGE))
def test_examples_print_what_they_say(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    tested = doctest.testmod(importlib.import_module(name))
    assert tested.attempted and not tested.failed
