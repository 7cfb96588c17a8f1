"""Reward functions in TRL's signature, over the tasks' scorers, and judges."""

from .registry import get_reward_funcs

__all__ = ["get_reward_funcs"]
