"""The options of the commands that answer before torch is loaded."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..common.errors import close_matches
from ..models.loading import PACKAGED_MODEL


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
                self.error(f"unknown option {word}{close_matches(word.partition('=')[0], known)}")
            flag = "--fen" if "--fen" in known and word.count("/") == 7 else "--model"
            self.error(f"{word!r} does not belong to any option; write {flag} {shlex.quote(word)}")
        return args

    def error(self, message: str) -> NoReturn:
        """Print one line, without argparse's list of all options."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)
