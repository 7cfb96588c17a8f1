"""Rows: read, made, mixed, checked."""

from .loading import load_rows

__all__ = ["load_rows"]
