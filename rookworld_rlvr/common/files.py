"""Files: what is shipped, found by name, and what a script writes, checked before the work starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .errors import ConfigurationError, RookWorldError, close_matches

if TYPE_CHECKING:
    from markupsafe import Markup


def check_writable(path: Path, key: str = "output_file") -> None:
    """Check that a file can be written, before an hour of work. The folder is made, the file is not.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise RookWorldError(
            f"{key}: cannot write {str(path)!r} ({error.strerror}); give another path"
        ) from error


def folder_faults(folder: str, name: str) -> list[str]:
    """Why a folder cannot be written to or made; empty if it can. `name` is the key that gave it."""
    path = Path(folder).absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return []
    reason = "Permission denied" if there.is_dir() else f"{there.name} is a file"
    return [f"{name}: cannot write to {folder!r} ({reason}); give another folder"]


def replace_text(path: Path, text: str) -> None:
    """Write a file in one piece, so that a kill never leaves it half written."""
    incomplete = path.with_name(f"{path.name}.incomplete")
    incomplete.write_text(text, encoding="utf-8")
    incomplete.replace(path)


def open_to_others(path: Path) -> None:
    """Give a file the permissions that the user's umask asks for, as if `open` had made it.

    Temporary files are their owner's alone, and safetensors 0.8 writes through one (its issue 782).
    """
    umask = os.umask(0o077)  # it can only be read by being set
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, readable by people and programs."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


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


def read_asset(name: str) -> Any:
    """Read a packaged YAML file, by libyaml where there is one: each command does it as it starts."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(asset_path(name)).read_text(encoding="utf-8"), loader)


@cache
def templates() -> Any:
    """The `jinja2.Environment` of `assets/templates`; `html` adds what its pages need."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("rookworld_rlvr", "assets/templates"),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template, as `Markup`. In HTML, values are escaped unless they are `Markup` already.

    Args:
        template: Name of a file in `assets/templates`, without ``.j2``.
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
