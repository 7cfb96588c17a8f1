"""Files: what is shipped, found by name, and what a script writes, checked before the work starts."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .errors import ConfigurationError, RookWorldError, close_matches

if TYPE_CHECKING:
    from markupsafe import Markup


RESOLVED_CONFIG = "resolved_config.yaml"
"""All keys of a run, in its folder."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk without space, and of a quota or a limit."""

_OF_A_FILE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES),
    *(errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EBUSY),
    *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ETXTBSY, errno.EXDEV, *FULL),
)


def message_of(error: Exception) -> str | None:
    """What to say of bad input, and of a file that cannot be read or written; None for other errors.

    >>> message_of(PermissionError(errno.EACCES, "Permission denied", "/srv/rows.parquet"))
    "cannot use '/srv/rows.parquet' (Permission denied); give another path, or mend this one"
    >>> message_of(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full ([Errno 28] No space left on device); free some space'
    """
    if isinstance(error, RookWorldError):
        return str(error)
    if not isinstance(error, OSError) or error.errno not in _OF_A_FILE:
        return None
    if error.errno in FULL:
        return f"the disk is full ({error}); free some space"
    if error.filename is None and "file" not in str(error):  # of a socket or a process
        return None
    names = (name for name in (error.filename, error.filename2) if name is not None)
    named = " or ".join(repr(str(name)) for name in names)
    reason = error.strerror or os.strerror(error.errno)
    return f"cannot use {named or 'a file'} ({reason}); give another path, or mend this one"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error name the file that is meant: Python names none, or the one beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_writable(path: Path, key: str = "output_file") -> None:
    """Check that a file can be written, before an hour of work. The folder is made, the file is not.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        try:
            with path.open("ab") as file:
                file.write(b"0" * is_new)  # a disk may be full
        finally:
            if is_new:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise RookWorldError(
            f"{key}: cannot write {str(path)!r} ({error.strerror}); give another path"
        ) from error


def folder_faults(folder: str, name: str) -> list[str]:
    """Why a folder cannot be written to or made; empty if it can. `name` is the key that gave it."""
    path = Path(folder).absolute()
    there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    try:
        # The right to write shows neither a full nor a read-only disk. The file has no name.
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0")
    except NotADirectoryError:
        reason = f"{there.name} is a file"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return []
    return [f"{name}: cannot write to {folder!r} ({reason}); give another folder"]


def replace_text(path: Path, text: str) -> None:
    """Write a file in one piece, so that a kill never leaves it half written."""
    incomplete = path.with_name(f"{path.name}.incomplete")
    try:
        with naming(path):
            incomplete.write_text(text, encoding="utf-8")
            incomplete.replace(path)
    except OSError:
        with suppress(OSError):
            incomplete.unlink()
        raise


def open_to_others(path: Path) -> None:
    """Give a file the permissions that the user's umask asks for, as if `open` had made it.

    Temporary files are their owner's alone, and safetensors 0.8 writes through one (its issue 782).
    """
    umask = os.umask(0o077)  # it can only be read by being set
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, readable by people and programs."""
    write_text(path, json_text(content))


def json_text(content: Mapping[str, Any]) -> str:
    """Indented JSON; nan, which JSON does not have, is refused."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8; lone surrogates, which a model may write, as escapes."""
    with naming(path):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys; PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        if twice := sorted({str(key) for key in keys if keys.count(key) > 1}):
            raise yaml.YAMLError(f"key {twice[0]!r} appears twice")
        return super().construct_mapping(node, deep)


def read_keys(path: Path, where: str = "--config: ") -> dict[str, Any]:
    """Read the keys of a YAML file.

    Raises:
        ConfigurationError: It cannot be read, or holds no mapping; `where` begins the message.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigurationError([f"{where}{path} is not valid YAML ({said})"]) from error
    if not isinstance(content, dict):
        raise ConfigurationError([f"{where}{path} must be a mapping of keys to values"])
    return content


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with a JSON value in each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --------------------------------------------------------------------------------------------------
# Shipped
# --------------------------------------------------------------------------------------------------
def asset_path(name: str) -> str:
    """Path of a packaged file or folder."""
    return str(Path(__file__).parents[1] / "assets" / name)


def read_asset(file: str | Path) -> Any:
    """Read a packaged YAML file, by libyaml where there is one: each command does it as it starts.

    Args:
        file: Its name in `assets`, or the path of a piece's own.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = file if isinstance(file, Path) else Path(asset_path(file))
    return yaml.load(path.read_text(encoding="utf-8"), loader)


@cache
def templates() -> Any:
    """The `jinja2.Environment` of `assets/templates` and the pieces; `html` adds what its pages need."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    pieces = sorted(Path(__file__).parents[1].glob("extras/*/"))
    return Environment(
        loader=FileSystemLoader([asset_path("templates"), *pieces]),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template, as `Markup`. In HTML, values are escaped unless they are `Markup` already.

    Args:
        template: Name of a file in `assets/templates` or in a piece's folder, without ``.j2``.
        values: The template's variables.
    """
    from markupsafe import Markup

    return Markup(templates().get_template(f"{template}.j2").render(values))


def shipped(folder: str) -> Path:
    """A folder that is shipped with the package: inside of it in a wheel, beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    return package / folder if (package / folder).is_dir() else package.parent / folder


def shipped_names(folder: str) -> list[str]:
    """The names of the YAML files in a shipped folder."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))


def find_recipe(name: str, where: str = "--config: ") -> Path:
    """The recipe that ``--config`` names: a path that exists, else a packaged recipe's name.

    Raises:
        ConfigurationError: It is neither; `where` begins the message.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = shipped_names("recipes")
    if path.parent in (Path("."), Path("recipes")) and path.name.removesuffix(".yaml") in packaged:
        return shipped("recipes") / f"{path.name.removesuffix('.yaml')}.yaml"
    here = [str(file) for file in path.parent.glob("*.yaml")]
    remedy = close_matches(name, [*here, *packaged]) or "; rookworld recipes lists these"
    raise ConfigurationError([f"{where}{name!r} is neither a file nor a packaged recipe{remedy}"])


def is_hub_id(name: str) -> bool:
    """Whether a name has the form ``owner/name`` and does not look like a path on this machine.

    >>> is_hub_id("jrahn/RookWorld-LM-124M"), is_hub_id("runs/grpo_nano"), is_hub_id("./nano")
    (True, False, False)
    """
    owner, *rest = name.split("/")
    is_path = owner in ("runs", "recipes", "~", ".", "..") or Path(owner).is_dir()
    return len(rest) == 1 and bool(owner and rest[0]) and not is_path


def is_own(name: Any) -> bool:
    """Whether a name refers to a user's own file or module.

    >>> is_own("my_rewards.py:short"), is_own("policy_best_move")
    (True, False)
    """
    return isinstance(name, str) and ":" in name
