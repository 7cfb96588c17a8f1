"""Stockfish: values of legal moves, and the truth of policy rows. This room does not use torch."""
