"""Seconds of our GRPO step in two checkouts, in turns: what a change of the code saves.

    python benchmarks/two_trees.py ../old .                       # the packaged model, 16 prompts x 8
    python benchmarks/two_trees.py ../old . --turns 3 --model small

Each turn is a process of its own in each checkout, which runs its `grpo_step.py` for our trainer alone;
other options go to that script. It prints the medians, and the ratio of each turn. On a machine that
does other work, look at the ratios and not at the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PHASES = ("sampling, s", "scoring, s", "update, s", "step, s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    args, words = parser.parse_known_args()
    trees = [args.old.resolve(), args.new.resolve()]
    turns: list[list[dict[str, float]]] = []
    for turn in range(args.turns):
        order = trees if turn % 2 == 0 else trees[::-1]  # neither always comes first
        taken = {tree: one_turn(tree, words) for tree in order}
        turns.append([taken[tree] for tree in trees])
        print(line(f"turn {turn + 1}", turns[-1]), flush=True)
    medians = [
        {name: statistics.median(of[name] for of in side) for name in PHASES}
        for side in zip(*turns, strict=True)
    ]
    print(line("medians", medians))
    ratios = [new["step, s"] / old["step, s"] for old, new in turns]
    print(
        f"a step's ratio: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    return 0


def one_turn(tree: Path, words: Sequence[str]) -> dict[str, float]:
    """Seconds of a step's phases in one checkout."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "step.json")
        given = ["--kinds", "ours", "--turns", "1", "--output", str(output), *words]
        subprocess.run(
            [sys.executable, "benchmarks/grpo_step.py", *given],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = json.loads(output.read_text())
    return {name: rows[name]["ours"] for name in PHASES}


def line(title: str, sides: Sequence[dict[str, float]]) -> str:
    old, new = sides
    parts = (f"{name} {old[name]:.3f} -> {new[name]:.3f}" for name in PHASES)
    return f"{title}: {'; '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
