"""The folder of a Hugging Face Space that shows the page with the packaged model."""

from __future__ import annotations

import shutil
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

from .. import __version__
from ..common.errors import RookWorldError
from ..common.files import shipped
from ..common.templates import render

_APP = """\
import threading
from pathlib import Path

from rookworld_rlvr.web.app import launch

if __name__ == "__main__":
    launch(["rookworld-nano"], Path("runs"), "0.0.0.0", 7860)
    threading.Event().wait()
"""


def write_space(folder: Path) -> str:
    """Write app, requirements, card and this package's own code; says what to do with them.

    Raises:
        RookWorldError: The folder is not empty, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RookWorldError(f"--space: {str(folder)!r} is not empty; give another folder")
    package, ignored = folder / "rookworld_rlvr", shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parents[1], package, ignore=ignored)
    for name in ("recipes", "accelerate_configs"):  # a clone has them beside the package
        shutil.copytree(shipped(name), package / name, ignore=ignored, dirs_exist_ok=True)
    needed = [
        f"{found.name}{found.specifier}"
        for found in map(Requirement, requires("rookworld-rlvr") or ())
        if found.marker is None or found.marker.evaluate({"extra": "web"})
    ]
    (folder / "app.py").write_text(_APP)
    (folder / "requirements.txt").write_text("\n".join(sorted(needed)) + "\n")
    card = render("space_card.md", version=__version__, gradio=version("gradio"))
    (folder / "README.md").write_text(f"{card}\n", "utf-8")
    return f"wrote {folder}; its README.md says how to start and upload it"
