"""Held-out evaluation: completions in, proportions with intervals out, by the rewards' own scorer."""

from .heldout import METRICS, TRAINING_METRICS, evaluate_completions, headline

__all__ = ["METRICS", "TRAINING_METRICS", "evaluate_completions", "headline"]
