"""Write an HTML report on a GRPO run, or on several side by side; it needs no network.

rookworld report --run runs/grpo_nano                            # writes runs/grpo_nano/report.html
rookworld report --run runs/a --run runs/b --output_file ab.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import check_writable
from rookworld_rlvr.common.settings import Checked, setting
from rookworld_rlvr.tasks.registry import TASKS


def run_faults(runs: Sequence[str], where: str) -> list[str]:
    """Faults of the runs' folders, found before the report's code is loaded, and torch with it."""
    if missing := [run for run in runs if not Path(run).is_dir()]:
        remedy = "give the output_dir of a run of rookworld grpo"
        return [f"{where}: {run!r} is not a folder; {remedy}" for run in missing]
    from rookworld_rlvr.reports.run import MOST_RUNS

    if 1 <= len(runs) <= MOST_RUNS:
        return []
    return [f"{where}: {len(runs)} folders; give 1 to {MOST_RUNS}, with --run before each"]


@dataclass
class ReportArguments(Checked):
    """Which runs to report on."""

    run: list[str] = setting(
        [],
        "The folder (output_dir) of a GRPO run, finished or not; repeat --run for several.",
        check=run_faults,
    )
    tasks_from: list[str] = setting(
        [],
        "Your own tasks in these runs, each as path/to/file.py:Class; needed to show their answers.",
    )
    output_file: str | None = setting(
        None, "The HTML file to write; None writes report.html to the first run's folder."
    )


GROUPS = [ReportArguments]


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser(GROUPS).parse_strictly(argv)
    from rookworld_rlvr.reports.run import page, read_runs

    runs = read_runs(args.run)
    for run in runs:
        if unknown := [task for task in run.config.get("tasks", ()) if task not in TASKS]:
            raise RookWorldError(
                f"{run.name} has the task {unknown[0]}, which is your own; add --tasks_from "
                f"{' '.join(run.config.get('tasks_from', ['path/to/file.py:Class']))}"
            )
    path = Path(args.output_file or Path(args.run[0]) / "report.html")
    check_writable(path)
    path.write_text(page(runs), encoding="utf-8", errors="backslashreplace")
    for run in runs:
        for line in run.missing:
            print(f"{run.name}: {line}")
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_cli(main)
