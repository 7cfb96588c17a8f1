"""Memory of GRPO steps: plain TRL and ours, the same work, each in a process of its own.

    python benchmarks/memory.py                     # the packaged model, 8 prompts x 8 and 32 x 16
    python benchmarks/memory.py --model small       # GPT-2 small's shape with random weights
    python benchmarks/memory.py --growth            # 200 steps of 8 x 8

It prints the peak of three steps. On a GPU that is what torch has allocated; on a CPU it is the largest
resident set less what was resident before training, which needs Linux. With `--growth` it prints the
mean of the last quarter of the steps divided by that of the second quarter: memory that grows makes it
larger than 1. What is the same for both is in `step_trainers.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from step_trainers import KINDS, USUAL_KINDS, add_work, trainer_of, work_of
from transformers import TrainerCallback

MIB = 1 << 20


class Memory(TrainerCallback):  # type: ignore[misc]
    """Bytes in use after each step."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bytes.append(in_use())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_work(parser)
    parser.add_argument("--sizes", nargs="+", help="prompts x completions, such as 8x8")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--steps", type=int, help="3, with --growth 200")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(USUAL_KINDS))
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--here", choices=KINDS, help=argparse.SUPPRESS)  # in this process
    args = parser.parse_args()
    args.steps = args.steps or (200 if args.growth else 3)
    if not torch.cuda.is_available() and not sys.platform.startswith("linux"):
        sys.exit("benchmarks/memory.py: without a GPU it needs Linux, which tells the peak")
    if args.here:
        print(json.dumps(measure(args.here, args)))
        return 0
    sizes = args.sizes or (["8x8"] if args.growth else ["8x8", "32x16"])
    unit = "last quarter / second" if args.growth else "peak, MiB"
    print(f"{unit:<24}" + "".join(f"{kind:>16}" for kind in args.kinds) + f"{'ratio':>8}")
    numbers: dict[str, dict[str, float | None]] = {}
    for size in sizes:
        row = numbers[size] = {kind: measured_apart(kind, size) for kind in args.kinds}
        cells = "".join(f"{shown(row[kind], args.growth):>16}" for kind in args.kinds)
        plain, ours = row.get("plain"), row.get("ours")
        print(f"{size:<24}{cells}{f'{ours / plain:.2f}' if plain and ours else '-':>8}", flush=True)
    if args.output:
        args.output.write_text(json.dumps(numbers))
    return 1 if any(row.get("ours", 0) is None for row in numbers.values()) else 0


def shown(number: float | None, growth: bool) -> str:
    if number is None:
        return "out of memory"
    return f"{number:.4f}" if growth else f"{number / MIB:.0f}"


def measured_apart(kind: str, size: str) -> float | None:
    """What `measure` returns in a process of its own, with this one's options."""
    prompts, completions = size.split("x")
    command = [sys.executable, __file__, *sys.argv[1:], "--here", kind]
    command += ["--prompts", prompts, "--completions", completions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{kind}, {size}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    number: float | None = json.loads(done.stdout.splitlines()[-1])
    return number


def measure(kind: str, args: argparse.Namespace) -> float | None:
    """The peak in bytes, or the growth as a ratio; None if the device ran out of memory."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(kind, work_of(args), args.steps, Path(folder))
        memory = Memory()
        trainer.add_callback(memory)
        before = forget_peak()
        try:
            trainer.train()
        except torch.OutOfMemoryError:
            return None
    if not args.growth:
        return max(0, peak() - before)
    quarter = len(memory.bytes) // 4
    return fmean(memory.bytes[-quarter:]) / fmean(memory.bytes[quarter : 2 * quarter])


# --------------------------------------------------------------------------------------------------
# Bytes
# --------------------------------------------------------------------------------------------------
def in_use() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else resident("VmRSS")


def peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")


def forget_peak() -> int:
    """Start a new peak; what to take off it: on a CPU the libraries and the model, on a GPU nothing."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return 0
    ctypes.CDLL(None).malloc_trim(0)  # or steps would use what loading has freed
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(name: str) -> int:
    """Bytes of this process that are in memory, by the kernel's name for them."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None, name
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
