"""What commands that ask a model share: options, exit codes, and a model that is loaded quietly."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Callable
from typing import Any

import chess

from ..common.errors import EXIT_INTERRUPTED, RookWorldError
from ..common.files import message_of
from ..common.terminal import drop_stdout, printable, wrapped
from ..models.loading import PACKAGED_MODEL, PLAYING_MODEL, check_model_name
from .model import RookWorld

_ALONE = "alone"


class ModelParser(argparse.ArgumentParser):
    """A parser that takes one thing without its option, before, between or after the options.

    Attributes:
        without_option: What that is: ``fen`` or ``model``.
    """

    without_option = "model"

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options; what stood alone is put where its option would be."""
        parsed = self.parse_intermixed_args(*args, **kwargs)
        if alone := parsed.__dict__.pop(_ALONE):
            name = self.without_option
            usual, given = self.get_default(name), getattr(parsed, name)
            takes_one = isinstance(usual, str)
            if takes_one and len(alone) > 1:
                self.error(f"one {name} is taken; leave {' '.join(alone[1:])!r} out")
            # A FEN's six words are one thing, and its option takes as many as several models'.
            if given != usual and (takes_one or name == "fen"):
                self.error(f"--{name} is given and {' '.join(alone)!r} stands alone; leave one out")
            both = [*([] if given == usual else given), *alone]
            setattr(parsed, name, alone[0] if takes_one else both)
        return parsed


def model_parser(
    command: str, about: str, fen: str = "", several: str = "", looks_ahead: bool = False
) -> ModelParser:
    """A parser for a command of `rookworld` with ``--model``, and ``--fen`` if a help is given.

    The FEN may stand alone, without its option; without ``--fen``, the model may.

    Args:
        command: Its name.
        about: What it does.
        fen: The help of ``--fen``.
        several: What to say of several models; empty for a command that takes one.
        looks_ahead: Whether there is ``--lookahead``, see `inference.lookahead`.
    """
    parser = ModelParser(
        f"rookworld {command}",
        description=wrapped(about),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        "--model_name_or_path",
        nargs="+" if several else None,
        default=[PLAYING_MODEL] if several else PLAYING_MODEL,
        metavar="MODEL",
        help=f"{PLAYING_MODEL} (the default), {PACKAGED_MODEL}, a run's folder, or a Hub id{several}",
    )
    if looks_ahead:
        how = "value each candidate by the model's own answers about the position after it; slower"
        parser.add_argument("--lookahead", action="store_true", help=how)
    if fen:
        start = chess.STARTING_FEN.split()
        help = f"{fen} (default: the start position)"
        parser.add_argument("--fen", nargs="+", default=start, help=help)
        parser.without_option = "fen"
    alone = parser.without_option
    what = f"the same as --{alone}, which may be left out"
    parser.add_argument(_ALONE, nargs="*", metavar=alone.upper(), help=what)
    return parser


def run(command: str, work: Callable[[], object]) -> int:
    """Do a command's work; gives its exit code, 2 with one message for bad input."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left: `| head`
        drop_stdout()
        return 128 + signal.SIGPIPE
    except (RookWorldError, OSError) as error:
        if (text := message_of(error)) is None:
            raise
        print(f"rookworld {command}: {printable(text)}", file=sys.stderr)
        drop_stdout()
        return 2
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def start(name: str) -> RookWorld:
    """Load a model, and torch with it; this takes seconds, so check the input first.

    Raises:
        RookWorldError: See `RookWorld.from_pretrained`.
    """
    if faults := check_model_name(name, "--model"):  # before torch is loaded
        raise RookWorldError(faults[0])
    from transformers.utils import logging

    logging.disable_progress_bar()  # for weights; downloads keep theirs
    logging.set_verbosity_error()
    return RookWorld.from_pretrained(name)
