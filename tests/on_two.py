"""Run by two processes: `main` of a module, whose result each process writes into the folder.

accelerate launch --cpu --num_processes 2 --module tests.on_two MODULE FOLDER ...
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from rookworld_rlvr.cli.run import run_cli


def main(argv: Sequence[str]) -> None:
    name, folder, *words = argv
    result = importlib.import_module(name).main(Path(folder), *words)
    Path(folder, f"process{PartialState().process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
