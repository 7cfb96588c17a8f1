"""Reward functions in TRL's signature, over the tasks' scorers.

Each packaged reward is an attribute of this module, so that scripts can import it by its name, and
``trl grpo --reward_funcs rookworld_rlvr.rewards.environment_exact`` can too. Its options have their
defaults, and values of moves come from the column `action_values`. `get_reward_funcs` makes others.
"""

from .registry import RewardFunc, get_reward_funcs, known_rewards

__all__ = ["get_reward_funcs"]


def __getattr__(name: str) -> RewardFunc:
    if name not in known_rewards():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    (func,) = get_reward_funcs([name])
    func.__module__, func.__qualname__ = __name__, name  # so that it can be pickled
    globals()[name] = func  # the next time, it is found
    return func
