"""Values on disk: what one process has searched, no other searches again, and nothing is lost."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.engine.labeller import Labeller, ValueCache
from rookworld_rlvr.tasks.types import Values, ValueSource

from ..engines import POSITIONS, engine_arguments

SOURCE = ValueSource("Fake 1 (Hash 16, Threads 1)", "depth 4")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "values.sqlite"


def made_up(number: int = 0) -> Values:
    return {"e2e4": 99_999, "a7a8q": number, "a7a8n": -5}


@pytest.mark.parametrize(
    "other", [ValueSource("Fake 2", SOURCE.limit), ValueSource(SOURCE.engine, "depth 5")]
)
def test_values_of_another_engine_or_limit_are_others(file: Path, other: ValueSource) -> None:
    mine, theirs = ValueCache(file, SOURCE), ValueCache(file, other)
    mine.put("one", made_up(1))
    assert theirs.get(["one"]) == {}
    theirs.put("one", made_up(2))
    assert mine.get(["one"]) == {"one": made_up(1)}
    assert theirs.get(["one"]) == {"one": made_up(2)}
    mine.close()
    theirs.close()


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


def writer(file: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that waits for a line and then writes; it says the number of each row it has put."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file), SOURCE.engine, SOURCE.limit, name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    count = 60
    writers = [writer(file, name, count) for name in ("a", "b", "c")]
    for process in writers:  # all ready: they make the file at once, too
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    cache = ValueCache(file, SOURCE)
    for name in ("a", "b", "c", "common"):
        assert cache.get(f"{name} {n}" for n in range(count)) == {
            f"{name} {n}": made_up(n) for n in range(count)
        }
    cache.close()


def test_a_writer_that_is_killed_loses_at_most_the_row_being_written(file: Path) -> None:
    for kill_after in (1, 20, 33):
        name = f"killed after {kill_after}"
        process = writer(file, name, 0)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        said = [int(process.stdout.readline()) for _ in range(kill_after)]
        process.kill()
        said += [int(line) for line in process.stdout]
        process.wait()
        process.stdin.close()
        process.stdout.close()
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
