"""Stockfish: what legal moves are worth, and the truth of policy rows; no torch."""
