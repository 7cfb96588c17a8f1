"""Held-out evaluation: completions in, proportions with intervals out, by the rewards' own scorer."""

from .heldout import HEADLINES, METRICS, TRAINING_METRICS, evaluate_completions, headline

__all__ = ["HEADLINES", "METRICS", "TRAINING_METRICS", "evaluate_completions", "headline"]
