"""Rounds of play, valuing, training and acceptance, which go on by themselves."""
