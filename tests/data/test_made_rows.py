"""Rows that were made or parsed are kept by datasets, until anything that they follow from changes."""

from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.data import loading, parsing, synthesis
from rookworld_rlvr.data.loading import made_rows, parsed_rows
from rookworld_rlvr.data.parsing import parse_rows, raw_rows
from rookworld_rlvr.data.sources import Malformed, RowArguments
from rookworld_rlvr.tasks.policy import POLICY
from rookworld_rlvr.tasks.registry import TASKS

from ..rows import write_jsonl

SHARES = {"openings": 0.8, "illegal_actions": 0.2}


def calls_of(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """A one for each call of a function."""
    calls: list[int] = []
    real = getattr(module, name)

    def counted(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    monkeypatch.setattr(loading, "WORTH_KEEPING", 30)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    return calls_of(monkeypatch, synthesis, "environment_prompts")


def arguments(**options: Any) -> RowArguments:
    defaults: dict[str, Any] = {"synthetic_rows": 20, "synthetic_shares": SHARES}
    return RowArguments(**{**defaults, "synthetic_fill_in_rows": 15, **options})


def test_rows_are_made_once_until_anything_that_they_follow_from_changes(made, monkeypatch) -> None:
    first = made_rows(arguments())
    assert made
    del made[:]
    assert made_rows(arguments()) == first and made == []
    assert [row["task"] for row in first] == ["environment"] * 20 + ["fill_in"] * 15
    assert all(isinstance(row["history"], list) for row in first)
    for other in (
        {"synthetic_seed": 1},
        {"synthetic_rows": 21},
        {"synthetic_fill_in_rows": 16},
        {"synthetic_opening_plies": 6},
        {"synthetic_shares": {"openings": 1.0}},
    ):
        del made[:]
        assert made_rows(arguments(**other)) != first and made, other
    for module, name, value in (
        (chess, "__version__", "0"),
        (loading, "__version__", "0"),
        (loading, "_source_digest", lambda: "changed"),
        (loading, "WORTH_KEEPING", 36),
    ):
        monkeypatch.setattr(module, name, value)
        del made[:]
        assert made_rows(arguments()) == first and made, name


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    monkeypatch.setattr(loading, "LARGE_FILE", 1)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "kept")
    return calls_of(monkeypatch, parsing, "parse_raw")


FEN = "8/8/8/8/8/2k5/8/K2R4 w - - 0 1"


def test_a_file_is_parsed_once_and_its_faults_are_kept(parsed: list[int], tmp_path: Path) -> None:
    rows = [f"P: {FEN}", "nonsense", f"P: {FEN.replace('K', '1')}"]
    args = RowArguments(write_jsonl(tmp_path / "rows.jsonl", rows))
    first = parsed_rows(args, ["policy"])
    assert parsed == [1, 1], "the second is no row at all"
    assert first == list(parse_rows(raw_rows(args), tasks=["policy"]))
    good, *bad = first
    assert isinstance(good, dict) and good["fen"] == FEN
    assert [isinstance(row, Malformed) and row.number for row in bad] == [2, 3]
    del parsed[:]
    assert parsed_rows(args, ["policy"]) == first and parsed == []


def test_another_content_and_own_tasks_are_parsed_anew(parsed, tmp_path: Path, monkeypatch) -> None:
    args = RowArguments(write_jsonl(tmp_path / "rows.jsonl", [f"P: {FEN}"]))
    parsed_rows(args, ["policy"])
    write_jsonl(tmp_path / "rows.jsonl", [f"P: {FEN.replace('0 1', '0 2')}"])
    (row,) = parsed_rows(args, ["policy"])
    assert len(parsed) == 2 and isinstance(row, dict) and row["fen"].endswith("0 2")

    class Own(type(POLICY)):  # type: ignore[misc]
        """A task of the user's, whose code may change."""

    monkeypatch.setitem(TASKS, "own", Own())
    parsed_rows(args, ["policy"])
    assert len(parsed) == 3
