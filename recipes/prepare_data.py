"""Label a data set with the values of all legal moves, repair its answers, write it as Parquet.

rookworld prepare --config recipes/prepare_policy.yaml
rookworld prepare --config recipes/prepare_policy.yaml --num_processes 2   # a shard for each process

If a run was stopped, start it again: it continues where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import PartialState
from huggingface_hub import HfApi

from rookworld_rlvr.cli.checks import check_prepare_recipe
from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.parquet import data_card, merge_parquet, write_parquet
from rookworld_rlvr.data.prepare.arguments import PrepareArguments, PrepareLabelArguments
from rookworld_rlvr.data.prepare.pipeline import (
    PrepareReport,
    finish_rows,
    provenance,
    read_rows,
    report_lines,
    shard_file,
    value_positions,
)

LONGEST_WAIT = timedelta(days=30)  # how long a process that is done waits for the others

GROUPS = [PrepareArguments, PrepareLabelArguments]


def main(argv: Sequence[str]) -> None:
    parser = StrictParser(GROUPS)
    args, label_args = parser.parse_strictly(argv, check_prepare_recipe)
    state = PartialState(cpu=True, timeout=LONGEST_WAIT)
    shard = state.process_index, state.num_processes
    output = Path(args.output_file)
    report = PrepareReport()

    ################
    # Rows
    ################
    quarantine = shard_file(output.with_suffix(".quarantine.jsonl"), *shard)
    rows = read_rows(args, report, quarantine, shard)

    ################
    # Values
    ################
    source = value_positions(rows, label_args, args.num_proc, report)
    rows = finish_rows(rows, args, label_args, source, report)

    ################
    # File
    ################
    note = provenance(args, source, report)
    write_parquet(shard_file(output, *shard), rows, note)
    state.wait_for_everyone()
    if state.is_main_process:
        if shard[1] > 1:
            note = merge_shards(output, shard[1])
        print("\n".join(report_lines(note["counts"])))
        print(f"written to {output}")
        if args.push_to_hub:
            push(args, output, data_card(note))


def merge_shards(output: Path, shards: int) -> dict[str, Any]:
    """Merge the parts of all processes.

    Raises:
        RookWorldError: Some parts are on other machines.
    """
    parts = [shard_file(output, index, shards) for index in range(shards)]
    missing = [str(part) for part in parts if not part.is_file()]
    if missing:
        raise RookWorldError(
            f"output_file: {', '.join(missing)}: not on this machine. Each part is complete where it "
            "was written; copy them into one folder, or give an output_file on a disk that all "
            "machines share"
        )
    return merge_parquet(parts, output)


def push(args: PrepareArguments, output: Path, card: str) -> None:
    """Upload the file, including its provenance, with a card."""
    assert args.hub_dataset_id is not None
    api = HfApi()
    name = args.hub_dataset_id
    contents: dict[str, Path | bytes] = {
        "data/train-00000-of-00001.parquet": output,
        "README.md": card.encode(),
    }
    try:
        api.create_repo(name, repo_type="dataset", private=args.hub_private, exist_ok=True)
        for path, content in contents.items():
            api.upload_file(
                path_or_fileobj=content, path_in_repo=path, repo_id=name, repo_type="dataset"
            )
    except (OSError, ValueError) as error:
        raise RookWorldError(
            f"push_to_hub: {args.hub_dataset_id!r} could not be written ({error}), but {output} is "
            "complete; log in (hf auth login) and start again"
        ) from error
    print(f"pushed to {args.hub_dataset_id}")


if __name__ == "__main__":
    run_cli(main)
