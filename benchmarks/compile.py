"""How fast updates of the packaged recipe are: plain, compiled with buckets, compiled without them.

    python benchmarks/compile.py                        # three runs of 40 steps: some minutes

It prints the seconds of an update (losses and gradients, no sampling) after the warm-up: the median,
the slowest, and the median divided by the plain one's; and how much was compiled. It exits with 1 if
anything was compiled after the warm-up with buckets. Whether compiling pays depends on the machine, so
it is not checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import yaml
from recipe_runs import REPOSITORY, Run, run_recipe

WARMUP = 3
COMPILED = {"torch_compile": True, "compile_warmup_steps": WARMUP}
KINDS = {
    "plain": {},
    "compiled, buckets": COMPILED,
    "compiled, no buckets": {**COMPILED, "shape_buckets": []},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="grpo_nano.yaml", help="under recipes/")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/compile"))
    args = parser.parse_args()
    runs = {kind: measure(kind, args) for kind in KINDS}
    print(
        f"{'update, seconds':<22}{'median':>8}{'slowest':>9}{'of plain':>10}{'graphs':>8}"
        f"{'compiling, s':>14}{'after warm-up':>15}"
    )
    plain = statistics.median(updates(runs["plain"]))
    for kind, run in runs.items():
        seconds = updates(run)
        median = statistics.median(seconds)
        graphs, compiling = (last(run, f"compile/{name}") for name in ("graphs", "seconds"))
        print(
            f"{kind:<22}{median:>8.3f}{max(seconds):>9.3f}{median / plain:>10.2f}{graphs:>8.0f}"
            f"{compiling:>14.1f}{recompilations(run):>15.0f}"
        )
    constant = recompilations(runs["compiled, buckets"]) == 0
    print(f"{'yes' if constant else 'NO':<5}with buckets nothing is compiled after the warm-up")
    return 0 if constant else 1


def measure(kind: str, args: argparse.Namespace) -> Run:
    """Run the recipe with one kind's keys; the evaluation at its end is not timed."""
    name = kind.replace(", ", "_").replace(" ", "_")
    recipe = yaml.safe_load((REPOSITORY / "recipes" / args.recipe).read_text()) | KINDS[kind]
    recipe |= {"logging_steps": 1, "max_steps": args.steps, "load_best_model_at_end": False}
    recipe |= {"eval_steps": args.steps, "save_steps": args.steps, "heldout_rows": 64}
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = (
        args.output_dir / f"{name}.yaml"
    ).resolve()  # the command line cannot give an empty list
    path.write_text(yaml.safe_dump(recipe))
    return run_recipe(args.output_dir / name, recipe=str(path))


def updates(run: Run) -> list[float]:
    """Seconds of each update after the warm-up."""
    return [value for step, value in run.series("time/update") if step > WARMUP]


def last(run: Run, name: str) -> float:
    return run.series(name)[-1][1] if run.series(name) else 0.0


def recompilations(run: Run) -> float:
    """Graphs compiled after the warm-up."""
    return sum(value for _, value in run.series("compile/recompilations"))


if __name__ == "__main__":
    sys.exit(main())
