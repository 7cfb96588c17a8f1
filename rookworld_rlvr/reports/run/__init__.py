"""One page on one run or several: what was run, how it went, what the model answers now.

- `runs`: a run's folder as a record.
- `answers`: which held-out answers are worth a look.
- `plots`: curves and intervals as SVG.
- `passes`: pass@k before and after.
- `published`: numbers that others have published.
- `page`: the HTML.
"""

from .page import MOST_RUNS, page
from .record import RunRecord, read_runs

__all__ = ["MOST_RUNS", "RunRecord", "page", "read_runs"]
