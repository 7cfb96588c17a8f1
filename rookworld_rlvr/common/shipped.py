"""What is shipped beside the code: recipes and accelerate's configurations."""

from __future__ import annotations

import difflib
from pathlib import Path

from .errors import ConfigurationError


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
    close = difflib.get_close_matches(name, [*here, *(f"{stem}{path.suffix}" for stem in packaged)])
    close = close or difflib.get_close_matches(path.stem, packaged)
    remedy = f"did you mean {' or '.join(close)}?" if close else "rookworld recipes lists these"
    raise ConfigurationError([f"{where}{name!r} is neither a file nor a packaged recipe; {remedy}"])
