"""What `analyse`, `play` and `uci` share: options, exit codes, and a model that is loaded quietly."""

from __future__ import annotations

import argparse
import gc
import io
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..common.errors import RookWorldError, close_matches
from ..common.terminal import printable
from ..models.loading import PACKAGED_MODEL, check_model_name

if TYPE_CHECKING:
    from .model import RookWorld


class Arguments(argparse.ArgumentParser):
    """An argparse parser with the option ``--model``, which names what it does not know.

    Args:
        command: The command of `rookworld`.
        description: What it does.
        options: Further arguments of argparse's.
    """

    def __init__(self, command: str, description: str, **options: Any) -> None:
        super().__init__(
            f"rookworld {command}", description=description, allow_abbrev=False, **options
        )
        self.add_argument(
            "--model",
            "--model_name_or_path",
            default=PACKAGED_MODEL,
            metavar="MODEL",
            help=f"{PACKAGED_MODEL} (the default), a run's folder, or a Hub id",
        )

    def parse_args(self, argv: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Read a command line; one that cannot be read ends the command with exit code 2."""
        args, unknown = self.parse_known_args(argv)
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in unknown[:1]:
            if word.startswith("-"):
                close = close_matches(word.partition("=")[0], known, cutoff=0.7)
                self.error(f"unknown option {word}{close}")
            if args.__dict__.get("fen") and " " not in args.fen:
                self.error(f"--fen: {args.fen!r} is cut at a space; put the whole FEN in quotes")
            flag = "--fen" if "--fen" in known and word.count("/") == 7 else "--model"
            self.error(f"{word!r} does not belong to any option; write {flag} {shlex.quote(word)}")
        return args

    def error(self, message: str) -> NoReturn:
        """Print one line, without argparse's list of all options."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)


def run(command: str, work: Callable[[], object]) -> int:
    """Do a command's work; gives its exit code, 2 with one message for bad input."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        work()
    except RookWorldError as error:
        print(f"rookworld {command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def start(name: str) -> RookWorld:
    """Load a model, and torch with it; this takes seconds, so check the input first.

    Args:
        name: See `RookWorld.from_pretrained`.

    Raises:
        RookWorldError: There is no such model, or it could not be loaded.
    """
    if faults := check_model_name(name, "--model"):  # before the Hub is asked, with retries
        raise RookWorldError("; ".join(faults))
    gc.disable()  # it would take a sixth of the time and free nothing: modules stay
    try:
        from transformers.utils import logging

        from .model import RookWorld
    finally:
        gc.enable()
    logging.disable_progress_bar()  # for weights; downloads keep theirs
    logging.set_verbosity_error()
    return RookWorld.from_pretrained(name)
