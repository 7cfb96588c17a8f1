"""Pages on runs."""
