"""Write an HTML report on a GRPO run, or on several side by side; it needs no network.

rookworld report runs/grpo_nano                         # writes runs/grpo_nano/report.html
rookworld report runs/a runs/b --output_file ab.html
rookworld report runs/evolve_nano                       # the rounds of rookworld evolve
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import POSITIONAL, run_cli
from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.common.files import check_writable, write_text
from rookworld_rlvr.common.settings import Checked, setting


def run_faults(runs: Sequence[str], where: str) -> list[str]:
    """Faults of the runs' folders, found before the report's code is loaded, and torch with it."""
    if not runs:
        return [f"{where}: no run is named; give its folder, such as runs/grpo_nano"]
    if missing := [run for run in runs if not Path(run).is_dir()]:
        remedy = "give the output_dir of a run of rookworld grpo"
        return [f"{where}: {run!r} is not a folder; {remedy}" for run in missing]
    from rookworld_rlvr.extras.report.page import MOST_RUNS

    if len(runs) <= MOST_RUNS:
        return []
    return [f"{where}: {len(runs)} folders; give {MOST_RUNS} at most"]


@dataclass
class ReportArguments(Checked):
    """Which runs to report on."""

    run: list[str] = setting(
        [],
        "The folder (output_dir) of a GRPO run, finished or not, or of the rounds of rookworld evolve; "
        "--run may be left out, and several be given.",
        check=run_faults,
    )
    tasks_from: list[str] = setting(
        [],
        "Your own tasks in these runs, each as path/to/file.py:Class; needed to show their answers.",
    )
    output_file: str | None = setting(
        None,
        "The HTML file to write; None writes report.html to the run's folder, or of several runs to "
        "the folder that the first one is in.",
    )


GROUPS = [ReportArguments]


def runs_of(folder: str) -> list[str]:
    """The runs of a folder: its rounds', or itself."""
    rounds = sorted(Path(folder).glob("round-*/train"))
    return [str(path) for path in rounds] or [folder]


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser(GROUPS, positional=POSITIONAL["report"]).parse_strictly(argv)
    from rookworld_rlvr.extras.report.page import MOST_RUNS, page
    from rookworld_rlvr.extras.report.record import read_runs

    rounds: list[dict[str, str]] = []
    if ledger := extra("evolve.ledger"):
        entries = (entry for folder in args.run for entry in ledger.read_ledger(Path(folder)))
        rounds = [*map(ledger.round_cells, entries)]
    runs = read_runs([run for folder in args.run for run in runs_of(folder)][-MOST_RUNS:])
    folder = Path(args.run[0]) if len(args.run) == 1 else Path(args.run[0]).parent
    path = Path(args.output_file or folder / "report.html")
    check_writable(path)
    write_text(path, page(runs, rounds))
    for run in runs:
        for line in run.missing:
            print(f"{run.name}: {line}")
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_cli(main)
