"""Versioned suites: ask a model, parse, score, report with intervals."""
