"""Seconds of a GRPO step: plain TRL and ours, the same work, taking turns in one process.

    python benchmarks/grpo_step.py                  # the packaged model, 16 prompts x 8: four minutes
    python benchmarks/grpo_step.py --model small    # GPT-2 small's shape with random weights, 4 x 8
    python benchmarks/grpo_step.py --engine_reward  # plain TRL with a Stockfish search a completion
    python benchmarks/grpo_step.py --kinds plain static ours  # and TRL with a cache of fixed size
    python benchmarks/grpo_step.py --kinds ours graphs  # on a GPU: ours by the loop and by CUDA graphs

It prints the median over the turns of what a step's phases take, and the ratios. It exits with 1 if the
prompts differ. Completions are sampled, so their lengths and rewards agree only on average: compare the
last lines. With `--engine_reward` plain TRL asks an engine about every completion, as the predecessors
of this package did, while ours reads the values that are stored with the rows. What is the same for both
is in `step_trainers.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chess
import chess.engine
import torch
from step_trainers import KINDS, PHASES, TITLES, USUAL_KINDS, add_work, trainer_of, work_of

from rookworld_rlvr.engine.pool import find_engine


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_work(parser)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a turn; the first is left out")
    parser.add_argument("--engine_reward", action="store_true")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(USUAL_KINDS))
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    args = parser.parse_args()
    work = work_of(args)
    with tempfile.TemporaryDirectory() as folder, searched(args.engine_reward) as search:
        trainers = {
            kind: trainer_of(
                kind,
                work,
                args.steps,
                Path(folder) / kind,
                search if kind in ("plain", "static") else None,
            )
            for kind in args.kinds
        }
        turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in args.kinds}
        for _ in range(args.turns):
            for kind in list(trainers):
                turn = taken(trainers[kind])
                if turn is None:
                    print(f"{kind}: out of memory")
                    del trainers[kind], turns[kind]
                else:
                    turns[kind].append(turn)
            prompts = [trainer.stopwatch.prompts for trainer in trainers.values()]
            if any(other != prompts[0] for other in prompts):
                print("the prompts differ: this is not the same work")
                return 1
            if args.output:  # after each turn, should the next one be cut short
                args.output.write_text(json.dumps(summary(turns, args.kinds)))
    print(f"{work.prompts} x {work.completions}, {work.new_tokens} new tokens, {work.model}")
    titles = "".join(f"{TITLES[kind]:>14}" for kind in args.kinds)
    print(f"{'a step':<20}{titles}{'ratio':>8}{'of turns':>16}")
    for name, row in summary(turns, args.kinds).items():
        print(line(name, row, args.kinds))
    return 0 if args.kinds[-1] in turns else 1


def taken(trainer: Any) -> dict[str, float] | None:
    """The means of a turn's steps but the first; None if the device ran out of memory."""
    trainer.stopwatch.clear()
    try:
        trainer.train()
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()  # the other trainer's turn is next
    noted = trainer.stopwatch
    steps = noted.seconds[1:]
    means = {f"{phase}, s": statistics.fmean(step[phase] for step in steps) for phase in PHASES}
    tokens, rewards = statistics.fmean(noted.tokens[1:]), statistics.fmean(noted.rewards[1:])
    speed = tokens / means["step, s"]
    return {**means, "tokens a second": speed, "completion tokens": tokens, "mean reward": rewards}


def summary(
    turns: dict[str, list[dict[str, float]]], kinds: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Of each number the medians, None where memory ran out, and the last kind's by the first's.

    Args:
        turns: What was taken, by kind; a kind whose memory ran out is missing.
        kinds: All kinds.
    """
    names = next(iter(turns.values()), [{}])[0]
    numbers: dict[str, dict[str, Any]] = {}
    for name in names:
        columns = {kind: [turn[name] for turn in taken] for kind, taken in turns.items()}
        row: dict[str, Any] = dict.fromkeys(kinds)
        row |= {kind: statistics.median(column) for kind, column in columns.items()}
        first, last = columns.get(kinds[0], ()), columns.get(kinds[-1], ())
        row["ratios"] = [b / a for a, b in zip(first, last, strict=False) if a]
        row["ratio"] = row[kinds[-1]] / row[kinds[0]] if row["ratios"] else None
        numbers[name] = row
    return numbers


def line(name: str, row: dict[str, Any], kinds: Sequence[str]) -> str:
    """A row of the table."""
    cells = (f"{'-' if row[kind] is None else format(row[kind], '.4g'):>14}" for kind in kinds)
    text = f"{name:<20}{''.join(cells)}"
    if row["ratio"] is None:
        return text
    lowest, highest = min(row["ratios"]), max(row["ratios"])
    return f"{text}{row['ratio']:>8.2f}{f'{lowest:.2f} to {highest:.2f}':>16}"


@contextmanager
def searched(is_asked: bool) -> Iterator[Any]:
    """A reward that searches each completion's position five lines deep, as the predecessors' did."""
    if not is_asked:
        yield None
        return
    with chess.engine.SimpleEngine.popen_uci(find_engine()) as engine:

        def lines(prompts: Any, completions: Any, fen: Any, **columns: Any) -> list[float]:
            limit = chess.engine.Limit(depth=10)
            return [
                float(len(engine.analyse(chess.Board(position), limit, multipv=5)))
                for position in fen
            ]

        yield lines


if __name__ == "__main__":
    sys.exit(main())
