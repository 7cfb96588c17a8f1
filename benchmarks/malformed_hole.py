"""Does credit for malformed boards help where sampling finds no board that can be read?

    python benchmarks/malformed_hole.py --seeds 0 1 2  # after `rookworld grpo` has made runs/grpo_nano

RookWorld-LM's wrong answers to openings have nine squares in a rank. This plants that fault in the
quickstart's model: the eight double steps from the first position are answered with nine squares in the
pawn's rank, mostly also without the pawn, and mostly with the next move's number. Plain GRPO then
trains on these eight prompts and on other openings, whose answers are right, once with the reward as it
is, once without the credit for malformed boards. It prints a Markdown table of the eight prompts: right
answers, boards that can be read, and groups of eight samples whose rewards differ; and of right answers
to openings that nothing was trained on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import chess
import torch
from recipe_runs import run_recipe

from rookworld_rlvr.data.loading import HELDOUT_SHARE, DataArguments, is_held_out, load_data
from rookworld_rlvr.data.parsing import prompt_of
from rookworld_rlvr.data.synthesis import environment_prompts, environment_row, is_first_ply
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import PLAIN, complete
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.text import END_OF_TEXT, POLICY_PREFIX

Row = dict[str, Any]
STEPS = [f"{file}2{file}4" for file in "abcdefgh"]
GROUP, GROUPS = 8, 32
READABLE_ONLY = f"{Path(__file__)}:state_if_readable"
REWARDS = {"with credit": "environment_state", "without": READABLE_ONLY}


def state_if_readable(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """`environment_state`, but 0 for an answer with a malformed board."""
    scores = [ENVIRONMENT.score(*pair) for pair in zip(prompts, completions, strict=True)]
    return [0.0 if score is None else score["state"] * score["format"] for score in scores]


# --------------------------------------------------------------------------------------------------
# The hole
# --------------------------------------------------------------------------------------------------
def held_out(row: Row) -> bool:
    return is_held_out(row["fen"], HELDOUT_SHARE)


def double_steps() -> list[Row]:
    """The eight double steps from the first position, rightly answered."""
    return [environment_row(prompt_of(chess.Board(), move)) for move in STEPS]


def other_openings(seed: int, count: int, is_wanted: Callable[[Row], bool] = bool) -> list[Row]:
    """Openings after the first two plies, rightly answered."""
    shares = {"openings": 0.65, "double_steps": 0.35}
    rows = map(environment_row, environment_prompts(seed, shares, 8))
    wanted = (row for row in rows if not is_first_ply(row) and is_wanted(row))
    return list(itertools.islice(wanted, count))


def nine_squares(row: Row, draw: random.Random) -> str:
    """A wrong answer: the pawn's rank has nine squares. Most lack the pawn, or have the next number."""
    ranks = row["completion"].split("/")
    ranks[6] = re.sub(r"P$|1$", lambda last: f"{last[0]}P", ranks[6])
    if draw.random() < 0.95:
        ranks[4] = "8"
    answer = "/".join(ranks)
    return answer.replace(" 0 1+", " 0 2+") if draw.random() < 0.95 else answer


def plant(start: str, folder: Path, steps: int, rate: float) -> None:
    """Train the fault into a model, and keep other openings and the policy as they are."""
    torch.manual_seed(0)
    draw = random.Random(0)
    model, tokenizer = loading.load_model(start), loading.load_tokenizer(start)
    packaged = load_data(DataArguments()).train
    policy = [row for row in packaged if row["prompt"].startswith(POLICY_PREFIX)]
    others, wrong = other_openings(21, 20_000), double_steps()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    for step in range(steps):
        rows = draw.sample(others, 28) + draw.sample(policy, 12)
        texts = [(row["prompt"], row["completion"]) for row in rows]
        texts += [(row["prompt"], nine_squares(row, draw)) for row in wrong * 3]
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - step / steps)
        answers_loss(model, tokenizer, texts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def answers_loss(model: Any, tokenizer: Any, texts: list[tuple[str, str]]) -> Any:
    """Mean loss of the answers' tokens, the end token among them."""
    asked = [tokenizer(prompt)["input_ids"] for prompt, _ in texts]
    told = [tokenizer(answer + END_OF_TEXT)["input_ids"] for _, answer in texts]
    width = max(map(len, map(list.__add__, asked, told)))
    ids = torch.zeros(len(texts), width, dtype=torch.long)  # (B, T), padded on the right
    labels = torch.full_like(ids, -100)
    for place, (prompt, answer) in enumerate(zip(asked, told, strict=True)):
        whole = torch.tensor(prompt + answer)
        ids[place, : len(whole)] = whole
        labels[place, len(prompt) : len(whole)] = whole[len(prompt) :]
    return model(input_ids=ids, labels=labels).loss


# --------------------------------------------------------------------------------------------------
# Measuring
# --------------------------------------------------------------------------------------------------
def measured(folder: Path) -> dict[str, float]:
    """Shares in % of the eight prompts' greedy and sampled answers, and of groups of samples."""
    model, tokenizer = loading.load_model(str(folder)).eval(), loading.load_tokenizer(str(folder))
    rows = double_steps()
    asked = [row["prompt"] for row in rows for _ in range(GROUP * GROUPS // len(rows))]
    answer = partial(complete, model, tokenizer, max_new_tokens=48, batch_size=128)
    greedy = answer([row["prompt"] for row in rows])
    texts = answer(asked, decoding=PLAIN)
    others = other_openings(99, 300)
    elsewhere = answer([row["prompt"] for row in others])
    scores = [ENVIRONMENT.score(*pair) or {} for pair in zip(asked, texts, strict=True)]
    return {
        "greedy": percent(exact(rows, greedy)),
        "sampled": percent(score["exact"] for score in scores),
        "readable": percent(score["format"] for score in scores),
        "signal, with credit": percent(spread([score["state"] for score in scores])),
        "signal, without": percent(spread([s["state"] * s["format"] for s in scores])),
        "elsewhere": percent(exact(others, elsewhere)),
    }


def exact(rows: list[Row], answers: list[str]) -> Iterator[float]:
    for row, answer in zip(rows, answers, strict=True):
        yield (ENVIRONMENT.score(row["prompt"], answer) or {})["exact"]


def spread(rewards: list[float]) -> Iterator[float]:
    """Whether the rewards of each group differ."""
    for group in zip(*[iter(rewards)] * GROUP, strict=True):
        yield float(len(set(group)) > 1)


def percent(values: Any) -> float:
    return 100 * statistics.fmean(values)


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", default="runs/grpo_nano")
    parser.add_argument("--folder", type=Path, default=Path("runs/malformed_hole"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--learning_rate", default="1e-4")
    parser.add_argument("--others", type=int, default=24)
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--plant_steps", type=int, default=250)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    hole, data = args.folder / "start", args.folder / "rows.jsonl"
    if not (hole / "model.safetensors").is_file():
        plant(args.start, hole, args.plant_steps, 5e-4)
    if not data.is_file():
        rows = double_steps() + other_openings(7, args.others, lambda row: not held_out(row))
        rows += other_openings(8, 100, held_out)
        data.write_text(
            "".join(json.dumps({"text": r["prompt"] + r["completion"]}) + "\n" for r in rows)
        )
    names = list(measured(hole))
    print("| reward | seed |", " | ".join(names), "|", flush=True)
    print("| --- |", " | ".join(["---"] * (1 + len(names))), "|")
    line("start", "-", measured(hole))
    for seed, (title, reward) in itertools.product(args.seeds, REWARDS.items()):
        output = args.folder / f"{title.replace(' ', '_')}_{args.learning_rate}_{seed}"
        rewards = json.dumps([{"name": "environment_exact"}, {"name": reward}])
        options = {
            "model_name_or_path": hole, "dataset_name": data, "rewards": rewards, "seed": seed,
            "learning_rate": args.learning_rate, "max_steps": args.max_steps,
            "synthetic_rows": 0, "first_plies_share": 0, "zero_variance": "keep",
            "per_device_train_batch_size": 8 * GROUP,
            "eval_steps": args.max_steps, "save_steps": args.max_steps,
        }  # fmt: skip
        words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        run_recipe(output, *words, recipe="grpo_openings_hole.yaml")
        line(title, str(seed), measured(output))


def line(title: str, seed: str, found: dict[str, float]) -> None:
    print(
        "|", title, "|", seed, "|", " | ".join(f"{v:.1f}" for v in found.values()), "|", flush=True
    )


if __name__ == "__main__":
    main()
