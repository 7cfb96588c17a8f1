"""Audit a data set: what its rows get right and wrong, and what to do about it.

rookworld audit --dataset_name rows.txt                                   # a file; needs no engine
rookworld audit --dataset_name jrahn/rookworld_7m --max_rows 100000
rookworld audit --dataset_name rows.txt --evaluation_names puzzles.txt    # overlap with test positions
rookworld audit --dataset_name rows.txt --engine_sample 200 --output_file audit.json
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.files import check_writable, write_json
from rookworld_rlvr.data.audit import AuditArguments, audit
from rookworld_rlvr.data.audit_text import advice, table
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine.pool import EngineArguments

GROUPS = [AuditArguments, EngineArguments]


def main(argv: Sequence[str]) -> None:
    parser = StrictParser(GROUPS)

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
        write_json(Path(args.output_file), result)


def unused_engine_keys(given: Mapping[str, Any], args: AuditArguments | None) -> list[str]:
    """A fault if keys of the engine are given, but no sample that the engine would check."""
    keys = [item.name for item in dataclasses.fields(EngineArguments) if item.name in given]
    if not keys or args is None or args.engine_sample:
        return []
    return [
        f"{', '.join(keys)}: no engine is asked without engine_sample; give it too, or leave this out"
    ]


if __name__ == "__main__":
    run_cli(main)
