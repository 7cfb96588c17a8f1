"""Rewards, tasks and suites that users write in files of their own.

They are named ``path/to/file.py:name`` or ``package.module:name``. No folder is searched for them: code
runs only if a recipe or a command line names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigurationError, close_matches
from .files import is_own

_NOT_OWN = ("<", sysconfig.get_path("stdlib") + os.sep, str(Path(__file__).parents[1]) + os.sep)
"""What the names of frozen modules, of Python's own files and of this package's begin with."""


def load_own(name: str, key: str) -> Any:
    """Load an object from a user's file or module.

    Args:
        name: ``path/to/file.py:name`` or ``package.module:name``.
        key: The configuration's key that gave the name.

    Raises:
        ConfigurationError: The file does not exist, fails when it is run, or does not define the name.
    """
    if not is_own(name):
        raise ConfigurationError([f"{key}: {name!r} has no ':name'; write path/to/file.py:name"])
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py") and not Path(source).is_file():
        close = close_matches(source, map(str, Path(source).parent.glob("*.py")))
        raise ConfigurationError([f"{key}: no file {source!r}{close}"])
    try:
        module = _module(source)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        said = f"{key}: {source} could not be run: {place_of(error)}"
        raise ConfigurationError([said]) from error
    if not hasattr(module, attribute):
        made_by = {name: getattr(value, "__module__", "") for name, value in vars(module).items()}
        made_there = [name for name, maker in made_by.items() if maker == module.__name__]
        close = close_matches(attribute, made_there)
        raise ConfigurationError([f"{key}: {source} has no {attribute!r}{close}"])
    return getattr(module, attribute)


def load_own_class(name: str, key: str, kind: type) -> Any:
    """Load a subclass of `kind` from a user's file or module; see `load_own`.

    Raises:
        ConfigurationError: It cannot be loaded, is not a subclass, or lacks some of its methods.
    """
    found = load_own(name, key)
    base = f"{kind.__module__.removeprefix('rookworld_rlvr.')}.{kind.__name__}"
    if not isinstance(found, type) or not issubclass(found, kind):
        raise ConfigurationError([f"{key}: {name} is not a subclass of {base}"])
    if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
        raise ConfigurationError([f"{key}: {name} does not define {missing}; see {base}"])
    return found


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # where a user expects it; last, so it hides nothing
        return importlib.import_module(source)
    return _run_file(Path(source).resolve(), Path(source).read_bytes())


@cache  # by content too, so that a changed file is run again
def _run_file(path: Path, content: bytes) -> ModuleType:
    name = f"own_{path.stem}_{sha256(bytes(path) + content).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for its neighbours; last, so it hides nothing
    spec.loader.exec_module(module)
    return module


def place_of(error: BaseException) -> str:
    """Format an error in one line, with the last file and line of the user's own that led to it.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as error:
    ...     print(place_of(error).split(" (")[0])
    ZeroDivisionError: division by zero
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):  # it names the file and line itself
        return text
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    frame = [one for one in own if "-packages" not in one.filename] or frames
    return f"{text} ({Path(frame[-1].filename).name}, line {frame[-1].lineno})"
