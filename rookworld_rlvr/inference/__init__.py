"""Ask a model: analyse a position, simulate a move, play. This needs neither TRL, W&B nor datasets."""
