"""The trainer, its configuration, and what watches over a run."""
