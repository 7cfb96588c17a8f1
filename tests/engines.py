"""Stockfish that misbehaves, and a labeller without any engine."""

import contextlib
import sqlite3
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import chess
import psutil

from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.tasks.types import Values, ValueSource

# Few moves each, so that a search takes milliseconds; some stand one move apart.
POSITIONS = (
    "8/8/8/4k3/8/8/4P3/4K3 w - - 0 1",
    "8/8/8/4k3/4P3/8/8/4K3 b - - 0 1",
    "8/8/3k4/8/4P3/8/8/4K3 w - - 1 1",
    "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 4 1",
    "6k1/5ppp/8/8/8/8/5PPP/1R4K1 b - - 5 1",
    "4r1k1/5ppp/8/8/8/8/3Q1PPP/6K1 b - - 0 1",
)


def engine_arguments(path: str, **options: object) -> EngineArguments:
    """Shallow searches, kept nowhere."""
    defaults = {"engine_depth": 3, "engine_cache": ":memory:"}
    return EngineArguments(engine_path=path, **{**defaults, **options})  # type: ignore[arg-type]


def script(path: Path, body: str) -> str:
    path.write_text(f"#!{sys.executable} -IS\n{textwrap.dedent(body)}", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


DEEDS = {
    "dies": "engine.kill(); os.kill(os.getpid(), signal.SIGKILL)",
    "dies in mid-search": "engine.stdin.write(b'go infinite\\n'); engine.stdin.flush(); "
    "time.sleep(0.05); engine.kill(); os.kill(os.getpid(), signal.SIGKILL)",
    "is silent": "pass",
    "is deaf": "time.sleep(3600)",
    "gives no score": "say('info depth 30 nodes 5', 'bestmove (none)')",
    "searches less deep": "say('info depth 1 score cp 15', 'bestmove (none)')",
    "talks nonsense": "say('\\x00\\x1b', 'info depth x score cp y', 'info', 'bestmove (none)')",
    "plays an illegal move": "say('info depth 30 score cp 15', 'bestmove a1a1')",
}


def misbehaving(folder: Path, stockfish: str, deed: str, when: str = "True") -> str:
    """Stockfish behind a script that does one of `DEEDS` in answer to `go`, where `when` holds.

    That is an expression over `count`, how often any process was told to `go`, and `position`, the
    line before it. The file `searches` has a byte for each `go`, the file `pids` a line a process.
    """
    body = f"""\
        import os, signal, subprocess, sys, time

        with open({str(folder / "pids")!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        engine = subprocess.Popen([{stockfish!r}], stdin=subprocess.PIPE)

        def say(*lines):
            sys.stdout.write("".join(line + "\\n" for line in lines))
            sys.stdout.flush()

        position = ""
        for line in iter(sys.stdin.buffer.readline, b""):
            if line.startswith(b"position"):
                position = line.decode()
            if line.startswith(b"go"):
                with open({str(folder / "searches")!r}, "ab") as file:
                    file.write(b".")
                    count = file.tell()
                if {when}:
                    {DEEDS[deed]}
                    continue
            engine.stdin.write(line)
            engine.stdin.flush()
        """
    return script(folder / "engine", body)


def searches(folder: Path) -> int:
    """How often the engines of `misbehaving` were told to `go`."""
    file = folder / "searches"
    return file.stat().st_size if file.exists() else 0


def children() -> set[int]:
    """This process's children and theirs, zombies too."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def wait_until_valued(place: Path, positions: int) -> None:
    wait_until(lambda: valued(place) >= positions)


def valued(place: Path) -> int:
    """Positions in a cache, or in all caches of a folder, so far."""
    total = 0
    for path in [*place.glob("*.sqlite")] or [place]:
        if not path.is_file():  # to connect would make it
            continue
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(path) as cache:
            total += int(cache.execute("SELECT COUNT(*) FROM action_values").fetchone()[0])
    return total


class FakeLabeller:
    """`Labeller`'s face: made-up values for every legal move; it gives up on those in `refuse`."""

    source = ValueSource("Fake 1", "depth 1")

    def __init__(self, refuse: Sequence[str] = ()) -> None:
        self.refuse = refuse
        self.calls: list[list[str]] = []
        self.given_up: dict[str, str] = {}
        self.searched = 0

    def values(self, fens: Sequence[str]) -> list[Values | None]:
        self.calls.append(list(fens))
        self.given_up |= {fen: "refused" for fen in fens if fen in self.refuse}
        return [None if fen in self.refuse else fake_values(fen) for fen in fens]


def fake_values(fen: str) -> Mapping[str, int]:
    """100, 99, 98, ... centipawns for the legal moves in the order of the alphabet."""
    moves = sorted(move.uci() for move in chess.Board(fen).legal_moves)
    return {move: 100 - index for index, move in enumerate(moves)}
