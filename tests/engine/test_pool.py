"""The pool: the same values whatever happens to its processes, and no process left behind."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rookworld_rlvr.common.errors import EngineError, IllegalPositionError, RookWorldError
from rookworld_rlvr.engine import pool as engine
from rookworld_rlvr.engine.labeller import Labeller, position_asked
from rookworld_rlvr.engine.pool import find_engine
from rookworld_rlvr.tasks.types import Values

from ..engines import (
    DEEDS,
    POSITIONS,
    children,
    engine_arguments,
    misbehaving,
    script,
    searches,
    wait_until,
)
from ..rows import START
from ..support import ran, started

Truth = dict[str, Values]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.fixture(scope="module")
def truth(stockfish: str) -> Truth:
    """The values of `POSITIONS`, every one from a process of its own."""
    found = {}
    for position in POSITIONS:
        with Labeller(engine_arguments(stockfish)) as labeller:
            (values,) = labeller.values([position])
        assert values is not None
        found[position] = values
    return found


def test_values_depend_on_neither_order_company_nor_processes(truth: Truth, stockfish: str) -> None:
    back, turned = POSITIONS[::-1], POSITIONS[3:] + POSITIONS[:3]
    for workers, order in ((1, back), (2, turned), (3, back)):
        with Labeller(engine_arguments(stockfish, engine_workers=workers)) as labeller:
            labeller.values([START])
            assert labeller.values(order) == [truth[position] for position in order]
            assert labeller.searched == 1 + len(POSITIONS)


def test_the_source_names_engine_options_and_limit(stockfish: str) -> None:
    with Labeller(engine_arguments(stockfish)) as labeller:
        source = labeller.source
    said = ran(stockfish, input="uci\nquit\n").stdout
    (name,) = re.findall(r"^id name (.*)$", said, re.MULTILINE)
    (network,) = re.findall(r"^option name EvalFile .* default (\S+)$", said, re.MULTILINE)
    assert source.engine.startswith(f"{name} (")
    assert all(text in source.engine for text in (f"EvalFile {network}", "Hash 16", "Threads 1"))
    assert source.limit == "depth 3 for the best 5 moves, 2 for the others"


def test_the_move_number_plays_no_part_and_the_halfmove_clock_does(stockfish: str) -> None:
    early, late, near_draw = (f"8/8/8/4k3/8/8/4P3/4K3 w - - {n}" for n in ("0 1", "0 77", "90 77"))
    assert position_asked(early) == position_asked(late) == early
    assert position_asked(near_draw) == "8/8/8/4k3/8/8/4P3/4K3 w - - 90 1"
    with Labeller(engine_arguments(stockfish)) as labeller:
        one, other = labeller.values([early, late])
        assert one is not None and one == other and labeller.searched == 1
        labeller.values([near_draw])
        assert labeller.searched == 2


def test_what_has_no_move_is_refused_before_any_search(stockfish: str, tmp_path: Path) -> None:
    taken, mated = "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1", "7k/5KQ1/8/8/8/8/8/8 b - - 0 1"
    path = misbehaving(tmp_path, stockfish, "is silent", when="False")
    with Labeller(engine_arguments(path)) as labeller:
        for fen in (taken, mated, "hello"):
            with pytest.raises(IllegalPositionError, match=fen):
                labeller.values([POSITIONS[0], fen])
        assert (labeller.searched, searches(tmp_path)) == (0, 0)


def test_a_position_that_stands_twice_is_asked_once(stockfish: str, truth: Truth) -> None:
    one, other = POSITIONS[:2]
    with Labeller(engine_arguments(stockfish)) as labeller:
        values = labeller.values([one, other, one, one])
        assert values == [truth[one], truth[other], truth[one], truth[one]]
        assert labeller.values([other, one]) == [truth[other], truth[one]]
        assert labeller.searched == 2
        assert labeller.values([]) == []


def test_several_threads_may_ask_at_once(stockfish: str, truth: Truth) -> None:
    parts = [POSITIONS[first:] for first in range(4)]
    with (
        Labeller(engine_arguments(stockfish, engine_workers=2)) as labeller,
        ThreadPoolExecutor(4) as threads,
    ):
        got = list(threads.map(labeller.values, parts))
        assert labeller.searched == len(POSITIONS)
    assert got == [[truth[position] for position in part] for part in parts]


def wait_little(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if deed in ("is silent", "is deaf"):
        monkeypatch.setattr(engine, "TIMEOUT_S", 1.0)


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_an_engine_that_misbehaves_is_replaced_and_no_value_differs(
    stockfish: str,
    tmp_path: Path,
    truth: Truth,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
) -> None:
    wait_little(deed, monkeypatch)
    path = misbehaving(tmp_path, stockfish, deed, when="count == 8")  # in the second pass
    with Labeller(engine_arguments(path)) as labeller:
        assert labeller.values(POSITIONS) == [truth[position] for position in POSITIONS]
        assert labeller.given_up == {} and labeller.searched == len(POSITIONS)
    (replaced,) = (r.getMessage() for r in caplog.records if r.name == engine.logger.name)
    assert f"engine replaced at {POSITIONS[0]} (try 1 of 2)" in replaced
    assert len((tmp_path / "pids").read_text().split()) == 2


def test_an_engine_that_was_killed_between_two_calls_is_replaced_without_a_wait(
    stockfish: str, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    with Labeller(engine_arguments(stockfish)) as labeller:
        assert labeller.values(POSITIONS[:1]) == [truth[POSITIONS[0]]]
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        assert labeller.values(POSITIONS[1:]) == [truth[position] for position in POSITIONS[1:]]
        assert labeller.given_up == {}
    (replaced,) = (r.getMessage() for r in caplog.records if r.name == engine.logger.name)
    assert "no answer within" not in replaced


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("dies", "engine process died"),
        ("is deaf", "no answer within 1 s"),
        ("gives no score", "the answer has no score or no depth"),
        ("plays an illegal move", "the engine's answer cannot be right (invalid uci"),
    ],
)
def test_a_position_that_fails_twice_is_given_up_and_the_others_are_not(
    stockfish: str,
    tmp_path: Path,
    truth: Truth,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    reason: str,
) -> None:
    wait_little(deed, monkeypatch)
    bad, cache = POSITIONS[2], str(tmp_path / "values.sqlite")
    path = misbehaving(tmp_path, stockfish, deed, when=f"{bad.split()[0]!r} in position")
    with Labeller(engine_arguments(path, engine_cache=cache)) as labeller:
        assert labeller.values(POSITIONS) == [None if p == bad else truth[p] for p in POSITIONS]
        assert list(labeller.given_up) == [bad]
        assert reason in labeller.given_up[bad]
        asked = searches(tmp_path)
        assert labeller.values([bad, POSITIONS[0]]) == [None, truth[POSITIONS[0]]]
        assert searches(tmp_path) == asked
    with Labeller(engine_arguments(stockfish, engine_cache=cache)) as labeller:
        assert labeller.values([bad]) == [truth[bad]], "it is not kept on disk that it failed"


def test_five_failures_in_a_row_are_the_engines_fault(stockfish: str, tmp_path: Path) -> None:
    # They differ in the halfmove clock; the only move is h8h7.
    positions = [f"7k/8/5K2/6Q1/8/8/8/8 b - - {clock} 1" for clock in range(12)]
    cache = str(tmp_path / "values.sqlite")
    path = misbehaving(tmp_path, stockfish, "gives no score", when="count > 4")
    said = rf"{path}.*failed at 5 positions in a row .*no score or no depth.*give another engine"
    with Labeller(engine_arguments(path, engine_cache=cache)) as labeller:
        with pytest.raises(EngineError, match=said):
            labeller.values(positions)
        assert list(labeller.given_up) == positions[2:7]
        with pytest.raises(EngineError, match="in a row"):
            labeller.values(positions)
    with Labeller(engine_arguments(path, engine_cache=cache)) as labeller:
        assert None not in labeller.values(positions[:2])
        assert labeller.searched == 0  # what was valued before the failure is kept


def test_a_cache_that_fails_leaves_no_engine(stockfish: str, tmp_path: Path) -> None:
    with pytest.raises(RookWorldError, match="engine_cache"):
        Labeller(engine_arguments(stockfish, engine_cache=str(tmp_path)))


def test_an_interrupted_call_does_not_go_on_behind_the_back(stockfish: str, tmp_path: Path) -> None:
    # Ctrl-C where the work has been handed over and is not waited for yet.
    path = misbehaving(tmp_path, stockfish, "is deaf", when="count == 3")
    labeller = Labeller(engine_arguments(path, engine_workers=2))
    real = asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        real(work, loop)
        wait_until(lambda: searches(tmp_path) >= 3)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            labeller.values(POSITIONS)
    labeller.close()


PROGRAM = """
import signal
import sys
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine import EngineArguments

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
labeller = Labeller(EngineArguments(
    engine_path=sys.argv[1], engine_depth=3, engine_workers=2, engine_cache=":memory:"
))
try:
    labeller.values(sys.argv[2:])
except KeyboardInterrupt:
    print("interrupted")
    labeller.close()
print("end")
"""


def gone(folder: Path) -> bool:
    pids = (folder / "pids").read_text().split()
    assert pids
    return not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_a_program_that_forgets_to_close_leaves_no_process(stockfish: str, tmp_path: Path) -> None:
    path = misbehaving(tmp_path, stockfish, "is silent", when="False")
    done = ran(sys.executable, "-c", PROGRAM, path, *POSITIONS[:2], timeout=60)
    assert (done.stdout, done.stderr) == ("end\n", "")
    wait_until(lambda: gone(tmp_path))


def test_ctrl_c_ends_a_search_and_leaves_no_process(stockfish: str, tmp_path: Path) -> None:
    path = misbehaving(tmp_path, stockfish, "is deaf", when="count >= 3")
    with started(sys.executable, "-c", PROGRAM, path, *POSITIONS[:2]) as process:
        wait_until(lambda: searches(tmp_path) >= 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "interrupted\nend\n", "")
    wait_until(lambda: gone(tmp_path))


def test_the_argument_goes_first_then_the_variable_then_the_path_then_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / name for name in ("given", "variable", "path", "usual")]
    for place in places:
        place.mkdir()
    given, variable, path, usual = (script(place / "stockfish", "") for place in places)
    monkeypatch.setenv("STOCKFISH_PATH", variable)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(engine, "_USUAL_PLACES", ("/no/such/place", usual))
    assert find_engine(given) == given
    assert find_engine() == variable
    monkeypatch.setenv("STOCKFISH_PATH", "")
    assert find_engine() == path
    monkeypatch.setenv("PATH", "/no/such/place")
    assert find_engine() == usual
    monkeypatch.setattr(engine, "_USUAL_PLACES", ("/no/such/place",))
    with pytest.raises(EngineError, match=r"/no/such/place.*apt-get install.*STOCKFISH_PATH"):
        find_engine()
    (tmp_path / "text").write_text("no program")
    for wrong in (str(tmp_path / "given"), str(tmp_path / "text"), "/no/such/engine"):
        monkeypatch.setenv("STOCKFISH_PATH", wrong)
        for words in ([], [wrong]):
            with pytest.raises(EngineError, match=f"no program '{wrong}'"):
                find_engine(*words)


@pytest.mark.parametrize("body", ["", "input(); input()", 'input(); print("uciok"); input()'])
def test_a_program_that_is_no_engine_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
) -> None:
    monkeypatch.setattr(engine, "_HANDSHAKE_S", 1.0)
    path = script(tmp_path / "program", body)
    with pytest.raises(EngineError, match=f"'{path}' is not a UCI engine that runs here"):
        Labeller(engine_arguments(path))
