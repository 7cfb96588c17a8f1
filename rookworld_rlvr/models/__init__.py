"""Models: loading them, making GPT-2 right for left-padded batches, decoding."""

from .loading import resolve_model_path

__all__ = ["resolve_model_path"]
