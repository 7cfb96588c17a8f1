"""Label a data set with the values of all legal moves, repair its answers, write it as Parquet.

rookworld prepare --config prepare_policy
rookworld prepare --config prepare_policy --cluster local   # or slurm: many tasks
rookworld prepare --config prepare_games                     # rows of games that it plays first

If a run was stopped, start it again: it continues where it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import HfApi

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import check_writable
from rookworld_rlvr.data.prepare import (
    PrepareArguments,
    PrepareReport,
    data_card,
    game_rows,
    play_missing_games,
    read_rows,
    report_lines,
    write_labelled,
)
from rookworld_rlvr.data.sources import read_provenance

GROUPS = [PrepareArguments]


def check_start(args: PrepareArguments | None) -> list[str]:
    """Faults of how it is started, which the keys' dataclass cannot know of."""
    faults = check_cluster(args) if args is not None else []
    if os.environ.get("WORLD_SIZE", "1") != "1":
        faults.append("num_processes: prepare is one process; give engine_workers")
    return faults


def check_cluster(args: PrepareArguments) -> list[str]:
    """Faults of `cluster` and its options, and packages or programs that are missing for them."""
    if args.cluster is None:
        return []
    if find_spec("datatrove") is None:
        return [f"cluster: {args.cluster!r} needs datatrove; install 'rookworld-rlvr[cluster]'"]
    from rookworld_rlvr.data.cluster import option_faults  # it imports datatrove

    assert not isinstance(args.cluster_options, str)  # it has been read as JSON
    return option_faults(args.cluster, args.cluster_options or {})


def main(argv: Sequence[str]) -> None:
    parser = StrictParser(GROUPS)
    (args,) = parser.parse_strictly(argv, check_start)
    output = Path(args.output_file)
    check_writable(output)
    was_there, quarantine_file = output.exists(), output.with_suffix(".quarantine.jsonl")

    ################
    # Games
    ################
    if args.takes_games:
        play_missing_games(args)

    if args.cluster is None:
        ################
        # One run
        ################
        report = PrepareReport()
        rows = read_rows(args, report, quarantine_file)
        more = game_rows(args, report) if args.game_rows else ()
        write_labelled(output, rows, args, report, more)
    else:
        ################
        # Many tasks
        ################
        from rookworld_rlvr.data.cluster import label_on_cluster  # it imports datatrove

        if left := label_on_cluster(args):
            print(f"{left}. To see how far they are, or to go on if some failed, start again")
            return

    ################
    # File
    ################
    note = read_provenance(output)
    assert note is not None
    print("\n".join(report_lines(note["counts"])))
    if args.takes_games:
        print(f"games: {args.games_path}")
    print(f"written to {output}{', in place of an earlier file' if was_there else ''}")
    if args.cluster is None and quarantine_file.is_file():
        print(f"rows that are left out, with the reasons: {quarantine_file}")
    if args.hub_dataset_id:
        push(args.hub_dataset_id, output, data_card(note))


def push(name: str, output: Path, card: str) -> None:
    """Upload the file, including its provenance, with a card."""
    api = HfApi()
    contents: dict[str, Path | bytes] = {
        "data/train-00000-of-00001.parquet": output,
        "README.md": card.encode(),
    }
    try:
        api.create_repo(name, repo_type="dataset", exist_ok=True)
        for path, content in contents.items():
            api.upload_file(
                path_or_fileobj=content, path_in_repo=path, repo_id=name, repo_type="dataset"
            )
    except (OSError, ValueError) as error:
        raise RookWorldError(
            f"hub_dataset_id: {name!r} could not be written ({error}), but {output} is "
            "complete; log in (hf auth login) and start again"
        ) from error
    print(f"pushed to {name}")


if __name__ == "__main__":
    run_cli(main)
