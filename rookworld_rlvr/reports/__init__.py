"""Pages on runs and judges."""
