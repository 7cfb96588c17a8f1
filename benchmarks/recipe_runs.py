"""Runs of a recipe for the other benchmarks: started as a user would, and read from their files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Args:
        seconds: The whole time, loading and evaluation included.
        results: The content of `results.json`.
        logs: The trainer's log history, oldest first.
    """

    seconds: float
    results: dict[str, Any]
    logs: list[dict[str, Any]]

    def series(self, name: str) -> list[tuple[float, float]]:
        """A metric as ``(step, value)``."""
        return [(log["step"], log[name]) for log in self.logs if log.get(name) is not None]

    def timed(self, name: str) -> list[tuple[float, float]]:
        """A metric as ``(seconds of training, value)``."""
        return [(log["time/elapsed"], log[name]) for log in self.logs if log.get(name) is not None]


def run_recipe(
    output_dir: Path,
    *options: str,
    recipe: str = "grpo_nano.yaml",
    script: str = "recipes/grpo.py",
) -> Run:
    """Run a recipe, unless the folder holds a finished run, and read its last checkpoint.

    Args:
        output_dir: The run's folder.
        options: Overrides, as on the command line.
        recipe: The recipe's file in `recipes/`.
        script: The script that runs it.
    """
    log = output_dir.with_name(output_dir.name + ".log")
    seconds_file = output_dir / "seconds.json"
    if not seconds_file.is_file():
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(REPOSITORY / script)]
        command += ["--config", str(REPOSITORY / "recipes" / recipe)]
        command += ["--output_dir", str(output_dir), "--report_to", "none", *options]
        started = time.perf_counter()
        with log.open("w") as file:
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)
        seconds_file.write_text(json.dumps(time.perf_counter() - started))
    states = sorted(
        output_dir.glob("checkpoint-*/trainer_state.json"),
        key=lambda path: int(path.parent.name.split("-")[1]),
    )
    return Run(
        json.loads(seconds_file.read_text()),
        json.loads((output_dir / "results.json").read_text()),
        json.loads(states[-1].read_text())["log_history"],
    )
