"""What two processes measure together at a run's end; see `measured_on_two`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..conftest import launch
from .measured_on_two import measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """What each process found, and what both printed."""
    folder = tmp_path_factory.mktemp("two")
    done = launch("--module", "tests.training.measured_on_two", str(folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = [json.loads((folder / f"process{rank}.json").read_text()) for rank in range(2)]
    return found, done.stdout


def test_two_processes_find_what_one_finds(
    told: tuple[list[dict[str, Any]], str], tmp_path: Path
) -> None:
    """With another starting model each row has a KL of its own, so a share in a wrong place shows."""
    one = measure(tmp_path)
    assert min(one["kl"].values()) > 0.01 and len(set(one["kl"].values())) == 2
    for process in told[0]:
        assert process["kl"] == pytest.approx(one["kl"], rel=1e-4)
        for name in ("before", "after", "right"):
            assert process[name] == one[name], name
    counts = [count for found in one["right"].values() for count in found]
    assert any(0 < count < 16 for count in counts)


def test_a_start_that_one_process_cannot_load_is_measured_by_none(
    told: tuple[list[dict[str, Any]], str],
) -> None:
    """A process that returned alone would leave the other waiting for its share."""
    found, printed = told
    assert [process["gone"] for process in found] == [{}, {}]
    assert "is not measured: cannot load the model 'runs/start'" in printed
