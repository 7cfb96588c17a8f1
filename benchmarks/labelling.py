"""What labelling costs: by datatrove against the plain command, memory, and speed by depth.

    python benchmarks/labelling.py [pairs | memory | depths ...]

It needs Stockfish and the extra `cluster`, and takes some ten minutes on one core.

- `pairs`: positions per second on one core, by the plain command and by four tasks of datatrove one
  after the other, in pairs; every run has an empty cache.
- `memory`: the largest resident memory of the plain command at 25,000 and at 100,000 rows, each in a
  process of its own.
- `depths`: positions per second and core at each depth, and what five million positions take.

Positions are half openings, half middle games and endgames of random play.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path

from evaluation_positions import phase_positions

from rookworld_rlvr.data import synthesis
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.engine.labeller import Labeller

SCRIPT = Path(__file__).parents[1] / "recipes" / "prepare.py"
PAIRS, PAIR_ROWS, PAIR_DEPTH = 6, 1_000, 4
DEPTHS = {6: 200, 8: 100, 10: 80, 12: 40}  # positions to time at each
MILLION = 1_000_000
MEMORY_ROWS = (25_000, 100_000)
PRICE = 0.04  # US dollars for an hour of one core; change it to yours


def main(asked: Sequence[str]) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    for name, work in (("pairs", pairs), ("memory", memory), ("depths", depths)):
        if not asked or name in asked:
            for line in work():
                print(line, flush=True)


def positions(count: int) -> list[str]:
    """Different positions, the same in every run."""
    streams = [
        synthesis.opening_positions(3, 6),
        phase_positions(3, "middlegame"),
        synthesis.opening_positions(4, 10),
        phase_positions(3, "endgame"),
    ]
    found: dict[str, None] = {}
    while len(found) < count:
        found.update(dict.fromkeys(next(stream) for stream in streams))
    return list(islice(found, count))


def pairs() -> Iterator[str]:
    """The plain command and datatrove, one after the other, several times."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        rows = Path(name) / "rows.fen"
        rows.write_text("\n".join(positions(PAIR_ROWS)) + "\n")
        few = Path(name) / "few.fen"
        few.write_text("\n".join(positions(4)) + "\n")
        # The first call imports what is imported late.
        prepare(few, Path(name) / "few.parquet", 2, "--engine_cache", f"{name}/few.sqlite")
        for number in range(PAIRS):
            both = {
                "plain": ["--engine_cache", f"{name}/{number}.sqlite"],
                "datatrove": ["--cluster", "local", "--cluster_tasks", "4"],
            }
            seconds = {}
            for kind in sorted(both, reverse=bool(number % 2)):  # each is first in every other pair
                output = Path(name) / f"{kind}{number}.parquet"
                seconds[kind] = prepare(rows, output, PAIR_DEPTH, *both[kind])
            plain, other = seconds["plain"], seconds["datatrove"]
            ratios.append(plain / other)
            speeds = f"plain {PAIR_ROWS / plain:6.1f}, datatrove {PAIR_ROWS / other:6.1f}"
            yield f"pairs: {speeds} positions/s, ratio {ratios[-1]:.3f}"
    yield f"pairs: median ratio {statistics.median(ratios):.3f} (wanted: 0.9 at least)"


def prepare(rows: Path, output: Path, depth: int, *more: str) -> float:
    """Processor seconds of the command, in this process, and of its engines."""
    words = f"--dataset_name {rows} --output_file {output} --engine_depth {depth}".split()
    started = time.process_time() + children()
    with contextlib.redirect_stdout(None):
        import_module("prepare").main([*words, *more])
    return time.process_time() + children() - started


def memory() -> Iterator[str]:
    """The largest resident memory, by rows: different prompts, but only 500 different searches."""
    openings = synthesis.opening_positions(3, 6)
    fens = list(dict.fromkeys(islice(openings, 2_000)))[:500]
    with tempfile.TemporaryDirectory() as name:
        for count in MEMORY_ROWS:
            rows = Path(name) / f"{count}.fen"
            moves = range(10, 10 + count // len(fens))
            lines = (f"{fen.rsplit(maxsplit=1)[0]} {move}\n" for move in moves for fen in fens)
            rows.write_text("".join(lines))
            words = ["--dataset_name", str(rows), "--output_file", f"{name}/{count}.parquet"]
            words += ["--engine_cache", f"{name}/values.sqlite", "--engine_depth", "2"]
            code = (
                "import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
                "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
                "finally: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
            )
            done = subprocess.run(
                [sys.executable, "-c", code, str(SCRIPT), *words],
                check=True,
                capture_output=True,
                text=True,
            )
            yield f"memory: {count:,} rows: {done.stdout.split('peak ')[-1].strip()} MB"


def depths() -> Iterator[str]:
    """Positions per second and core, and what five million positions cost."""
    fens = positions(max(DEPTHS.values()))
    yield f"{'depth':>6}{'positions/s':>14}{'core hours, 5 million':>24}{'dollars':>10}"
    for depth, count in DEPTHS.items():
        args = EngineArguments(engine_depth=depth, engine_cache=":memory:")
        with Labeller(args) as labeller:
            started = time.process_time(), children()
            labeller.values(fens[:count])
            own = time.process_time() - started[0]
        speed = count / (own + children() - started[1])
        hours = 5 * MILLION / speed / 3600
        yield f"{depth:>6}{speed:>14.1f}{hours:>24,.0f}{hours * PRICE:>10,.0f}"


def children() -> float:
    """Processor seconds of the processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1:])
