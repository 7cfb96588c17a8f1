"""What is wrong with a data set, row by row, before anyone trains on it."""
