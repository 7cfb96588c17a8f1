"""Reward functions in TRL's signature, over the tasks' scorers, and judges.

Each packaged reward is an attribute of this module, so that scripts can import it by its name, and
``trl grpo --reward_funcs rookworld_rlvr.rewards.environment_exact`` can too. Its options have their
defaults, and values of moves come from the column `action_values`. `get_reward_funcs` makes others.
"""

from functools import cache

from .registry import RewardFunc, get_reward_funcs, known_rewards

__all__ = ["get_reward_funcs"]


def __getattr__(name: str) -> RewardFunc:
    if name not in known_rewards():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _packaged(name)


@cache
def _packaged(name: str) -> RewardFunc:
    """The reward that this module has by a name, under which it can be pickled."""
    (func,) = get_reward_funcs([name])
    func.__module__, func.__qualname__ = __name__, name
    return func
