"""Mixtures of tasks in a batch, and the steps that they last, for `prompt_sampler`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...common.settings import key_faults, setting, share_faults
from ...data.shares import left_out_faults
from ...tasks.registry import TASKS


@dataclass(frozen=True, slots=True)
class Phase:
    """The shares of tasks in each batch, and the steps that they last."""

    shares: Mapping[str, Fraction]  # by task, above 0; their sum is 1
    steps: int | None = None  # optimiser steps; None: to the end of the run


def _phase_faults(entries: Any, name: str) -> list[str]:
    if not entries:
        return [f"{name}: {entries!r} must be a list of mappings with steps and shares"]
    faults = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: entry {number}"
        if not isinstance(entry, Mapping):
            faults.append(f"{where}: {entry!r} must be a mapping with steps and shares")
            continue
        steps = entry.get("steps")
        if "steps" not in entry:
            if number < len(entries):
                faults.append(f"{where}: steps is missing; only the last entry may leave it out")
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            faults.append(f"{where}: steps is {steps!r}; give a whole number above 0")
        shares = {task: share for task, share in entry.items() if task != "steps"}
        faults += share_faults(where, shares, TASKS, "task")
    return faults


@dataclass
class PromptArguments:
    """Which prompts a batch holds."""

    task_mixture: dict[str, float] | str | None = setting(
        None,
        "The share of each task in every batch, from 0 to 1, for example {policy: 0.5, "
        "environment: 0.5}. None draws from all rows, whatever their task.",
        shares=TASKS,
        of="task",
    )
    task_phases: list[Any] | str | None = setting(
        None,
        "Mixtures that follow each other, each with its optimiser steps, for example [{steps: 100, "
        "policy: 1}, {steps: 50, environment: 1}]. After the last one they start again, but a last "
        "one without steps lasts to the end.",
        check=_phase_faults,
    )

    def prompt_faults(self, tasks: Sequence[str] | None = None) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each.

        Args:
            tasks: The tasks that are trained, if they are known.
        """
        faults = []
        if self.task_mixture is not None and self.task_phases is not None:
            faults.append("task_mixture and task_phases cannot be combined; leave one out")
        if tasks is not None and not key_faults(self, "task_mixture", "task_phases"):
            for where, mixture in self._mixtures().items():
                faults += left_out_faults(where, mixture, tasks)
        return faults

    def phases(self) -> tuple[Phase, ...]:
        """The mixtures in order, which must be free of faults; empty if there are none."""
        return tuple(map(_phase, self._mixtures().values()))

    def _mixtures(self) -> dict[str, Mapping[str, Any]]:
        """The mixtures by their names in messages; `task_mixture` is the same as a single phase."""
        if isinstance(self.task_mixture, dict):
            return {"task_mixture": self.task_mixture}
        entries: Any = self.task_phases or ()
        return {f"task_phases: entry {at}": entry for at, entry in enumerate(entries, start=1)}


def _phase(entry: Mapping[str, Any]) -> Phase:
    # Shares are read as decimals: 0.1 is exactly a tenth, so a batch of ten has exactly one.
    shares = {
        task: Fraction(float(entry[task])).limit_denominator(10**6)
        for task in TASKS
        if entry.get(task)
    }
    total = sum(shares.values())
    return Phase({task: share / total for task, share in shares.items()}, entry.get("steps"))
