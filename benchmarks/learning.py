"""Which way of learning teaches most in the same time: methods, starting models and seeds.

    python benchmarks/learning.py --starts hole --methods plain teach --seeds 0 1 2
    python benchmarks/learning.py                  # everything, which takes a night on one core

A starting model that is not there is made first:

- ``openings`` answers about two thirds of held-out openings: `recipes/sft_nano.yaml` without
  planted faults, stopped while its learning rate is highest (an hour).
- ``hole`` is the quickstart's model with a planted fault: it answers a game's first two plies always
  wrongly (`recipes/sft_openings_hole.yaml`, two minutes after a quickstart).
- ``fill_in`` has begun to learn the fill-in task (`recipes/sft_fill_in.yaml`, seven minutes).

The methods take about as long as each other. It prints a Markdown table: the seconds of
one core, what is to be learnt, what the other task has lost, and how far the policy has moved from the
start. A finished run is not repeated. Every try is a line of `benchmarks/results/tries.jsonl`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from recipe_runs import REPOSITORY

from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.data.loading import DataArguments, is_held_out, load_data
from rookworld_rlvr.data.synthesis import environment_row, first_plies, is_first_ply
from rookworld_rlvr.evaluation.models import LanguageModel
from rookworld_rlvr.evaluation.pass_at_k import RightCounts
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete, complete_ids
from rookworld_rlvr.tasks.metrics import evaluate_completions
from rookworld_rlvr.training.terms.right_answers import right

RECIPES = REPOSITORY / "recipes"
Options = Mapping[str, Any]
Row = dict[str, Any]


OPENINGS = {"rookworld-nano-openings": ("environment", "policy")}


# --------------------------------------------------------------------------------------------------
# Starting models and methods
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Start:
    """A starting model, and what is learnt from it.

    Args:
        made_by: The recipe of supervised training that makes it.
        made_with: The overrides.
        recipe: The recipe of GRPO.
        samples: Overrides that make the recipe learn from samples alone, with settings of their own.
        measures: Held-out metrics; the first is what is to be learnt.
        datasets: The packaged data sets that held-out rows come from, each with its tasks.
        needs_quickstart: Whether it is made from a quickstart's model, `runs/grpo_nano`.
        needs_new_model: Whether it is made from an untrained model, `runs/untrained`.
        fault: What `benchmarks/planted_faults.py` plants in the rows that it is made from.
    """

    made_by: str
    made_with: Options
    recipe: str
    samples: Options
    measures: Sequence[str]
    datasets: Mapping[str, Sequence[str]] = field(default_factory=lambda: OPENINGS)
    needs_quickstart: bool = False
    needs_new_model: bool = False
    fault: str = ""

    @property
    def tasks(self) -> list[str]:
        """The tasks that are measured."""
        return [task for tasks in self.datasets.values() for task in tasks]


SAMPLES = {
    "sft_coef": 0.0,
    "sft_extra": 0,
    "num_generations": 8,
    "per_device_train_batch_size": 128,
    "learning_rate": 1e-4,  # with 3e-4 models lost what they knew
    "adam_beta2": 0.999,
}

STARTS: Mapping[str, Start] = {
    "openings": Start(
        "sft_nano.yaml",
        {"lr_scheduler_type": "constant_with_warmup", "max_steps": 8000},
        "grpo_learning.yaml",
        SAMPLES,
        ("environment/exact", "policy/best_move"),
        needs_new_model=True,
    ),
    "hole": Start(
        "sft_openings_hole.yaml",
        {},
        "grpo_openings_hole.yaml",
        {},
        ("first plies", "first plies, held out", "environment/exact", "policy/best_move"),
        needs_quickstart=True,
        fault="hole",
    ),
    "fill_in": Start(
        "sft_fill_in.yaml",
        {},
        "grpo_fill_in.yaml",
        SAMPLES,
        ("fill_in/exact", "environment/exact", "policy/best_move"),
        {"rookworld-nano-fill-in": ("fill_in",), **OPENINGS},
    ),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A way of learning.

    Args:
        steps: Optimiser steps by start, which take about as long as the other methods'; it is not run
            from other starts.
        options: Overrides of the start's recipe of GRPO, beside those of `Start.samples`.
        script: The script that runs it.
        as_it_is: Whether it is the start's recipe of GRPO as it stands, without any overrides.
        supervised: Whether it is supervised training on the recipe's rows with their labels.
        after: The method whose run it starts from, instead of the starting model.
    """

    steps: Mapping[str, int]
    options: Options = field(default_factory=dict)
    script: str = "recipes/grpo.py"
    as_it_is: bool = False
    supervised: bool = False
    after: str = ""


GRPO_STEPS = {"openings": 550, "hole": 200, "fill_in": 600}
BOARD_STEPS = {name: GRPO_STEPS[name] for name in ("openings", "hole")}  # environment answers
EXACT = {"rewards": [{"name": "environment_exact"}]}
RECIPE_STEPS = {"openings": 520, "hole": 200, "fill_in": 400}
METHODS: Mapping[str, Method] = {
    "recipe": Method(RECIPE_STEPS, as_it_is=True),
    "plain": Method(GRPO_STEPS, {"zero_variance": "keep"}),
    "plain_exact": Method(BOARD_STEPS, {"zero_variance": "keep", **EXACT}),  # no partial credit
    "teach_exact": Method(BOARD_STEPS, {"zero_variance": "teach", **EXACT}),
    "resample": Method(GRPO_STEPS, {"zero_variance": "resample"}),
    "teach": Method(GRPO_STEPS, {"zero_variance": "teach"}),
    "teach_sft": Method(GRPO_STEPS, {"zero_variance": "teach", "sft_coef": 0.3}),
    "sft": Method({"openings": 1500, "hole": 300, "fill_in": 1200}, supervised=True),
    "sft_then_grpo": Method({name: n // 2 for name, n in GRPO_STEPS.items()}, after="sft_half"),
    "sft_half": Method({"openings": 500, "hole": 150, "fill_in": 600}, supervised=True),
    "shuffled": Method(GRPO_STEPS, {"zero_variance": "keep"}, "benchmarks/shuffled_rewards.py"),
}
LABELLED = {
    "task_shares": None,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
}
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
        needed = Path("runs/grpo_nano")
        if start.needs_quickstart and not (needed / "model.safetensors").is_file():
            run("recipes/grpo.py", "grpo_nano.yaml", needed, {})
        needed = Path("runs/untrained")
        if start.needs_new_model and not (needed / "model.safetensors").is_file():
            run("benchmarks/new_model.py", start.made_by, needed, {}, "--output_dir", str(needed))
        script = "benchmarks/planted_faults.py" if start.fault else "recipes/sft.py"
        words = ("--fault", start.fault) if start.fault else ()
        run(script, start.made_by, model, start.made_with, *words)
    return model


def trained(name: str, method: str, seed: int, folder: Path) -> tuple[Path, float]:
    """The folder of a method's run from a start, and the seconds of one core that it took."""
    way, start = METHODS[method], STARTS[name]
    output = folder / name / f"{method}_{seed}"
    seconds_file = output / "seconds.json"
    if seconds_file.is_file():
        return output, float(json.loads(seconds_file.read_text()))
    model, before = made(name, folder), 0.0
    if way.after:
        model, before = trained(name, way.after, seed, folder)
    steps = way.steps[name]
    options = {"model_name_or_path": str(model), "max_steps": steps, "seed": seed}
    if way.supervised:
        recipe = yaml.safe_load((RECIPES / start.recipe).read_text())
        rows = {key: recipe[key] for key in ROW_KEYS if key in recipe}
        options = {**LABELLED, **rows, **options}
        seconds = run("recipes/sft.py", start.made_by, output, options)
    else:
        changes = {} if way.as_it_is else {**start.samples, **way.options}
        options = {**changes, "eval_steps": steps // 2, "save_steps": steps // 2, **options}
        seconds = run(way.script, start.recipe, output, options)
    seconds_file.write_text(json.dumps(before + seconds))
    return output, before + seconds


def run(script: str, recipe: str, output: Path, options: Options, *words: str) -> float:
    """Run a recipe with overrides on one core; gives its seconds of processor time."""
    output.parent.mkdir(parents=True, exist_ok=True)
    changed = {**yaml.safe_load((RECIPES / recipe).read_text()), **options}
    changed |= {"output_dir": str(output), "report_to": "none"}
    config, log = (output.with_name(f"{output.name}.{kind}") for kind in ("yaml", "log"))
    config.write_text(yaml.safe_dump(changed))
    before = processor_seconds()
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, str(REPOSITORY / script), *words, "--config", str(config)],
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
@torch.no_grad()
def answer_kls(
    policy: Any, start: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[float]:
    """KL(policy || start) of each answer's distribution, given its prompt, summed over its tokens.

    Args:
        policy: A causal language model.
        start: One with the same vocabulary.
        prompts: Token ids of `B` prompts.
        answers: Token ids of `B` answers, of which none is empty.

    Returns:
        `B` numbers, in nats.
    """
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    width = max(map(len, rows))
    # Padding is on the right, so positions count from 0 and the mask hides nothing from the text.
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=policy.device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]).to(ids.device)
    is_asked = torch.zeros_like(mask, dtype=torch.bool)  # the token before each token of an answer
    for place, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        is_asked[place, len(prompt) - 1 : len(row) - 1] = True
    log_policy, log_start = (  # a prompt's virtual tokens, as in prompt tuning, come first
        network(input_ids=ids, attention_mask=mask)
        .logits[:, -width:][is_asked]
        .float()
        .log_softmax(-1)
        for network in (policy, start)
    )
    by_token = (log_policy.exp() * (log_policy - log_start)).sum(-1)
    lengths = [len(answer) for answer in answers]
    return [float(kl.sum()) for kl in torch.split(by_token, lengths)]


class Measurer:
    """Measures a start's runs on the same rows.

    Args:
        name: The start's name.
        model: The starting model.
        pass_samples: Sampled answers to each prompt, for pass@k; 0 measures none.
    """

    def __init__(self, name: str, model: Path, pass_samples: int) -> None:
        self._start = STARTS[name]
        self.pass_samples = pass_samples
        self._rows = heldout(name)
        self._plies = (
            [environment_row(prompt) for prompt in first_plies()] if name == "hole" else []
        )
        self._before = loading.load_model(str(model)).eval()

    def measure(self, model: Path) -> dict[str, Any]:
        """A model's shares ``[right, rows]``, KL to the start by task, and pass@k with its interval."""
        network = loading.load_model(str(model)).eval()
        tokenizer = loading.load_tokenizer(str(model))
        answer = partial(complete, network, tokenizer, max_new_tokens=96, batch_size=128)
        answerer = LanguageModel(str(model), answer)
        found = evaluate_completions(self._rows, answerer.answers(prompts(self._rows)))
        if self._plies:
            answers = answerer.answers(prompts(self._plies))
            apart = [place for place, row in enumerate(self._plies) if is_held_out(row["fen"], 0.1)]
            for title, places in (("", range(len(self._plies))), (", held out", apart)):
                mine = [self._plies[place] for place in places]
                shares = evaluate_completions(mine, [answers[place] for place in places])
                found[f"first plies{title}"] = shares["environment/exact"]
        return {
            "shares": {
                name: [round(found[name].value * found[name].n), found[name].n]
                for name in self._start.measures
            },
            "kl": {task: self._kl(network, tokenizer, task) for task in self._start.tasks},
            "pass": self._passes(answerer) if self.pass_samples else {},
        }

    def _kl(self, network: Any, tokenizer: Any, task: str) -> float:
        """KL(policy || start) along the policy's answers to 200 rows of a task, in nats a token."""
        asked = [row["prompt"] for row in self._rows if row["task"] == task][:200]
        ids = complete_ids(network, tokenizer, asked, max_new_tokens=96, batch_size=128)
        encoded = [tokenizer(prompt)["input_ids"] for prompt in asked]
        total = 0.0
        for first in range(0, len(asked), 50):
            part = slice(first, first + 50)
            total += sum(answer_kls(network, self._before, encoded[part], ids[part]))
        return total / sum(map(len, ids))

    def _passes(self, answerer: LanguageModel) -> dict[str, tuple[float, float, float]]:
        """pass@k with its interval: of the first plies, or of 200 held-out rows to be learnt."""
        task = self._start.measures[0].split("/")[0]
        rows = self._plies or [row for row in self._rows if row["task"] == task][:200]
        counts = []
        for row, texts in zip(
            rows, answerer.samples(prompts(rows), self.pass_samples), strict=True
        ):
            counts.append(int(right([row] * len(texts), texts).sum()))
        greedy = right(rows, answerer.answers(prompts(rows))).int().tolist()
        estimates = RightCounts(self.pass_samples, counts, greedy).estimates()
        return {name: (found.value, found.low, found.high) for name, found in estimates.items()}


def heldout(name: str) -> list[Row]:
    """Held-out rows of the packaged sets, of the measured tasks; for the hole no first plies."""
    start = STARTS[name]
    rows: list[Row] = []
    for dataset, tasks in start.datasets.items():
        data = DataArguments(dataset_name=dataset, tasks=list(tasks), heldout_rows=3000)
        rows += load_data(data).heldout.to_list()
    return rows if name != "hole" else [row for row in rows if not is_first_ply(row)]


def prompts(rows: Sequence[Row]) -> list[str]:
    return [row["prompt"] for row in rows]


def shown(shares: Sequence[float]) -> str:
    result = proportion(shares[0], int(shares[1]))
    low, high = result.interval
    return f"{100 * result.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def line(method: str, seed: str, seconds: str, found: Mapping[str, Any]) -> str:
    """A row of the table."""
    kls = " / ".join(f"{kl:.3f}" for kl in found["kl"].values())
    cells = [method, seed, seconds, *map(shown, found["shares"].values()), kls]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pass_samples", type=int, default=0, help="pass@k up to this, such as 64")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    for name in args.starts:
        start, model = STARTS[name], made(name, args.output_dir)
        measurer = Measurer(name, model, args.pass_samples)
        kls = " / ".join(start.tasks)
        print(f"| {name} | seed | core, s | {' | '.join(start.measures)} | KL, {kls} |")
        print("| --- " * (4 + len(start.measures)) + "|")
        found = kept(model.with_name(f"{name}.json"), measurer, model)
        print(line("start", "-", "-", found), flush=True)
        methods = [method for method in args.methods if name in METHODS[method].steps]
        for method, seed in itertools.product(methods, args.seeds):
            folder, seconds = trained(name, method, seed, args.output_dir)
            found = kept(folder / "measured.json", measurer, folder)
            print(line(method, str(seed), f"{seconds:.0f}", found), flush=True)
    return 0


def kept(path: Path, measurer: Measurer, model: Path) -> dict[str, Any]:
    """What is measured of a model, kept beside it."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if not found or (measurer.pass_samples and not found["pass"]):
        found = measurer.measure(model)
        path.write_text(json.dumps(found) + "\n")
    return found


if __name__ == "__main__":
    sys.exit(main())
