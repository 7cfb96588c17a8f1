"""The records of a diagnosed step, and the guard that notes a reward's exceptions."""

from __future__ import annotations

import functools
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

ROW = "diagnosed_row"  # rides along in TRL's batches, which are shuffled and split


@dataclass
class Generation:
    """One generation of a process: `B` completions of at most `C` tokens."""

    batch: dict[str, torch.Tensor]  # TRL's, on the CPU: prompt_ids, completion_ids, advantages, ...
    rewards: torch.Tensor  # (B, F), nan if a reward does not apply
    texts: list[str]  # as the rewards read them
    tables: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # (B, C), nan for rows that were not trained on

    def write(self, name: str, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Put the values ``(b, C)`` of some rows ``(b,)`` where they belong."""
        shape = self.batch["completion_ids"].shape
        table = self.tables.setdefault(name, torch.full(shape, torch.nan))
        table[rows] = values.detach().float().cpu()


@dataclass
class TermSums:
    """Terms of the loss summed as the trainer does, over a step's batches; and their gradients."""

    in_loss: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sizes: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # absolute values
    by_token: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # not yet means
    tokens: int = 0
    coefficient: float = 0.0  # of KL
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)  # of all parameters, flattened


@dataclass
class StepRecord:
    """What an optimiser step was made of."""

    generations: list[Generation] = field(default_factory=list)
    batches: list[tuple[Generation, Mapping[str, Any]]] = field(default_factory=list)  # with inputs
    loss: float = 0.0  # the trainer's own, summed over its batches
    terms: TermSums = field(default_factory=TermSums)
    one_step_on: TermSums | None = None  # the same batches again, after the update
    learning_rate: float = 0.0
    gradient_norm: float | None = None
    gradient_norm_after_clip: float | None = None
    layers: list[dict[str, Any]] = field(default_factory=list)
    without_graph: bool = False  # the loss depended on no weight that is trained
    no_separate_gradients: str = ""  # why the terms have no gradients of their own, if so


@dataclass(frozen=True, slots=True)
class RewardFault:
    """A reward function that raised."""

    name: str
    prompt: str
    completion: str
    error: str
    rows: int  # how many rows of the batch it raised on; 0 if only on the whole batch


def guarded(func: Callable[..., Any], faults: list[RewardFault]) -> Callable[..., Any]:
    """A reward function whose exceptions are noted, row by row, and do not end the run.

    Args:
        func: Of TRL's signature.
        faults: Where they are noted.
    """

    def ask(inputs: Mapping[str, Any]) -> list[float | None]:
        rewards, count = list(func(**inputs)), len(inputs["prompts"])
        if len(rewards) != count:
            raise ValueError(f"{len(rewards)} rewards for {count} completions")
        return rewards

    def ask_row(index: int, inputs: Mapping[str, Any]) -> tuple[float | None, str | None]:
        """The reward of one row by itself, or what it raises."""
        count = len(inputs["prompts"])
        mine = {
            key: [value[index]] if isinstance(value, list) and len(value) == count else value
            for key, value in inputs.items()
            if key not in ("log_metric", "log_extra")  # the batch would be logged twice
        }
        try:
            return ask(mine)[0], None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    @functools.wraps(func)
    def noted(**inputs: Any) -> list[float | None]:  # TRL gives keywords only
        try:
            return ask(inputs)
        except Exception as error:  # any exception of a reward is to be noted
            found = [ask_row(index, inputs) for index in range(len(inputs["prompts"]))]
            faulty = [(row, fault) for row, (_, fault) in enumerate(found) if fault is not None]
            row, fault = faulty[0] if faulty else (0, f"{type(error).__name__}: {error}")
            prompt, completion = inputs["prompts"][row], inputs["completions"][row]
            faults.append(RewardFault(func.__name__, prompt, completion, fault, len(faulty)))
            return [number if faulty else None for number, _ in found]

    return noted


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


class PhaseMeter:
    """Measures the time and memory of phases; a phase that is entered again adds up.

    Args:
        device: Where the work is done. Without a GPU, memory is the resident set of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phases: dict[str, Phase] = {}
        self.memory_kind = MEMORY_OF_GPU if device.type == "cuda" else _resident_kind()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure what is done inside; the caller adds the tokens."""
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
        """The phases in the order in which they began, with tokens a second for those with tokens."""
        return [
            {**asdict(p), "tokens_per_second": p.tokens / p.seconds if p.tokens else None}
            for p in self.phases.values()
        ]

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
