"""Sweeps without W&B's server."""
