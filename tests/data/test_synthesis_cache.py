"""Made rows are kept on disk: the same ones come back, and what is broken is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import pyarrow.parquet
import pytest

from rookworld_rlvr.common import progress
from rookworld_rlvr.data import synthesis, synthesis_cache
from rookworld_rlvr.data.loading import is_held_out
from rookworld_rlvr.data.prepare.arguments import PrepareArguments
from rookworld_rlvr.data.prepare.arguments import made_rows as prepared_rows
from rookworld_rlvr.data.sources import SourceArguments

SHARES = {"openings": 0.8, "illegal_actions": 0.2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(synthesis_cache, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(synthesis_cache, "WORTH_KEEPING", 30)
    return tmp_path / "synthesis"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that rows were made with."""
    seeds: list[int] = []
    make = synthesis.environment_prompts

    def counted(seed: int, *args: Any) -> Iterator[Any]:
        seeds.append(seed)
        return make(seed, *args)

    monkeypatch.setattr(synthesis, "environment_prompts", counted)
    return seeds


def arguments(**options: Any) -> SourceArguments:
    defaults: dict[str, Any] = {"synthetic_rows": 20, "synthetic_shares": SHARES}
    return SourceArguments(**{**defaults, "synthetic_fill_in_rows": 15, **options})


def test_rows_are_made_once_and_come_back_as_they_were(folder: Path, made: list[int]) -> None:
    first = arguments().made_rows()
    (file,) = folder.iterdir()
    assert file.suffix == ".parquet" and made == [0, made[1]]
    del made[:]
    assert arguments().made_rows() == first and made == []
    assert [row["task"] for row in first] == ["environment"] * 20 + ["fill_in"] * 15
    assert all(isinstance(row["history"], list) for row in first)


@pytest.mark.parametrize(
    "other",
    [
        {"synthetic_seed": 1},
        {"synthetic_rows": 21},
        {"synthetic_fill_in_rows": 16},
        {"synthetic_opening_plies": 6},
        {"synthetic_shares": {"openings": 1.0}},
        {"synthetic_fill_in_shares": {"rank": 1.0}},
    ],
)
def test_other_arguments_are_other_rows(folder: Path, other: dict[str, Any]) -> None:
    rows = arguments().made_rows()
    assert arguments(**other).made_rows() != rows
    assert len(list(folder.iterdir())) == 2


def test_other_versions_and_code_are_other_rows(
    folder: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (chess, "__version__", "0"),
        (synthesis_cache, "__version__", "0"),
        (synthesis_cache, "_source_digest", lambda: "changed"),
    ):
        del made[:]
        arguments().made_rows()
        monkeypatch.setattr(module, name, value)
    arguments().made_rows()
    assert made and len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "byte", "text", "empty"])
def test_a_broken_file_is_made_anew(
    folder: Path, made: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = arguments().made_rows()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[200] ^= 0xFF  # in the first column's data
    broken = {"cut": whole[:-50], "byte": bytes(changed), "text": b"no Parquet", "empty": b""}
    file.write_bytes(broken[damage])
    del made[:]
    assert arguments().made_rows() == rows and made
    assert "is broken" in caplog.text
    del made[:]
    assert arguments().made_rows() == rows and not made


def test_a_half_written_file_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pyarrow.parquet, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arguments().made_rows()
    assert list(folder.iterdir()) == []


def test_rows_are_made_where_none_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(synthesis_cache, "cache_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(synthesis_cache, "WORTH_KEEPING", 1)
    assert len(arguments().made_rows()) == 35
    assert "not kept" in caplog.text


def test_few_rows_are_not_kept(folder: Path) -> None:
    arguments(synthetic_rows=5, synthetic_fill_in_rows=0).made_rows()
    assert not folder.exists()


def test_prepared_rows_of_the_held_out_share_are_kept_apart(folder: Path) -> None:
    options: dict[str, Any] = {"output_file": "rows.parquet", "synthetic_rows": 40}
    options |= {"synthetic_shares": SHARES}
    everything = list(prepared_rows(PrepareArguments(**options)))
    for share in (0.5, 0.3):
        args = PrepareArguments(**options, synthetic_heldout_share=share)
        rows = list(prepared_rows(args))
        assert rows == list(prepared_rows(args)) and rows != everything
        assert all(is_held_out(row["fen"], share) for row in rows)
    assert len(list(folder.iterdir())) == 3


def test_making_rows_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0)
    arguments().made_rows()
    shown = capsys.readouterr().err
    assert "making rows: 35 of 35 rows (100%)" in shown and "\r" not in shown
