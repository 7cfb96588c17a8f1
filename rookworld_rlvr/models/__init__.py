"""Models: loading, corrections of GPT-2 for left-padded batches, decoding."""

from .loading import resolve_model_path

__all__ = ["resolve_model_path"]
