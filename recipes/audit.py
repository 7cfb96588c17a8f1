"""Audit a data set: what its rows get right and wrong, and what to do about it.

rookworld audit --dataset_name rows.txt                                   # a file; needs no engine
rookworld audit --dataset_name jrahn/rookworld_7m --max_rows 100000
rookworld audit --dataset_name rows.txt --output_file audit.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.files import check_writable, write_json
from rookworld_rlvr.data.audit import AuditArguments, advice, audit, table

GROUPS = [AuditArguments]


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser(GROUPS).parse_strictly(argv)
    if args.output_file:
        check_writable(Path(args.output_file))
    result = audit(args)
    print(table(result))
    print("\n".join(["", "What to do", *advice(result)]))
    if args.output_file:
        write_json(Path(args.output_file), result)


if __name__ == "__main__":
    run_cli(main)
