"""Which way of learning makes the policy play better in the same time.

    python benchmarks/policy.py --methods recipe sft dpo --seeds 0
    python benchmarks/policy.py --recipe grpo_games --games 400

All methods start from one model and learn from the rows of one recipe, for about as long (`LENGTHS`).
The table gives the seconds of processor time. What was measured is kept: the same command goes on.

- ``recipe``: the recipe itself; ``trained``: the same without the start's share; ``forgetful``: that of
  2026-11-24, with AdamW, without `keep_coef` and `moves_extra`.
- ``grpo``: samples alone, eight of each prompt, rewarded for the best move, candidates and legality.
- ``soft``: that recipe's cross-entropy to a softmax of the values alone.
- ``sft``: supervised training on the same rows, with the best move as `B`.
- ``dpo``: TRL's `DPOTrainer` on pairs of the start's own samples, the better one by the stored values.
- ``control``: supervised training on best moves alone, from the position to the move.

"Lost" is the win probability that a move loses against the best one; an illegal move loses half. "Elo"
is against the start, in games in pairs that share an opening; illegal moves are replaced.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset
from learning import processor_seconds
from recipe_runs import REPOSITORY
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from rookworld_rlvr.common.stats import estimate
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.evaluation.models import LanguageModel, ModelArguments
from rookworld_rlvr.evaluation.suites.matches import VersusModelSuite
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.tasks.metrics import scores
from rookworld_rlvr.tasks.policy import win_probability
from rookworld_rlvr.tasks.types import values_by_move

Row = Mapping[str, Any]
PASS_SAMPLES, PASS_ROWS = 16, 400
FORGETFUL = {
    "keep_coef": 0.0,
    "keep_rows": None,
    "synthetic_rows": 0,
    "muon": False,
    "moves_extra": 0,
    "expected_score_coef": 40.0,
    "soft_moves_coef": 1.5,
    "beta": 2.0,
    "start_share": 0.3,
    "per_device_train_batch_size": 128,
    "task_shares": {"environment": 0.35, "policy": 0.65},
}
SAMPLES = {
    **FORGETFUL,
    "expected_score_coef": 0.0,
    "soft_moves_coef": 0.0,
    "start_share": 0.0,
    "num_generations": 8,
    "scale_rewards": "group",
    "learning_rate": 1e-4,
    "beta": 0.0,
    "rewards": [
        {"name": "environment_exact"},
        {"name": "policy_best_move"},
        {"name": "policy_candidates", "weight": 0.5},
        {"name": "policy_legality", "weight": 0.3},
    ],
}
LABELLED = {
    "synthetic_rows": 0,
    "mirror": True,
    "task_shares": {"environment": 0.3, "policy": 0.7},
    "learning_rate": 1e-3,
    "warmup_steps": 20,
}
STARTS = {"grpo_policy_nano": "runs/grpo_nano", "grpo_games": "rookworld-games"}
# Optimiser steps, and of `dpo` prompts, so that all methods take about as long. Where none is given the
# recipe takes its own.
LENGTHS = {
    "grpo_policy_nano": {
        "soft": 800,
        "forgetful": 800,
        "grpo": 1800,
        "sft": 3400,
        "control": 2500,
        "dpo": 8000,
    },
    "grpo_games": {
        "forgetful": 380,
        "soft": 700,
        "grpo": 1300,
        "sft": 680,
        "control": 1100,
        "dpo": 3200,
    },
}
# Completions a step, where a method has its own number: a step of a larger model takes seconds.
BATCHES = {"grpo_games": 32}
# How the start itself was trained, for `sft`.
SUPERVISED = {"grpo_games": {"muon": True}}


@dataclass(frozen=True)
class Try:
    """A method's run.

    Attributes:
        recipe: The name of the recipe whose rows are learnt from.
        start: The model.
        seed: Of the run.
        output: Its folder.
        length: Steps or prompts; None is as the recipe says.
    """

    recipe: str
    start: str
    seed: int
    output: Path
    length: int | None


def recipe_keys(recipe: str) -> dict[str, Any]:
    """The keys of a packaged recipe."""
    return dict(yaml.safe_load((REPOSITORY / "recipes" / f"{recipe}.yaml").read_text()))


def run(command: str, recipe: str, output: Path, options: Mapping[str, Any]) -> None:
    """Run a recipe with other values of some keys."""
    output.parent.mkdir(parents=True, exist_ok=True)
    given = recipe_keys(recipe)
    config = output.with_suffix(".yaml")
    config.write_text(
        yaml.safe_dump({**given, **options, "output_dir": str(output), "report_to": "none"})
    )
    with output.with_suffix(".log").open("w") as log:
        script = REPOSITORY / "recipes" / f"{command}.py"
        words = [sys.executable, str(script), f"--config={config}"]
        subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=True)


def grpo(options: Mapping[str, Any], one: Try) -> None:
    length = {} if one.length is None else {"max_steps": one.length}
    given = {"model_name_or_path": one.start, "seed": one.seed}
    if "per_device_train_batch_size" in options and one.recipe in BATCHES:
        given["per_device_train_batch_size"] = BATCHES[one.recipe]
    run("grpo", one.recipe, one.output, {**options, **length, **given})


def sft(one: Try) -> None:
    given = {"model_name_or_path": one.start, "seed": one.seed, "max_steps": one.length}
    own = SUPERVISED.get(one.recipe, {})
    run("sft", "sft_nano", one.output, {**LABELLED, **own, **rows_of(one.recipe), **given})


def rows_of(recipe: str) -> dict[str, Any]:
    """The keys that say which rows a recipe learns from."""
    keys = recipe_keys(recipe)
    return {name: keys[name] for name in ("dataset_name", "decisive_share") if name in keys}


def policy_rows(recipe: str) -> list[Row]:
    """The recipe's policy rows of the training split, with their mirror images."""
    data = load_data(DataArguments(**rows_of(recipe), tasks=["policy"], mirror=True))
    return list(data.train)


def dpo(one: Try) -> None:
    """Pairs of the start's own samples; the better one keeps at least 0.02 more win probability."""
    rows = random.Random(one.seed).sample(policy_rows(one.recipe), one.length or 0)
    texts = answerer(one.start, one.recipe).samples([row["prompt"] for row in rows], 4)
    pairs = []
    for row, drawn in zip(rows, texts, strict=True):
        judged = judge([row] * len(drawn), drawn)
        ranked = sorted(zip(drawn, judged, strict=True), key=lambda one: one[1]["expected_score"])
        (worst, low), (best, high) = ranked[0], ranked[-1]
        if high["expected_score"] - low["expected_score"] >= 0.02:
            pairs.append({"prompt": row["prompt"], "chosen": best, "rejected": worst})
    common = shared_arguments(one, learning_rate=1e-4, batch=32)
    trainer = DPOTrainer(
        model=loading.load_model(one.start),
        args=DPOConfig(**common, beta=0.1, num_train_epochs=6, max_length=192),
        train_dataset=Dataset.from_list(pairs),
        processing_class=AutoTokenizer.from_pretrained(_folder(one.start)),
    )
    finish(trainer, one)


def control(one: Try) -> None:
    """The best move right after the prompt."""
    rows = [
        {"prompt": row["prompt"], "completion": f" B: {best_move(row)}"}
        for row in policy_rows(one.recipe)
    ]
    common = shared_arguments(one, learning_rate=1e-3, batch=64)
    trainer = SFTTrainer(
        model=loading.load_model(one.start),
        args=SFTConfig(**common, max_steps=one.length),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(_folder(one.start)),
    )
    finish(trainer, one)


def _folder(model: str) -> str:
    return str(loading.resolve_model_path(model))


def best_move(row: Row) -> str:
    values = values_of(row) or {}
    return max(values, key=lambda move: values[move])


def shared_arguments(one: Try, learning_rate: float, batch: int) -> dict[str, Any]:
    return {
        "output_dir": str(one.output),
        "seed": one.seed,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 20,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }


def finish(trainer: Any, one: Try) -> None:
    trainer.train()
    trainer.model.save_pretrained(one.output)
    AutoTokenizer.from_pretrained(_folder(one.start)).save_pretrained(one.output)


METHODS: Mapping[str, Callable[[Try], None]] = {
    "recipe": partial(grpo, {}),
    "trained": partial(grpo, {"start_share": 0.0}),
    "forgetful": partial(grpo, FORGETFUL),
    "grpo": partial(grpo, SAMPLES),
    "soft": partial(grpo, {**FORGETFUL, "expected_score_coef": 0.0, "soft_moves_coef": 5.0}),
    "sft": sft,
    "dpo": dpo,
    "control": control,
}


# --------------------------------------------------------------------------------------------------
# Measuring
# --------------------------------------------------------------------------------------------------
def answerer(model: str, recipe: str) -> LanguageModel:
    network = loading.load_model(model).eval()
    tokenizer = loading.load_tokenizer(model)
    most = recipe_keys(recipe)["max_completion_length"]
    return LanguageModel(
        model, partial(complete, network, tokenizer, max_new_tokens=most, batch_size=128)
    )


def measure(
    model: str, recipe: str, is_control: bool = False, start: str | None = None, games: int = 0
) -> dict[str, list[float]]:
    """Held-out results with their 95% intervals.

    Args:
        model: The model.
        recipe: Its `dataset_name` has the rows.
        is_control: Whether the model answers with a move only.
        start: The model to play against.
        games: How many games they play, each with an opening of its own and both colours.
    """
    name = recipe_keys(recipe)["dataset_name"]
    data = load_data(DataArguments(dataset_name=name, heldout_rows=3000)).heldout.to_list()
    policy, environment = (
        [row for row in data if row["task"] == task] for task in ("policy", "environment")
    )
    player = answerer(model, recipe)
    texts = player.answers([row["prompt"] for row in policy])
    if is_control:  # it gives no analysis, which the score of an answer asks for
        moves = [match[1] if (match := re.search(r"B: (\S+)", text)) else "-" for text in texts]
        texts = [f" M: {move} E: 0.0 B: {move}" for move in moves]
    judged = judge(policy, texts)
    best = [max(map(win_probability, (values_of(row) or {}).values())) for row in policy]
    lost = [
        top - score["expected_score"] if score["legal"] else 0.5
        for top, score in zip(best, judged, strict=True)
    ]
    found = {
        "expected": estimate("mean", [score["expected_score"] for score in judged]),
        "lost": estimate("mean", lost),
        "best move": estimate("share", [score["best_move_hit"] for score in judged]),
        "legal": estimate("share", [score["legal"] for score in judged]),
    }
    if not is_control:
        some = policy[:PASS_ROWS]
        drawn = player.samples([row["prompt"] for row in some], PASS_SAMPLES)
        passed = [
            max(score["best_move_hit"] for score in judge([row] * PASS_SAMPLES, its))
            for row, its in zip(some, drawn, strict=True)
        ]
        found[f"pass@{PASS_SAMPLES}"] = estimate("share", passed)
        if start and games:
            suite = VersusModelSuite(games, 0, start, ModelArguments(max_new_tokens=64))
            estimates = suite.run(player).estimates
            if "elo_difference" in estimates:  # no finite one explains games that are all won
                found["Elo"] = estimates["elo_difference"]
    answers = player.answers([row["prompt"] for row in environment])
    exact = [score["exact"] for score in judge(environment, answers)]
    found["environment"] = estimate("share", exact)
    return {name: [one.value, one.low, one.high] for name, one in found.items()}


def judge(rows: Sequence[Row], texts: Sequence[str]) -> list[Mapping[str, float]]:
    """The scores of one answer a row; all of these rows can be judged."""
    return [score for score in scores(rows, texts) if score is not None]


def values_of(row: Row) -> Mapping[str, int] | None:
    return values_by_move(row["action_values"])


NAMES = ("expected", "lost", "best move", "legal", f"pass@{PASS_SAMPLES}", "Elo", "environment")


def line(name: str, seconds: str, found: Mapping[str, Sequence[float]]) -> str:
    cells = [cell(column, found[column]) if column in found else "-" for column in NAMES]
    return f"| {' | '.join([name, seconds, *cells])} |"


def cell(column: str, values: Sequence[float]) -> str:
    """A value with its interval; shares and win probabilities in per cent."""
    if column == "Elo":
        return "{:+.0f} [{:+.0f}, {:+.0f}]".format(*values)
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * value for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="grpo_policy_nano", choices=LENGTHS)
    parser.add_argument("--start", help="a model; by default that of the recipe")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--games", type=int, default=0, help="of each against the start")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/policy"))
    args = parser.parse_args()
    start = args.start or STARTS[args.recipe]
    print(f"| method, seed | core, s | {' | '.join(NAMES)} |")
    print("| --- " * (2 + len(NAMES)) + "|")
    print(line("start", "-", measure(start, args.recipe)), flush=True)
    for method in args.methods:
        for seed in args.seeds:
            output = args.output_dir / args.recipe / f"{method}_{seed}"
            length = LENGTHS[args.recipe].get(method)
            asked = {"start": start, "length": length, "games": args.games}
            kept = output / "measured.json"
            if not kept.is_file():
                before = processor_seconds(), time.process_time()
                METHODS[method](Try(args.recipe, start, seed, output, length))
                spent = processor_seconds() - before[0] + time.process_time() - before[1]
                is_control = method == "control"
                found = measure(str(output), args.recipe, is_control, start, args.games)
                kept.write_text(json.dumps({"asked": asked, "seconds": spent, **found}))
            found = json.loads(kept.read_text())
            if found.pop("asked", None) != asked:
                parser.error(f"{kept} was not measured with {asked}; give another --output_dir")
            seconds = found.pop("seconds")
            print(line(f"{method}, {seed}", f"{seconds:.0f}", found), flush=True)


if __name__ == "__main__":
    main()
