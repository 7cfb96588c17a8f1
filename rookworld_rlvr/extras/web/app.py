"""Serve the page, or write a Hugging Face Space that serves it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

from ... import __version__
from ...common.errors import RookWorldError
from ...common.files import folder_faults, render, shipped

LOOPBACK = "127.0.0.1"


def free_port(host: str, first: int, count: int = 10) -> int:
    """The first port that is free, of so many.

    Raises:
        RookWorldError: None is, or there is no such address here.
    """
    for port in range(first, min(first + count, 65_536)):
        with suppress(OSError), socket.create_server((host, port)):
            return port
    raise RookWorldError(
        f"--host {host} --port {first}: taken, or not of this machine; give another"
    )


def launch(models: Sequence[str], runs: Path, host: str, port: int) -> None:
    """Serve the page from threads of this process.

    Args:
        models: Their names.
        runs: The folder of runs.
        host: The address to listen on.
        port: A free port.
    """
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from .page import STYLE, page

    reach_directly(names_of(host))
    # A page elsewhere, whose name leads to this machine, could otherwise read what is shown here.
    names = names_of(host) if host != "0.0.0.0" else ["*"]
    only = Middleware(TrustedHostMiddleware, allowed_hosts=names)
    theme = gr.themes.Default(
        primary_hue="blue",
        secondary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )  # its usual fonts come from a network
    theme.set(  # its usual shades are too light for white letters
        color_accent="*primary_600",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_border_color="*primary_600",
        button_primary_border_color_hover="*primary_700",
    )
    page(models, runs, host in (LOOPBACK, "localhost")).launch(
        server_name=host,
        server_port=port,
        app_kwargs={"middleware": [only]},
        footer_links=[],
        run_history=False,
        share=False,
        ssr_mode=False,
        quiet=True,
        _frontend=False,  # else it gives up if the page takes three seconds to answer
        theme=theme,
        css=STYLE,
        prevent_thread_lock=True,
    )


def names_of(host: str) -> list[str]:
    """What this machine is called by those who ask for the page."""
    return ["localhost", LOOPBACK, host]


def reach_directly(hosts: Sequence[str]) -> None:
    """Ask for addresses without a proxy: gradio asks its own page whether it has started."""
    for variable in ("NO_PROXY", "no_proxy"):
        given = os.environ.get(variable, "")
        os.environ[variable] = ",".join([*filter(None, [given]), *hosts])


_APP = """\
import threading
from pathlib import Path

from rookworld_rlvr.extras.web.app import launch

if __name__ == "__main__":
    launch(["rookworld-games"], Path("runs"), "0.0.0.0", 7860)
    threading.Event().wait()
"""


def write_space(folder: Path) -> str:
    """Write app, requirements, card and this package's own code; says what to do with them.

    Raises:
        RookWorldError: The folder is not empty, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RookWorldError(f"--space: {str(folder)!r} is not empty; give another folder")
    if faults := folder_faults(str(folder), "--space"):
        raise RookWorldError(*faults)
    package, ignored = folder / "rookworld_rlvr", shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parents[2], package, ignore=ignored)
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
