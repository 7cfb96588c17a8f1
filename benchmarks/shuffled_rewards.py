"""GRPO with rewards shuffled within each group: a run that should learn nothing from them.

    python benchmarks/shuffled_rewards.py --config recipes/grpo_learning.yaml --model_name_or_path M

Whatever it still gains comes from small steps on the policy's own completions, not from the rewards.
"""

from __future__ import annotations

import random
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

import grpo

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.rewards.registry import RewardFunc, get_reward_funcs


def shuffled(func: RewardFunc) -> RewardFunc:
    """The reward function with each prompt's rewards in random order."""

    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
        rewards = iter(func(prompts=prompts, completions=completions, **columns))
        mixed: list[float | None] = []
        for prompt, group in groupby(prompts):
            mine = [next(rewards) for _ in group]
            # All rewards of a completion are moved alike, so that their sum is shuffled too.
            random.Random(f"{prompt} {completions[len(mixed)]}").shuffle(mine)
            mixed += mine
        return mixed

    reward.__name__ = getattr(func, "__name__", "reward")
    return reward


def shuffled_funcs(*args: Any) -> list[RewardFunc]:
    return [shuffled(func) for func in get_reward_funcs(*args)]


if __name__ == "__main__":
    vars(grpo)["get_reward_funcs"] = shuffled_funcs  # the name that the recipe calls
    run_cli(grpo.main)
