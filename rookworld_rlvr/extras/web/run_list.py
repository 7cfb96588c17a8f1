"""The runs of a folder, each in one line: name, date, and how much held-out answers have changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ...tasks.metrics import headlines
from ...training import results as files


def runs_with_reports(runs: Sequence[str]) -> list[str]:
    """Those of some runs that `rookworld report` can show: runs of GRPO."""
    return [run for run in runs if _is_grpo(Path(run, files.RESOLVED_CONFIG))]


def _is_grpo(config: Path) -> bool:
    try:
        return "num_generations:" in config.read_text("utf-8")
    except (OSError, ValueError):
        return False


def described(run: Path, folder: Path) -> str:
    """A run's name in its folder, its date, and the change of each headline with its 95% interval."""
    config = run / files.RESOLVED_CONFIG
    results = run / files.RESULTS
    changed = results.stat().st_mtime if results.is_file() else config.stat().st_mtime
    when = datetime.fromtimestamp(changed, UTC).astimezone()
    name = run.relative_to(folder) if run.is_relative_to(folder) else run
    return f"{name} · {when.day} {when:%b %Y, %H:%M} · {_changes(run, changed)}"


@cache
def _changes(run: Path, changed: float) -> str:
    """The changes in points; `changed` makes a run that was written again be read again."""
    try:
        content = json.loads((run / files.RESULTS).read_text("utf-8"))
        before, after = (files.heldout_results(content, when) for when in ("before", "after"))
        pairs = files.compared(run)
    except FileNotFoundError:
        return "did not finish"
    except (OSError, ValueError, KeyError, TypeError):
        return "its results cannot be read"
    parts = []
    for metric in headlines().values():
        if metric in before and metric in after:
            change = files.change_text(metric, after[metric].value - before[metric].value)
            if pair := pairs.get(metric):
                change += f" ({files.change_interval(pair)})"
            parts.append(f"{metric} {change}")
    return f"{'; '.join(parts)} points" if parts else "no held-out results"
