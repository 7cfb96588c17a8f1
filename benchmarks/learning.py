"""How much GRPO teaches a model without planted faults, in half an hour on two cores.

    python benchmarks/learning.py                  # makes the starting model first: an hour more
    python benchmarks/learning.py --seeds 0 --methods grpo

The starting model answers 66.1% of held-out openings exactly: `recipes/sft_nano.yaml` with fault shares
of 0, stopped while its learning rate is highest. From it, for each seed, three methods are run: GRPO by
`recipes/grpo_learning.yaml`; the same with rewards shuffled within each group, which shows the effect
of small steps by themselves; and supervised training on the same environment rows with their labels,
which GRPO never sees. It prints held-out environment/exact before and after, with 95% intervals. It
exits with 1 if GRPO gains less than ten points with any seed or takes longer than half an hour. What
was tried is in `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import yaml
from recipe_runs import REPOSITORY, run_recipe

from rookworld_rlvr.common.stats import Proportion
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.tasks.metrics import evaluate_completions

METRIC = "environment/exact"
LEAST_GAIN = 0.10
MOST_SECONDS = 1800
START_STEPS = 8000
METHODS = ("grpo", "shuffled", "sft")
RECIPE = REPOSITORY / "recipes" / "grpo_learning.yaml"
ROW_KEYS = ("synthetic_rows", "synthetic_seed", "synthetic_opening_plies", "synthetic_shares")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=Path, default=Path("runs/learning/start"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument(
        "--sft_steps", type=int, default=1500, help="takes some minutes more than GRPO"
    )
    parser.add_argument("--output_dir", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    if not (args.start / "model.safetensors").is_file():
        make_start(args.start)
    before = exact(args.start)
    print(f"start: {shown(before)}")
    print(f"{'method':<8}{'seed':<6}{'seconds':>8}{'gain':>8}   after")
    good = True
    for method in args.methods:
        for seed in args.seeds:
            folder = args.output_dir / f"{method}_{seed}"
            if method == "sft":
                seconds = supervised(folder, args.start, seed, args.sft_steps)
            else:
                script = "recipes/grpo.py" if method == "grpo" else "benchmarks/shuffled_rewards.py"
                options = ("--model_name_or_path", str(args.start), "--seed", str(seed))
                run = run_recipe(folder, *options, recipe=RECIPE.name, script=script)
                seconds = run.seconds
            after = exact(folder)
            gain = after.value - before.value
            print(
                f"{method:<8}{seed:<6}{seconds:>8.0f}{100 * gain:>+8.1f}   {shown(after)}",
                flush=True,
            )
            if method == "grpo":
                good &= gain >= LEAST_GAIN and seconds <= MOST_SECONDS
    return 0 if good else 1


def make_start(folder: Path) -> None:
    """Train the starting model on the recipe's rows, without faults."""
    options = {
        "en_passant_fault_share": "0",
        "black_best_move_fault_share": "0",
        "lr_scheduler_type": "constant_with_warmup",
        "max_steps": str(START_STEPS),
    }
    sft(folder, options)


def supervised(folder: Path, start: Path, seed: int, steps: int) -> float:
    """Train on the same rows with their labels; gives the seconds it took."""
    seconds_file = folder / "seconds.json"
    if not seconds_file.is_file():
        recipe = yaml.safe_load(RECIPE.read_text())
        options = {
            **{key: json.dumps(recipe[key]) for key in ROW_KEYS},
            "tasks": "environment",
            "model_name_or_path": str(start),
            "new_model": "null",
            "environment_share": "1.0",
            "en_passant_fault_share": "0",
            "black_best_move_fault_share": "0",
            "learning_rate": "1e-3",
            "max_steps": str(steps),
            "seed": str(seed),
        }
        started = time.perf_counter()
        sft(folder, options)
        seconds_file.write_text(json.dumps(time.perf_counter() - started))
    return float(json.loads(seconds_file.read_text()))


def sft(folder: Path, options: dict[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(REPOSITORY / "recipes" / "sft.py")]
    command += ["--config", str(REPOSITORY / "recipes" / "sft_nano.yaml")]
    command += ["--output_dir", str(folder), "--report_to", "none"]
    command += [word for key, value in options.items() for word in (f"--{key}", value)]
    with folder.with_name(folder.name + ".log").open("w") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)


def exact(folder: Path) -> Proportion:
    """The share of held-out openings answered exactly, by greedy decoding."""
    rows = load_data(DataArguments(tasks=["environment"], heldout_rows=1500)).heldout
    completions = complete(
        loading.load_model(str(folder)).eval(),
        loading.load_tokenizer(str(folder)),
        rows["prompt"][:],
        max_new_tokens=64,
    )
    return evaluate_completions(rows, completions)[METRIC]


def shown(result: Proportion) -> str:
    low, high = result.interval
    return f"{result.value:.1%} [{low:.1%}, {high:.1%}] of {result.n}"


if __name__ == "__main__":
    sys.exit(main())
