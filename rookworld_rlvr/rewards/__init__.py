"""Reward functions in TRL's signature, over the tasks' scorers, and judges.

Each packaged reward is a function of this module, so that scripts can import it by its name, and
``trl grpo --reward_funcs rookworld_rlvr.rewards.environment_exact`` can too. Its options have their
defaults, and values of moves come from the column `action_values`. `get_reward_funcs` makes others.
"""

from .registry import RewardFunc, get_reward_funcs

__all__ = [
    "asymmetric",
    "environment_exact",
    "environment_format",
    "environment_outcome",
    "environment_state",
    "fill_in_exact",
    "fill_in_format",
    "fill_in_similarity",
    "get_reward_funcs",
    "graduated",
    "policy_best_move",
    "policy_candidates",
    "policy_consistency",
    "policy_evaluation",
    "policy_format",
    "policy_legality",
    "policy_rank",
    "policy_regret",
    "weighted_policy",
]


def _packaged(name: str) -> RewardFunc:
    """The reward that is a function of this module by this name, under which it can be pickled."""
    (func,) = get_reward_funcs([name])
    func.__module__, func.__qualname__ = __name__, name
    return func


environment_exact = _packaged("environment_exact")
environment_state = _packaged("environment_state")
environment_outcome = _packaged("environment_outcome")
environment_format = _packaged("environment_format")
policy_best_move = _packaged("policy_best_move")
policy_regret = _packaged("policy_regret")
policy_rank = _packaged("policy_rank")
policy_candidates = _packaged("policy_candidates")
policy_evaluation = _packaged("policy_evaluation")
policy_legality = _packaged("policy_legality")
policy_consistency = _packaged("policy_consistency")
policy_format = _packaged("policy_format")
fill_in_exact = _packaged("fill_in_exact")
fill_in_similarity = _packaged("fill_in_similarity")
fill_in_format = _packaged("fill_in_format")
weighted_policy = _packaged("weighted_policy")
graduated = _packaged("graduated")
asymmetric = _packaged("asymmetric")
