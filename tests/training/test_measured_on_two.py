"""What two processes measure together at a run's end; see `measured_on_two`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import launch
from .measured_on_two import measure


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    done = launch("--module", "tests.training.measured_on_two", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    one = measure(tmp_path)
    for rank in range(2):
        process = json.loads((tmp_path / f"process{rank}.json").read_text())
        for name in ("before", "after", "right"):
            assert process[name] == one[name], name
    counts = [count for found in one["right"].values() for count in found]
    assert any(0 < count < 16 for count in counts)
