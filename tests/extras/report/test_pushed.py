"""A run that is pushed to the Hub takes its report along."""

from pathlib import Path

from ...hub import Hub
from ...support import script
from ...training.test_hub import PUSHED, hub

__all__ = ["hub"]


def test_a_report_is_pushed_with_the_run(hub: Hub, tmp_path: Path) -> None:
    script("grpo.py", *PUSHED, cwd=tmp_path)
    pushed = hub.files["ann/nano"]["report.html"]
    assert b"<html" in pushed and pushed == (tmp_path / "out" / "report.html").read_bytes()
