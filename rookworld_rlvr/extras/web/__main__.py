"""Ask a model, try a reward, play and look at runs, on a page in your browser.

rookworld web                                  # rookworld-games, on this machine alone
rookworld web --model rookworld-nano runs/grpo_nano
rookworld web --runs runs --port 7861
rookworld web --space my_space                 # write a Hugging Face Space that shows the same page
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ...common.errors import EXIT_INTERRUPTED, RookWorldError
from ...inference.arguments import model_parser, run
from ...models.loading import check_model_name
from .app import LOOPBACK, free_port, launch, write_space


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


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == EXIT_INTERRUPTED:  # at once: a full end may wait for a thread that loads torch
        os._exit(code)
    raise SystemExit(code)
