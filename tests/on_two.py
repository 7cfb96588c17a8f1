"""Run by two processes: `main` of a module, whose result each process writes into the folder."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from rookworld_rlvr.cli.run import run_cli


def main(argv: Sequence[str]) -> None:
    name, folder, *words = argv
    result = importlib.import_module(name).main(Path(folder), *words)
    Path(folder, f"process{PartialState().process_index}.json").write_text(json.dumps(result))


def run(argv: Sequence[str]) -> None:
    """The same in a process that was forked, with the variables of a launcher."""
    sys.argv = [__name__, *argv]
    run_cli(main)
