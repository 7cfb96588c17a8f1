"""Audit a data set: what its rows get right and wrong, and what to do about it.

python recipes/audit_data.py --dataset_name rows.txt                      # a file, needs no engine
python recipes/audit_data.py --dataset_name jrahn/rookworld_7m --max_rows 100000
python recipes/audit_data.py --dataset_name rows.txt --evaluation_names puzzles.txt   # overlap
python recipes/audit_data.py --dataset_name rows.txt --engine_sample 200 --output_file audit.json
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rookworld_rlvr.audit import AuditArguments, audit
from rookworld_rlvr.audit_report import advice, table
from rookworld_rlvr.engine import EngineArguments, Labeller
from rookworld_rlvr.parsing import StrictParser, run_cli
from rookworld_rlvr.records import RookWorldError


def main(argv: Sequence[str]) -> None:
    parser = StrictParser([AuditArguments, EngineArguments])

    def check(args: AuditArguments | None, engine_args: EngineArguments | None) -> list[str]:
        return unused_engine_keys(parser.values, args)

    args, engine_args = parser.parse_strictly(argv, check)
    if args.output_file:
        check_writable(Path(args.output_file))
    with Labeller(engine_args) if args.engine_sample else nullcontext() as labeller:
        result = audit(args, labeller)
    print(table(result))
    print("\n".join(["", "What to do", *advice(result)]))
    if args.output_file:
        write_result(Path(args.output_file), result)


def unused_engine_keys(given: Mapping[str, Any], args: AuditArguments | None) -> list[str]:
    """A fault where keys of the engine are given, but no sample for it."""
    keys = [item.name for item in dataclasses.fields(EngineArguments) if item.name in given]
    if not keys or args is None or args.engine_sample:
        return []
    return [f"{', '.join(keys)}: no engine is asked; give engine_sample too, or leave this out"]


def check_writable(path: Path) -> None:
    """Find out before rows are read for an hour; makes the folder, leaves no file.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write what was counted as JSON.

    Raises:
        RookWorldError: The file cannot be written.
    """
    try:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RookWorldError:
    return RookWorldError(f"output_file: cannot write {str(path)!r} ({error.strerror})")


if __name__ == "__main__":
    run_cli(main)
