"""W&B: how it is set up, and this package's sections and boards."""
