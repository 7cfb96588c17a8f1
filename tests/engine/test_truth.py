import contextlib
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import EngineError, RookWorldError
from rookworld_rlvr.data import loading
from rookworld_rlvr.engine.labeller import Labeller, ValueCache
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.types import Values, ValueSource, values_by_move

from ..engines import POSITIONS, FakeLabeller, engine_arguments, fake_values
from ..rows import START, column, write_jsonl
from ..support import started

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


@pytest.mark.parametrize(("labels", "unlabelled"), [("stored", 9), ("stored_or_engine", 0)])
def test_no_engine_is_looked_for_where_none_is_needed(labels: Any, unlabelled: int) -> None:
    args = LabelArguments(labels=labels, engine_path="/no/such/engine")
    truth = PolicyTruth.open(args, unlabelled)
    assert truth.labeller is None
    assert truth.values([ONE, OTHER], [STORED, None]) == [STORED_VALUES, None]
    if labels != "stored":
        with pytest.raises(EngineError, match="no program '/no/such/engine'"):
            PolicyTruth.open(args, 1)


def test_the_engine_values_the_held_out_rows_without_values(packaged: loading.LoadedData) -> None:
    rows, labeller = packaged.heldout.to_list(), FakeLabeller()
    bare = [row for row in rows if row["task"] == "policy"][::7]
    fens = [row["fen"] for row in bare]
    values = [None if row in bare else row["action_values"] for row in rows]
    features = packaged.heldout.features
    stripped = packaged.heldout.remove_columns("action_values")
    stripped = stripped.add_column("action_values", values, feature=features["action_values"])
    labelled = loading.label_heldout(replace(packaged, heldout=stripped), PolicyTruth(labeller))
    assert labeller.calls == [fens] and labelled.train is packaged.train
    for before, after in zip(rows, labelled.heldout.to_list(), strict=True):
        assert {**before, "action_values": 0} == {**after, "action_values": 0}
        stored = values_by_move(before["action_values"])
        expected = fake_values(before["fen"]) if before in bare else stored
        assert values_by_move(after["action_values"]) == expected


def test_rows_without_values_are_counted_and_need_an_engine(tmp_path: Path) -> None:
    bare = {f"8/8/8/4k3/8/8/4P3/4K3 w - - {n} 1": None for n in range(30)}
    values = {**bare, "7k/8/5K2/6Q1/8/8/8/8 b - - 0 1": [{"move": "h8h7", "cp": -99_999}]}
    lines = [
        {"prompt": f"P: {fen}", "completion": "M: a1a2 E: 0.0 B: a1a2", "action_values": stored}
        for fen, stored in values.items()
    ]
    name = write_jsonl(tmp_path / "rows.jsonl", lines)
    data = loading.load_data(loading.DataArguments(dataset_name=name, heldout_share=0.5))
    assert data.report.unlabelled == 30
    said = r"30 policy rows.*rookworld prepare.*stored_or_engine"
    with pytest.raises(RookWorldError, match=said):
        loading.require_truth(data, ["policy"])
    loading.require_truth(data, ["policy"], labels="stored_or_engine")


def test_a_task_without_held_out_rows_cannot_be_measured(packaged: loading.LoadedData) -> None:
    report = loading.DataReport()
    report.heldout["policy"] = 5
    with pytest.raises(RookWorldError, match="no held-out rows of the task 'environment'"):
        loading.require_truth(replace(packaged, report=report), ["policy", "environment"])


SOURCE = ValueSource("Fake 1 (Hash 16, Threads 1)", "depth 4")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "values.sqlite"


def made_up(number: int = 0) -> Values:
    return {"e2e4": 99_999, "a7a8q": number, "a7a8n": -5}


def test_values_of_another_engine_or_limit_are_others(file: Path) -> None:
    others = ValueSource("Fake 2", SOURCE.limit), ValueSource(SOURCE.engine, "depth 5")
    caches = [ValueCache(file, source) for source in (SOURCE, *others)]
    for number, cache in enumerate(caches):
        assert cache.get(["one"]) == {}
        cache.put("one", made_up(number))
    for number, cache in enumerate(caches):
        assert cache.get(["one"]) == {"one": made_up(number)}
        cache.close()


WRITER = """
import itertools, sys
from rookworld_rlvr.engine.labeller import ValueCache
from rookworld_rlvr.tasks.types import ValueSource

path, engine, limit, name, count = sys.argv[1:]
source = ValueSource(engine, limit)
print("ready", flush=True)
sys.stdin.readline()
cache = ValueCache(path, source)
for n in itertools.islice(itertools.count(), int(count) or None):
    values = {"e2e4": 99_999, "a7a8q": n, "a7a8n": -5}
    for position in (f"{name} {n}", f"common {n}"):
        cache.put(position, values)
    print(n, flush=True)
"""


def writer(file: Path, name: str, count: int) -> Any:
    """A process that waits for a line and then writes; it says the number of each row it has put."""
    argv = map(str, (file, SOURCE.engine, SOURCE.limit, name, count))
    return started(sys.executable, "-c", WRITER, *argv, stdin=subprocess.PIPE, stderr=None)


def go(*writers: Any) -> None:
    """They begin when all are ready, so that they make the file at once, too."""
    assert [process.stdout.readline() for process in writers] == ["ready\n"] * len(writers)
    for process in writers:
        process.stdin.write("go\n")
        process.stdin.flush()


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    writers = [writer(file, name, 60) for name in ("a", "b", "c")]
    go(*writers)
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    cache = ValueCache(file, SOURCE)
    for name in ("a", "b", "c", "common"):
        expected = {f"{name} {n}": made_up(n) for n in range(60)}
        assert cache.get(expected) == expected
    cache.close()


def test_a_writer_that_is_killed_loses_at_most_the_row_being_written(file: Path) -> None:
    names = {f"killed after {count}": count for count in (1, 20, 33)}
    writers = {name: writer(file, name, 0) for name in names}
    for name, process in writers.items():
        go(process)
        said = [int(process.stdout.readline()) for _ in range(names[name])]
        process.kill()
        said += [int(line) for line in process.stdout]
        process.communicate()
        cache = ValueCache(file, SOURCE)
        kept = [n for n in range(len(said) + 5) if cache.get([f"{name} {n}"])]
        assert kept[: len(said)] == said
        assert len(kept) <= len(said) + 1
        assert all(cache.get([f"{name} {n}"]) == {f"{name} {n}": made_up(n)} for n in kept)
        cache.put("after the crash", made_up())
        cache.close()
    with sqlite3.connect(file) as whole:
        assert whole.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    whole.close()


def test_a_file_that_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("P: 8/8/8/8/8/8/8/8 w - - 0 1\n" * 100, encoding="utf-8")
    with contextlib.closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE action_values (cp INTEGER)")
    for path in (tmp_path, text / "values.sqlite", text, other):
        with pytest.raises(RookWorldError, match=f"engine_cache: cannot use '{path}'.*:memory:"):
            ValueCache(path, SOURCE).put("one", made_up())


def test_a_second_labeller_searches_nothing(stockfish: str, file: Path) -> None:
    args = engine_arguments(stockfish, engine_cache=str(file))
    with Labeller(args) as first:
        values = first.values(POSITIONS)
        assert first.searched == len(POSITIONS)
    with Labeller(args) as second:
        assert second.values(POSITIONS[::-1]) == values[::-1]
        assert second.searched == 0
    with Labeller(engine_arguments(stockfish, engine_cache=str(file), engine_depth=4)) as deeper:
        deeper.values(POSITIONS[:1])
        assert deeper.searched == 1


def test_the_real_engine_gives_the_values_and_rewards_of_stored_ones(stockfish: str) -> None:
    keys: Any = {"labels": "stored_or_engine", "engine_depth": 3, "engine_cache": ":memory:"}
    with Labeller(engine_arguments(stockfish, engine_depth=3)) as labeller:
        found: Any = labeller.values(POSITIONS)
    truth: Any = PolicyTruth.open(LabelArguments(engine_path=stockfish, **keys), 1)
    assert truth.values(POSITIONS, [None] * len(POSITIONS)) == found
    asked: dict[str, Any] = {"prompts": [f"P: {fen}" for fen in POSITIONS]}
    asked["completions"] = [f"M: {move} E: 0.1 B: {move}" for move in map(min, found)]
    stored, none = [column(values) for values in found], [None] * len(POSITIONS)
    specs: Any = ["policy_best_move", "policy_rank", "policy_evaluation", "graduated"]
    for live, known in zip(get_reward_funcs(specs, truth), get_reward_funcs(specs), strict=True):
        assert live(**asked, action_values=none) == known(**asked, action_values=stored)
    truth.labeller.close()
