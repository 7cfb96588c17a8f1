"""Reward functions in TRL's signature, over the tasks' scorers, and judges."""
