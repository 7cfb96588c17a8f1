"""What is shown of long work: a bar on a terminal, plain lines in a log."""

import re
import time
from typing import Any

import pytest

from rookworld_rlvr.common import progress
from rookworld_rlvr.common.progress import Progress, quiet, shown


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.1)


def work(title: str = "making rows", total: int | None = 30) -> None:
    for _ in shown(range(30), title, total):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("total", "line"),
    [(30, r"\d+ of 30 rows \(\d+%\), 00:0\d left"), (None, r"\d+ rows in 00:0\d")],
)
def test_a_log_has_a_line_from_time_to_time(total: int | None, line: str, capsys: Any) -> None:
    work(total=total)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 10 and all(re.fullmatch(f"making rows: {line}", x) for x in lines)
    for _ in shown(range(3), "short work", total):
        pass
    assert capsys.readouterr().err == ""


def test_other_processes_show_nothing(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "1")
    work()
    monkeypatch.setenv("RANK", "0")
    for wanted in (True, False):
        with quiet(wanted):
            work()
        assert bool(capsys.readouterr().err) is not wanted


def test_only_the_outermost_is_shown_until_it_ends_or_fails(capsys: Any) -> None:
    with Progress("games", 2, "games") as games:
        work("prompts")
        games.update()
    assert capsys.readouterr().err == "games: 1 of 2 games (50%), 00:00 left\n"
    with pytest.raises(KeyboardInterrupt), Progress("first", 2):
        raise KeyboardInterrupt
    work("second")
    assert capsys.readouterr().err.startswith("second: ")
