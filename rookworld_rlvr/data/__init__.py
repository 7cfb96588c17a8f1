"""Rows: read, made, mixed, checked."""
