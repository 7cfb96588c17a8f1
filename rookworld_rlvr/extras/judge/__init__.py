"""Judges: the reward of a frozen model, the pairs that it is trained on, and what it gets right."""
