"""What each phase of a step costs: seconds, peak memory, tokens a second."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")

MEMORY_OF_GPU = "largest memory allocated on the GPU during the phase"
MEMORY_OF_PHASE = "largest resident set of the process during the phase"
MEMORY_OF_PROCESS = "largest resident set of the process so far"


@dataclass
class Phase:
    """What a phase has cost so far, over all of its calls."""

    name: str
    seconds: float = 0.0
    calls: int = 0
    peak_memory_bytes: int = 0
    tokens: int = 0

    def row(self) -> dict[str, Any]:
        """The numbers by name, with tokens a second where the phase has tokens."""
        speed = self.tokens / self.seconds if self.tokens and self.seconds else None
        return {**asdict(self), "tokens_per_second": speed}


class PhaseMeter:
    """Times and weighs phases; a phase that is entered again adds up.

    Args:
        device: Where the work is done. Without a GPU, the resident set of the process is weighed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phases: dict[str, Phase] = {}
        self.memory_kind = MEMORY_OF_GPU if device.type == "cuda" else _resident_kind()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure what is done in here; the caller adds the tokens that it knows of."""
        phase = self.phases.setdefault(name, Phase(name))
        self._reset_peak()
        started = time.perf_counter()
        try:
            yield phase
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            phase.seconds += time.perf_counter() - started
            phase.calls += 1
            phase.peak_memory_bytes = max(phase.peak_memory_bytes, self._peak())

    def rows(self) -> list[dict[str, Any]]:
        """The phases in the order in which they began."""
        return [phase.row() for phase in self.phases.values()]

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.memory_kind == MEMORY_OF_PHASE:
            _CLEAR_REFS.write_text("5")  # Linux: the high-water mark starts again from here

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self.memory_kind == MEMORY_OF_PHASE:
            return _high_water()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _resident_kind() -> str:
    """Whether this system lets the high-water mark be reset."""
    try:
        _CLEAR_REFS.write_text("5")
        _high_water()
    except (OSError, StopIteration):
        return MEMORY_OF_PROCESS
    return MEMORY_OF_PHASE


def _high_water() -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
