"""Whether replacing groups without signal is better than keeping them, on the packaged recipe.

    python benchmarks/zero_variance.py        # three seeds, two runs of 150 steps each: half an hour

For each seed it prints the share of groups without signal in the trained batches, and held-out accuracy
(`overall`: the mean of environment/exact and policy/best_move) as a mean over the run's evaluations, at
the end, and at the time when the run that keeps groups ends. It exits with 1 if replacing leaves 2% or
more of them, or is not better.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from recipe_runs import Run, run_recipe

MOST_LEFT = 0.02
METRIC = "eval_overall"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--eval_steps", type=int, default=30)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/zero_variance"))
    args = parser.parse_args()
    rows = []
    print(
        f"{'seed':<6}{'':<10}{'without signal':>15}{'seconds':>9}{'mean':>8}{'last':>8}{'at time':>9}"
    )
    for seed in args.seeds:
        keep, resample = (
            run_recipe(
                args.output_dir / f"{kind}_{seed}",
                *("--zero_variance", kind),
                *("--seed", str(seed), "--max_steps", str(args.steps), "--logging_steps", "1"),
                *("--eval_steps", str(args.eval_steps), "--save_steps", str(args.steps)),
                *("--load_best_model_at_end", "false"),
            )
            for kind in ("keep", "resample")
        )
        rows.append(compare(seed, keep, resample))
    return verdict(rows)


def compare(seed: int, keep: Run, resample: Run) -> dict[str, float]:
    """Print one seed's two runs."""
    end = keep.timed(METRIC)[-1][0]
    row: dict[str, float] = {}
    for name, run in (("keep", keep), ("resample", resample)):
        silent = statistics.fmean(value for _, value in run.series("zero_variance/trained"))
        curve = [value for _, value in run.series(METRIC)][1:]  # without the one before training
        in_time = [value for seconds, value in run.timed(METRIC) if seconds <= end][-1]
        mean = statistics.fmean(curve)
        print(
            f"{seed:<6}{name:<10}{silent:>15.1%}{run.timed(METRIC)[-1][0]:>9.0f}{mean:>8.1%}"
            f"{curve[-1]:>8.1%}{in_time:>9.1%}"
        )
        row |= {
            f"{name}_silent": silent,
            f"{name}_mean": mean,
            f"{name}_last": curve[-1],
            f"{name}_time": in_time,
        }
    return row


def verdict(rows: list[dict[str, float]]) -> int:
    """Print which checks hold over the seeds; 0 if all do."""

    def mean(name: str) -> float:
        return statistics.fmean(row[name] for row in rows)

    checks = {
        f"replacing leaves under {MOST_LEFT:.0%}": all(
            row["resample_silent"] < MOST_LEFT for row in rows
        ),
        "at equal steps, over the run, replacing is better": mean("resample_mean")
        > mean("keep_mean"),
        "at equal steps, at the end, replacing is better": mean("resample_last")
        > mean("keep_last"),
        "at equal time, replacing is not worse": mean("resample_time") >= mean("keep_time"),
    }
    for check, holds in checks.items():
        print(f"{'yes' if holds else 'NO':<5}{check}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
