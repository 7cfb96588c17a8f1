"""Report on a GRPO run, or several side by side: one HTML page that needs no network.

python recipes/report.py --run runs/grpo_nano                                # runs/grpo_nano/report.html
python recipes/report.py --run runs/a --run runs/b --output_file ab.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import check_writable
from rookworld_rlvr.reports.run import MOST_RUNS, page, read_runs


@dataclass
class ReportArguments:
    """What to report on.

    Args:
        run: The `output_dir` of each run of `recipes/grpo.py`, finished or not.
        output_file: Where the page goes; `report.html` in the first run's folder where None.
    """

    run: list[str] = field(default_factory=list)
    output_file: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.run) <= MOST_RUNS:
            raise ConfigurationError(
                [f"run: {len(self.run)} folders; give 1 to {MOST_RUNS}, --run for each"]
            )


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser([ReportArguments]).parse_strictly(argv)
    runs = read_runs(args.run)
    path = Path(args.output_file or Path(args.run[0]) / "report.html")
    check_writable(path)
    path.write_text(page(runs), encoding="utf-8")
    for run in runs:
        for line in run.missing:
            print(f"{run.name}: {line}")
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_cli(main)
