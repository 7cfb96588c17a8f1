"""The suites, one a file."""
