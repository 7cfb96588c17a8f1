"""Which way of learning teaches most in the same time: methods, starting models and seeds.

    python benchmarks/learning.py --starts hole --methods plain teach --seeds 0 1 2
    python benchmarks/learning.py                  # everything, which takes a night on one core

A starting model that is not there is made first:

- ``openings`` answers about two thirds of held-out openings: `recipes/sft_nano.yaml` with fault shares
  of 0, stopped while its learning rate is highest (an hour).
- ``hole`` is the quickstart's model with a planted fault: it answers a game's first two plies always
  wrongly (`recipes/sft_openings_hole.yaml`, two minutes after a quickstart).
- ``fill_in`` has begun to learn the fill-in task (`recipes/sft_fill_in.yaml`, seven minutes).

Each method runs for about as many seconds of one core as the start allows. It prints a Markdown table:
what is to be learnt, what the other task has lost, and how far the policy has moved from the start. A
finished run is not repeated. What was tried, with its date, is in `docs/learning.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from recipe_runs import REPOSITORY

from rookworld_rlvr.common.stats import Proportion
from rookworld_rlvr.data.loading import DataArguments, is_held_out, load_data
from rookworld_rlvr.data.planted_faults import is_first_ply
from rookworld_rlvr.data.synthesis import environment_row, first_plies
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.tasks.metrics import evaluate_completions

RECIPES = REPOSITORY / "recipes"
Options = Mapping[str, Any]
Row = Mapping[str, Any]


# --------------------------------------------------------------------------------------------------
# Starting models and methods
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Start:
    """A starting model, and what is learnt from it.

    Args:
        made_by: The recipe of supervised training that makes it, and its overrides.
        needs: The run that must be there first, as words for `rookworld`; empty if none.
        recipe: The recipe of GRPO.
        measures: Held-out metrics; the first is what is to be learnt.
        tasks: The tasks that are measured.
        dataset: The data set that the measured rows come from.
    """

    made_by: str
    made_with: Options
    recipe: str
    measures: Sequence[str]
    tasks: Sequence[str] = ("environment", "policy")
    dataset: str = "rookworld-nano-openings"
    needs: Sequence[str] = ()


NO_FAULTS = {"en_passant_fault_share": 0, "black_best_move_fault_share": 0}

STARTS: Mapping[str, Start] = {
    "openings": Start(
        "sft_nano.yaml",
        {**NO_FAULTS, "lr_scheduler_type": "constant_with_warmup", "max_steps": 8000},
        "grpo_learning.yaml",
        ("environment/exact", "policy/best_move"),
    ),
    "hole": Start(
        "sft_openings_hole.yaml",
        {},
        "grpo_openings_hole.yaml",
        ("first plies", "first plies, held out", "environment/exact", "policy/best_move"),
        needs=("grpo", "--output_dir", "runs/grpo_nano"),
    ),
    "fill_in": Start(
        "sft_fill_in.yaml",
        {},
        "grpo_fill_in.yaml",
        ("fill_in/exact", "environment/exact", "policy/best_move"),
    ),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A way of learning.

    Args:
        options: Overrides of the start's recipe of GRPO.
        steps: Optimiser steps by start, which take about as long as the other methods'.
        script: The script that runs it.
        supervised: Whether it is supervised training on the recipe's rows with their labels.
        after: The method whose run it starts from, instead of the starting model.
    """

    steps: Mapping[str, int]
    options: Options = field(default_factory=dict)
    script: str = "recipes/grpo.py"
    supervised: bool = False
    after: str = ""


GRPO_STEPS = {"openings": 550, "hole": 250, "fill_in": 600}
METHODS: Mapping[str, Method] = {
    "plain": Method(GRPO_STEPS, {"zero_variance": "keep"}),
    "resample": Method(GRPO_STEPS, {"zero_variance": "resample"}),
    "teach": Method(GRPO_STEPS, {"zero_variance": "teach"}),
    "teach_sft": Method(GRPO_STEPS, {"zero_variance": "teach", "sft_coef": 0.3}),
    "first_error": Method(GRPO_STEPS, {"zero_variance": "teach", "credit": "first_error"}),
    "field": Method(GRPO_STEPS, {"zero_variance": "teach", "credit": "field"}),
    "sft": Method({"openings": 1000, "hole": 500, "fill_in": 1200}, supervised=True),
    "sft_then_grpo": Method({name: n // 2 for name, n in GRPO_STEPS.items()}, after="sft_half"),
    "sft_half": Method({"openings": 500, "hole": 250, "fill_in": 600}, supervised=True),
    "shuffled": Method(GRPO_STEPS, {"zero_variance": "keep"}, "benchmarks/shuffled_rewards.py"),
}
SUPERVISED = {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 20}
ROW_KEYS = (
    "dataset_name",
    "tasks",
    "first_plies_share",
    "synthetic_rows",
    "synthetic_seed",
    "synthetic_opening_plies",
    "synthetic_shares",
)


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------
def made(name: str, folder: Path) -> Path:
    """The folder of a starting model, which is made if it is not there."""
    start = STARTS[name]
    model = folder / "starts" / name
    if not (model / "model.safetensors").is_file():
        if start.needs and not Path("runs/grpo_nano/model.safetensors").is_file():
            run(folder / "starts" / "needed.log", "recipes/grpo.py", *start.needs[1:])
        sft(model, start.made_by, start.made_with)
    return model


def trained(name: str, method: str, seed: int, folder: Path) -> tuple[Path, float]:
    """The folder of a method's run from a start, and the seconds of one core that it took."""
    way, start = METHODS[method], STARTS[name]
    output = folder / name / f"{method}_{seed}"
    seconds_file = output / "seconds.json"
    before = 0.0
    if seconds_file.is_file():
        return output, float(json.loads(seconds_file.read_text()))
    model = made(name, folder)
    if way.after:
        model, before = trained(name, way.after, seed, folder)
    options = {"model_name_or_path": model, "max_steps": way.steps[name], "seed": seed}
    recipe = yaml.safe_load((RECIPES / start.recipe).read_text())
    if way.supervised:
        rows = {key: recipe[key] for key in ROW_KEYS if key in recipe}
        shares = {f"{task}_share": 1.0 for task in recipe["tasks"] if task == "environment"}
        fixed = {"new_model": None, "task_shares": None, "first_plies_fault_share": 0, **NO_FAULTS}
        seconds = sft(output, start.made_by, {**fixed, **SUPERVISED, **rows, **shares, **options})
    else:
        half = dict.fromkeys(("eval_steps", "save_steps"), way.steps[name] // 2)
        words = ["--config", str(RECIPES / start.recipe), "--output_dir", str(output)]
        words += ["--report_to", "none", *as_words({**way.options, **half, **options})]
        seconds = run(output.with_name(output.name + ".log"), way.script, *words)
    seconds_file.write_text(json.dumps(before + seconds))
    return output, before + seconds


def sft(folder: Path, recipe: str, options: Options) -> float:
    """Train supervised; gives the seconds of one core."""
    words = ["--config", str(RECIPES / recipe), "--output_dir", str(folder)]
    words += ["--report_to", "none", *as_words(options)]
    return run(folder.with_name(folder.name + ".log"), "recipes/sft.py", *words)


def as_words(options: Options) -> list[str]:
    """Options as on the command line."""
    return [
        word
        for key, value in options.items()
        for word in (f"--{key}", str(value) if isinstance(value, Path) else json.dumps(value))
    ]


def run(log: Path, script: str, *words: str) -> float:
    """Run a script on one core; gives its seconds of processor time."""
    log.parent.mkdir(parents=True, exist_ok=True)
    before = processor_seconds()
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, str(REPOSITORY / script), *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=True,
        )
    return processor_seconds() - before


def processor_seconds() -> float:
    """Of all processes that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --------------------------------------------------------------------------------------------------
# Measuring
# --------------------------------------------------------------------------------------------------
def measured(name: str, model: Path) -> dict[str, Proportion]:
    """A model's results on held-out rows and, for the hole, on all rows of the first two plies."""
    start = STARTS[name]
    rows = heldout(name)
    network, tokenizer = loading.load_model(str(model)).eval(), loading.load_tokenizer(str(model))

    def answers(asked: Sequence[Row]) -> list[str]:
        prompts = [row["prompt"] for row in asked]
        return complete(network, tokenizer, prompts, max_new_tokens=96, batch_size=128)

    found = evaluate_completions(rows, answers(rows))
    if name == "hole":
        plies = [environment_row(prompt) for prompt in first_plies()]
        right = answers(plies)
        apart = [place for place, row in enumerate(plies) if is_held_out(row["fen"], 0.1)]
        for title, places in (("", range(len(plies))), (", held out", apart)):
            mine = evaluate_completions([plies[p] for p in places], [right[p] for p in places])
            found[f"first plies{title}"] = mine["environment/exact"]
    return {measure: found[measure] for measure in start.measures}


def heldout(name: str) -> list[Row]:
    """Held-out rows of the packaged sets, of the measured tasks; for the hole no first plies."""
    start = STARTS[name]
    data = DataArguments(dataset_name=start.dataset, tasks=list(start.tasks), heldout_rows=3000)
    rows = load_data(data).heldout.to_list()
    if "fill_in/exact" in start.measures:
        fill_in = DataArguments(
            dataset_name="rookworld-nano-fill-in", tasks=["fill_in"], heldout_rows=3000
        )
        rows += load_data(fill_in).heldout.to_list()
    return rows if name != "hole" else [row for row in rows if not is_first_ply(row)]


def cached(path: Path, name: str, model: Path) -> dict[str, Proportion]:
    """What `measured` gives, kept beside the model."""
    if not path.is_file():
        found = measured(name, model)
        path.write_text(json.dumps({key: [p.successes, p.n] for key, p in found.items()}))
    return {key: Proportion(*pair) for key, pair in json.loads(path.read_text()).items()}


def shown(result: Proportion) -> str:
    low, high = result.interval
    return f"{100 * result.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    for name in args.starts:
        measures = STARTS[name].measures
        print(f"| {name} | seed | core, s | {' | '.join(measures)} |")
        print("| --- " * (3 + len(measures)) + "|")
        model = made(name, args.output_dir)
        results = cached(model.with_name(f"{name}.json"), name, model)
        print(f"| start | - | - | {' | '.join(map(shown, results.values()))} |", flush=True)
        for method in args.methods:
            for seed in args.seeds:
                folder, seconds = trained(name, method, seed, args.output_dir)
                results = cached(folder / "measured.json", name, folder)
                cells = " | ".join(map(shown, results.values()))
                print(f"| {method} | {seed} | {seconds:.0f} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
