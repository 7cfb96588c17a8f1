"""What is shown of long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import re
import sys
import time

import datasets
import pytest

from rookworld_rlvr.common import progress
from rookworld_rlvr.common.progress import Progress, quiet, shown


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def work(clock: Clock, seconds: int, title: str = "making rows", total: int | None = 60) -> None:
    """Two rows a second."""
    with Progress(title, total) as bar:
        for _ in range(seconds):
            clock.now += 1
            bar.update(2)


@pytest.mark.parametrize(
    ("seconds", "total", "lines"),
    [
        (29, 60, ["20 of 60 rows (33%), 00:20 left", "40 of 60 rows (67%), 00:10 left"]),
        (10, None, ["20 rows in 00:10"]),
        (9, 60, []),  # short work
    ],
)
def test_a_log_has_a_line_every_ten_seconds(
    seconds: int,
    total: int | None,
    lines: list[str],
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work(clock, seconds, total=total)
    assert capsys.readouterr().err == "".join(f"making rows: {line}\n" for line in lines)


def test_other_processes_show_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    work(clock, 30)
    monkeypatch.setenv("RANK", "0")
    with quiet(True):
        work(clock, 30)
    assert capsys.readouterr().err == ""
    with quiet(False):
        work(clock, 30)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_only_the_outermost_is_shown_until_it_ends_or_fails(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("games", 2, "games") as games:
        work(clock, 30, "prompts")
        games.update()
    assert capsys.readouterr().err == "games: 1 of 2 games (50%), 00:30 left\n"
    with pytest.raises(KeyboardInterrupt), Progress("first", 2):
        raise KeyboardInterrupt
    work(clock, 10, "second")
    assert capsys.readouterr().err.startswith("second: 20")


def test_the_bars_of_dataset_map_are_lines_in_a_log(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.2)
    monkeypatch.setattr(datasets.arrow_dataset, "hf_tqdm", progress.LogBar)
    rows = datasets.Dataset.from_dict({"row": list(range(20))})
    rows.map(lambda _: time.sleep(0.05), desc="Parsing rows")
    rows.map(lambda _: None, desc="Short")
    lines = capfd.readouterr().err.splitlines(keepends=True)
    assert lines and all(
        re.fullmatch(r"Parsing rows: \d+ of 20 examples \(\d+%\), .* left\n", x) for x in lines
    )


def test_a_terminal_has_a_bar_with_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_BAR_AFTER_S", 0)
    assert list(shown(range(3), "making rows", 3)) == [0, 1, 2]
    assert "making rows:   0%" in terminal.getvalue() and "\r" in terminal.getvalue()
