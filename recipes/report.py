"""Write an HTML report on a GRPO run, or on several side by side; it needs no network.

rookworld report --run runs/grpo_nano                            # writes runs/grpo_nano/report.html
rookworld report --run runs/a --run runs/b --output_file ab.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.common.files import check_writable
from rookworld_rlvr.common.settings import Checked, setting
from rookworld_rlvr.reports.run import MOST_RUNS, page, read_runs


@dataclass
class ReportArguments(Checked):
    """Which runs to report on."""

    run: list[str] = setting(
        [],
        "The folder (output_dir) of a GRPO run, finished or not; repeat --run for several.",
        check=lambda runs, where: (
            []
            if 1 <= len(runs) <= MOST_RUNS
            else [f"{where}: {len(runs)} folders; give 1 to {MOST_RUNS}, with --run before each"]
        ),
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
    runs = read_runs(args.run)
    path = Path(args.output_file or Path(args.run[0]) / "report.html")
    check_writable(path)
    path.write_text(page(runs), encoding="utf-8", errors="backslashreplace")
    for run in runs:
        for line in run.missing:
            print(f"{run.name}: {line}")
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_cli(main)
