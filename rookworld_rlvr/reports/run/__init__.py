"""One page on one run or several: what was run, how it went, what the model answers now."""

from .page import MOST_RUNS, page
from .record import RunRecord, read_ledger, read_runs

__all__ = ["MOST_RUNS", "RunRecord", "page", "read_ledger", "read_runs"]
