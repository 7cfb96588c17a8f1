"""Ask a model, try a reward, play and look at runs, on a page in your browser.

rookworld web                                  # the packaged model, on this machine alone
rookworld web --model rookworld-nano runs/grpo_nano
rookworld web --runs runs --port 7861
rookworld web --space my_space                 # write a Hugging Face Space that shows the same page
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from .. import __version__
from ..common.errors import EXIT_INTERRUPTED, RookWorldError
from ..common.files import folder_faults, render, shipped
from ..inference.arguments import model_parser, run
from ..models.loading import check_model_name

LOOPBACK = "127.0.0.1"


def main(argv: Sequence[str]) -> int:
    """Serve the page until Ctrl-C; the exit code is 2 if the input is bad."""
    parser = model_parser("web", __doc__ or "", several="; finished runs in --runs are added")
    parser.add_argument("--runs", default="runs", help="the folder of runs (default: runs)")
    parser.add_argument("--port", type=int, help="default: 7860, or the next free one")
    listens = f"address to listen on (default: {LOOPBACK}, which no other machine reaches)"
    parser.add_argument("--host", default=LOOPBACK, help=listens)
    parser.add_argument("--space", metavar="DIR", help="write a Space into this folder and end")
    return run("web", lambda: serve(parser.parse_args(argv)))


def serve(args: argparse.Namespace) -> None:
    """Check the arguments, then write the Space or serve the page.

    Raises:
        RookWorldError: A model or the package is missing, the folder is not empty, or no port is free.
    """
    if args.space:
        print(write_space(Path(args.space)))
        return
    if faults := [fault for name in args.model for fault in check_model_name(name, "--model")]:
        raise RookWorldError("\n".join(faults))
    if find_spec("gradio") is None:
        raise RookWorldError("the page needs gradio: pip install 'rookworld-rlvr[web]'")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # nothing is sent anywhere
    port = free_port(args.host, args.port or 7860, 1 if args.port else 10)
    print("starting the page ...", flush=True)  # gradio takes seconds to import
    launch(args.model, Path(args.runs), args.host, port)
    print(f"the page is at http://{args.host}:{port} (Ctrl-C ends it)", flush=True)
    while True:
        time.sleep(1)  # not for ever: a Ctrl-C just before it would be seen by nobody


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

    # A page elsewhere, whose name leads to this machine, could otherwise read what is shown here.
    names = ["localhost", LOOPBACK, host] if host != "0.0.0.0" else ["*"]
    only = Middleware(TrustedHostMiddleware, allowed_hosts=names)
    theme = gr.themes.Default(
        font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )  # its usual fonts come from a network
    page(models, runs, host in (LOOPBACK, "localhost")).launch(
        server_name=host,
        server_port=port,
        app_kwargs={"middleware": [only]},
        footer_links=[],
        run_history=False,
        share=False,
        ssr_mode=False,
        quiet=True,
        theme=theme,
        css=STYLE,
        prevent_thread_lock=True,
    )


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
    if faults := folder_faults(str(folder), "--space"):
        raise RookWorldError(*faults)
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


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == EXIT_INTERRUPTED:  # at once: a full end may wait for a thread that loads torch
        os._exit(code)
    raise SystemExit(code)
