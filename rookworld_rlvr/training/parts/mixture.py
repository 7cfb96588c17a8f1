"""Shares of tasks in a batch, and for how long they hold: what `prompts` is told, and its faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...common.errors import ConfigurationError, close_matches, json_value
from ...data.shares import share_faults
from ...tasks.types import TASKS

SAMPLINGS = ("uniform", "by_difficulty")


@dataclass(frozen=True, slots=True)
class Phase:
    """Shares of tasks, and for how long they hold."""

    shares: Mapping[str, Fraction]  # by task, above 0; their sum is 1
    steps: int | None = None  # optimiser steps; None lasts to the end


@dataclass
class PromptArguments:
    """Keys for which prompts a batch holds; off by default.

    Args:
        task_mixture: Share of each task in every batch, ``{policy: 0.5, environment: 0.5}``; None
            takes rows as they come.
        task_phases: Mixtures one after the other and then from the start again, each with the
            optimiser steps that it lasts: ``[{steps: 100, policy: 1}, {steps: 50, environment: 1}]``.
            A last one without `steps` lasts to the end.
        prompt_sampling: ``uniform``: each prompt once before any comes again; ``by_difficulty``:
            prompts whose completions were all worth the same come less often, see
            `difficulty.DifficultyMemory`.
        difficulty_floor: How much less often at most: the lowest weight, in (0, 1].
    """

    task_mixture: dict[str, Any] | str | None = None
    task_phases: list[Any] | str | None = None
    prompt_sampling: str = "uniform"
    difficulty_floor: float = 0.0625

    def prompt_faults(self, tasks: Sequence[str] | None = None) -> list[str]:
        """What is wrong with the values, one sentence each; reads those that came as JSON text.

        Args:
            tasks: Those that are trained at all, where they are known.
        """
        faults = []
        for name in ("task_mixture", "task_phases"):
            try:
                setattr(self, name, json_value(name, getattr(self, name)))
            except ConfigurationError as error:
                faults += error.faults
        if self.task_mixture is not None and not isinstance(self.task_mixture, str):
            faults += share_faults("task_mixture", self.task_mixture, tasks)
        if self.task_phases is not None and not isinstance(self.task_phases, str):
            faults += _phase_faults(self.task_phases, tasks)
        if self.task_mixture is not None and self.task_phases is not None:
            faults.append("task_mixture and task_phases exclude each other; leave one out")
        if self.prompt_sampling not in SAMPLINGS:
            faults.append(
                f"prompt_sampling: {self.prompt_sampling!r} is none"
                f"{close_matches(str(self.prompt_sampling), SAMPLINGS)}"
            )
        elif self.prompt_sampling != "uniform" and not getattr(self, "shuffle_dataset", True):
            faults.append(
                f"prompt_sampling: {self.prompt_sampling!r} draws at random; leave "
                "shuffle_dataset: false out"
            )
        if not 0 < self.difficulty_floor <= 1:
            faults.append(f"difficulty_floor: {self.difficulty_floor!r} is not in (0, 1]")
        return faults

    def phases(self) -> tuple[Phase, ...]:
        """The mixtures in order, once `prompt_faults` has found nothing; empty without any."""
        if isinstance(self.task_mixture, dict):
            return (_phase(self.task_mixture),)
        entries = self.task_phases if isinstance(self.task_phases, list) else []
        return tuple(_phase(entry) for entry in entries)


def _phase(entry: Mapping[str, Any]) -> Phase:
    # Shares are meant as decimals: 0.1 is a tenth, so that batches of ten hold one exactly.
    shares = {
        task: Fraction(float(entry[task])).limit_denominator(10**6)
        for task in TASKS
        if entry.get(task)
    }
    total = sum(shares.values())
    return Phase({task: share / total for task, share in shares.items()}, entry.get("steps"))


def _phase_faults(entries: Any, tasks: Sequence[str] | None) -> list[str]:
    if not isinstance(entries, list) or not entries:
        return [f"task_phases: {entries!r} is no list of mappings with steps and shares"]
    faults = []
    for number, entry in enumerate(entries, start=1):
        where = f"task_phases: entry {number}"
        if not isinstance(entry, Mapping):
            faults.append(f"{where}: {entry!r} is no mapping of steps and shares")
            continue
        steps = entry.get("steps")
        if "steps" not in entry:
            if number < len(entries):
                faults.append(f"{where}: has no steps; only the last may leave them out")
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            faults.append(f"{where}: steps is {steps!r}, no whole number above 0")
        shares = {key: value for key, value in entry.items() if key != "steps"}
        faults += share_faults(where, shares, tasks)
    return faults
