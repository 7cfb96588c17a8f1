"""A page in the browser: ask a model, try rewards, play, look at runs."""
