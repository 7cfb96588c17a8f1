"""Where the truth about policy rows comes from, and that the engine is left alone without need."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import EngineError, RookWorldError
from rookworld_rlvr.data.loading import (
    DataArguments,
    DataReport,
    LoadedData,
    label_heldout,
    load_data,
    require_truth,
)
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.tasks.types import values_by_move

from ..engines import POSITIONS, FakeLabeller, engine_arguments, fake_values
from ..rows import START, column, write_jsonl

STORED_VALUES = {"e1d1": 5, "e1f1": -5}
STORED = column(STORED_VALUES)
ONE, OTHER = POSITIONS[:2]


def test_the_engine_is_asked_for_the_rows_without_values() -> None:
    labeller = FakeLabeller()
    truth: Any = PolicyTruth(labeller)  # type: ignore[arg-type]
    values = truth.values([ONE, OTHER, START], [None, STORED, []])
    assert values == [fake_values(ONE), STORED_VALUES, fake_values(START)]
    assert labeller.calls == [[ONE, START]]
    assert truth.values([ONE], [STORED]) == [STORED_VALUES]
    assert truth.values([], []) == []
    assert len(labeller.calls) == 1


def test_the_real_engine_is_opened_where_it_is_needed(stockfish: str) -> None:
    args = LabelArguments(
        stockfish, labels="stored_or_engine", engine_depth=3, engine_cache=":memory:"
    )
    with Labeller(engine_arguments(stockfish)) as labeller:
        found = labeller.values(POSITIONS)
    truth = PolicyTruth.open(args, 1)
    assert truth.labeller is not None
    values = truth.values(POSITIONS, [None] * len(POSITIONS))
    truth.labeller.close()
    assert values == found


@pytest.mark.parametrize(("labels", "unlabelled"), [("stored", 9), ("stored_or_engine", 0)])
def test_no_engine_is_looked_for_where_none_is_needed(labels: Any, unlabelled: int) -> None:
    args = LabelArguments(labels=labels, engine_path="/no/such/engine")
    truth = PolicyTruth.open(args, unlabelled)
    assert truth.labeller is None
    assert truth.values([ONE, OTHER], [STORED, None]) == [STORED_VALUES, None]
    if labels != "stored":
        with pytest.raises(EngineError, match="no program '/no/such/engine'"):
            PolicyTruth.open(args, 1)


def without_values(data: LoadedData, fens: Sequence[str] | None = None) -> LoadedData:
    """The data, its held-out policy rows (of those positions) without values."""

    def strip(row: dict[str, Any]) -> dict[str, Any]:
        bare = row["task"] == "policy" and (fens is None or row["fen"] in fens)
        return {**row, "action_values": None} if bare else row

    return replace(data, heldout=data.heldout.map(strip, features=data.heldout.features))


def heldout_policy(data: LoadedData) -> list[dict[str, Any]]:
    return [row for row in data.heldout.to_list() if row["task"] == "policy"]


def test_the_engine_values_the_held_out_rows_without_values(packaged: LoadedData) -> None:
    bare = [row["fen"] for row in heldout_policy(packaged)][::7]
    labeller = FakeLabeller()
    labelled = label_heldout(without_values(packaged, bare), PolicyTruth(labeller))
    assert labeller.calls == [bare]
    assert labelled.train is packaged.train
    for before, after in zip(packaged.heldout.to_list(), labelled.heldout.to_list(), strict=True):
        assert {**before, "action_values": 0} == {**after, "action_values": 0}
        asked = before["fen"] in bare
        expected = fake_values(before["fen"]) if asked else values_by_move(before["action_values"])
        assert values_by_move(after["action_values"]) == expected


LINES = [
    {"prompt": f"P: {fen}", "completion": "M: a1a2 E: 0.0 B: a1a2", "action_values": values}
    for fen, values in (
        *((f"8/8/8/4k3/8/8/4P3/4K3 w - - {n} 1", None) for n in range(30)),
        ("7k/8/5K2/6Q1/8/8/8/8 b - - 0 1", [{"move": "h8h7", "cp": -99_999}]),
    )
]


def loaded(tmp_path: Path, **options: Any) -> LoadedData:
    name = write_jsonl(tmp_path / "rows.jsonl", LINES)
    return load_data(DataArguments(dataset_name=name, **options))


def test_rows_without_values_are_counted_and_need_an_engine(tmp_path: Path) -> None:
    data = loaded(tmp_path, heldout_share=0.5)
    assert data.report.unlabelled == 30
    with pytest.raises(RookWorldError) as caught:
        require_truth(data, ["policy"])
    for words in ("30 policy rows", "rookworld prepare", "stored_or_engine"):
        assert words in str(caught.value)
    require_truth(data, ["policy"], labels="stored_or_engine")


def test_a_task_without_held_out_rows_cannot_be_measured(packaged: LoadedData) -> None:
    report = DataReport()
    report.heldout["policy"] = 5
    with pytest.raises(RookWorldError, match="no held-out rows of the task 'environment'"):
        require_truth(
            replace(packaged, report=report), ["policy", "environment"], labels="stored_or_engine"
        )
