"""Whether adaptive KL control reaches its target from a coefficient far too low and one far too high.

    python benchmarks/kl_control.py                  # 150 steps each from 0.001 and 1.0: ten minutes
    python benchmarks/kl_control.py --target 0.05 --adaptation multiplicative

It prints the KL over every ten steps, in nats a token, and the step from which it stays within a factor
of 1.5 of the target. It exits with 1 if the KL does not settle there within the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from recipe_runs import Run, run_recipe

FACTOR = 1.5
WINDOW = 10  # steps, over which the noise of batches is averaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=0.02)
    parser.add_argument("--adaptation", default="multiplicative")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--betas", type=float, nargs="+", default=[0.001, 1.0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/kl_control"))
    args = parser.parse_args()
    settled = []
    for beta in args.betas:
        run = run_recipe(
            args.output_dir / f"beta_{beta:g}",
            *("--beta", str(beta), "--kl_control", "adaptive", "--kl_target", str(args.target)),
            *("--kl_adaptation", args.adaptation, "--max_steps", str(args.steps)),
            *("--lr_scheduler_type", "constant", "--logging_steps", "1", "--heldout_rows", "200"),
            *("--eval_steps", str(args.steps), "--save_steps", str(args.steps)),
        )
        settled.append(report(run, beta, args.target))
    return 0 if all(step is not None for step in settled) else 1


def report(run: Run, beta: float, target: float) -> int | None:
    """Print a run; gives the step from which the KL stays near the target, None if it does not."""
    kl = [value for _, value in run.series("kl")]
    coefficients = [value for _, value in run.series("kl/coefficient")]
    print(f"\nbeta {beta:g}, target {target:g} nats a token, {run.seconds:.0f} s")
    print(f"{'steps':<12}{'KL':>10}{'KL / target':>14}{'coefficient':>14}")
    windows = []
    for start in range(0, len(kl), WINDOW):
        mean = statistics.fmean(kl[start : start + WINDOW])
        windows.append(mean)
        last = min(start + WINDOW, len(kl))
        print(
            f"{f'{start + 1} to {last}':<12}{mean:>10.4f}{mean / target:>14.2f}"
            f"{coefficients[last - 1]:>14.4g}"
        )
    near = [1 / FACTOR <= mean / target <= FACTOR for mean in windows]
    if not near[-1]:
        print("does NOT end near the target")
        return None
    first = len(near) - next((i for i, ok in enumerate(reversed(near)) if not ok), len(near))
    print(f"stays within a factor of {FACTOR} of the target from step {first * WINDOW + 1} on")
    return first * WINDOW + 1


if __name__ == "__main__":
    sys.exit(main())
