"""How many completions per second the rewards score, on one core.

    python benchmarks/rewards.py

As in training, there are groups of 8 different completions per prompt, and prompts are not repeated:
the board is computed once per prompt, and each completion is parsed once. Lines such as `environment
rewards` are all rewards of a task together, so each completion is scored several times.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.rewards.registry import get_reward_funcs, known_rewards
from rookworld_rlvr.tasks import environment, fill_in_record, rules
from rookworld_rlvr.tasks.registry import TASKS

GROUP = 8
PROMPTS = 1_500
REPEATS = 3


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    environment = list(
        map(
            synthesis.environment_row,
            islice(synthesis.environment_prompts(0), (REPEATS + 1) * PROMPTS),
        )
    )
    data = load_data(DataArguments(tasks=["policy"])).train
    policy = data.select(range(min(len(data), (REPEATS + 1) * PROMPTS))).to_list()
    fill_in = list(islice(synthesis.fill_in_rows(0), (REPEATS + 1) * PROMPTS))
    rows = {"environment": environment, "policy": policy, "fill_in": fill_in}
    print(f"groups of {GROUP}, {PROMPTS} prompts a run, {REPEATS} runs, one core")
    print(f"{'rewards':<26}{'number':>8}{'completions/s':>16}   (median of runs)")
    for task in rows:
        names = [name for name, reward in known_rewards().items() if reward.tasks == (task,)]
        for label, chosen in [(f"{task} rewards", names), *((name, [name]) for name in names)]:
            rate = measure(rows[task], get_reward_funcs([{"name": name} for name in chosen]))
            print(f"{label:<26}{len(chosen):>8}{rate:>16,.0f}")


def measure(rows: Sequence[dict[str, Any]], funcs: Sequence[Callable[..., Any]]) -> float:
    """The median over runs; each run has its own prompts and starts with empty caches."""
    size = len(rows) // (REPEATS + 1)
    rates = []
    for run in range(REPEATS):
        batch = [row for row in rows[run * size : (run + 1) * size] for _ in range(GROUP)]
        rng = random.Random(run)
        columns = {key: [row[key] for row in batch] for key in ("fen", "action", "action_values")}
        prompts = [row["prompt"] for row in batch]
        completions = [
            variant(TASKS[row["task"]].reference(row), i % GROUP, rng)
            for i, row in enumerate(batch)
        ]
        clear_caches()
        started = time.perf_counter()
        for func in funcs:
            func(prompts=prompts, completions=completions, **columns)
        rates.append(len(batch) / (time.perf_counter() - started))
    return sorted(rates)[len(rates) // 2]


def variant(text: str, number: int, rng: random.Random) -> str:
    """The right answer with `number` characters changed at random."""
    letters = list(text)
    for _ in range(number):
        letters[rng.randrange(len(letters))] = rng.choice("pnbrqkPNBRQK12345678/ -+abcdefgh.")
    return "".join(letters)


def clear_caches() -> None:
    """Clear the caches of boards and scores before a run."""
    rules.transition.cache_clear()
    environment._judged_prompt.cache_clear()
    environment.score_environment.cache_clear()
    fill_in_record.judged_prompt.cache_clear()
    fill_in_record.fitting.cache_clear()


if __name__ == "__main__":
    main()
