"""Asking a model: analyse a position, simulate a move, play. Neither TRL, W&B nor datasets is needed."""
