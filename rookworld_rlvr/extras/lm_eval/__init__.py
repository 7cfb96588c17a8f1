"""Tasks for lm-evaluation-harness: suites that ask once, with the harness's own model and decoding."""
