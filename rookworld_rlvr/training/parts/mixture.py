"""Shares of tasks in a batch, and for how long they hold, for `prompt_sampler`; and their faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from ...common.settings import key_faults, setting, share_faults
from ...data.shares import left_out_faults
from ...tasks.registry import TASKS


@dataclass(frozen=True, slots=True)
class Phase:
    """Shares of tasks, and for how long they hold."""

    shares: Mapping[str, Fraction]  # by task, above 0; their sum is 1
    steps: int | None = None  # optimiser steps; None lasts to the end


def _phase_faults(entries: Any, name: str) -> list[str]:
    if not entries:
        return [f"{name}: {entries!r} is no list of mappings with steps and shares"]
    faults = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: entry {number}"
        if not isinstance(entry, Mapping):
            faults.append(f"{where}: {entry!r} is no mapping of steps and shares")
            continue
        steps = entry.get("steps")
        if "steps" not in entry:
            if number < len(entries):
                faults.append(f"{where}: has no steps; only the last may leave them out")
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            faults.append(f"{where}: steps is {steps!r}, no whole number above 0")
        shares = {task: share for task, share in entry.items() if task != "steps"}
        faults += share_faults(where, shares, TASKS, "task")
    return faults


@dataclass
class PromptArguments:
    """Keys for which prompts a batch holds; off by default."""

    task_mixture: dict[str, float] | str | None = setting(
        None,
        "Share of each task in every batch, {policy: 0.5, environment: 0.5}: task_phases of one phase. "
        "None takes rows as they come.",
        shares=TASKS,
        of="task",
    )
    task_phases: list[Any] | str | None = setting(
        None,
        "Mixtures one after the other and then from the start again, each with the optimiser steps "
        "that it lasts: [{steps: 100, policy: 1}, {steps: 50, environment: 1}]. A last one without "
        "steps lasts to the end.",
        check=_phase_faults,
    )
    prompt_sampling: Literal["uniform", "by_difficulty"] = setting(
        "uniform",
        "uniform: each prompt once before any comes again; by_difficulty: prompts whose completions "
        "were all worth the same come less often, see difficulty.DifficultyMemory.",
    )
    difficulty_floor: float = setting(
        0.0625, "How much less often at most: the lowest weight, in (0, 1].", above=0, most=1
    )

    def prompt_faults(self, tasks: Sequence[str] | None = None) -> list[str]:
        """What no key shows alone, one sentence each.

        Args:
            tasks: Those that are trained at all, where they are known.
        """
        faults = []
        if self.task_mixture is not None and self.task_phases is not None:
            faults.append("task_mixture and task_phases exclude each other; leave one out")
        if self.prompt_sampling == "by_difficulty" and not getattr(self, "shuffle_dataset", True):
            faults.append(
                f"prompt_sampling: {self.prompt_sampling!r} draws at random; leave "
                "shuffle_dataset: false out"
            )
        if tasks is not None and not key_faults(self, "task_mixture", "task_phases"):
            for where, mixture in self._mixtures().items():
                faults += left_out_faults(where, mixture, tasks)
        return faults

    def phases(self) -> tuple[Phase, ...]:
        """The mixtures in order, once nothing is wrong with them; empty without any."""
        return tuple(map(_phase, self._mixtures().values()))

    def _mixtures(self) -> dict[str, Mapping[str, Any]]:
        """`task_phases` by the words for each; `task_mixture` is another spelling of a single one."""
        if isinstance(self.task_mixture, dict):
            return {"task_mixture": self.task_mixture}
        entries: Any = self.task_phases or ()
        return {f"task_phases: entry {at}": entry for at, entry in enumerate(entries, start=1)}


def _phase(entry: Mapping[str, Any]) -> Phase:
    # Shares are meant as decimals: 0.1 is a tenth, so that batches of ten hold one exactly.
    shares = {
        task: Fraction(float(entry[task])).limit_denominator(10**6)
        for task in TASKS
        if entry.get(task)
    }
    total = sum(shares.values())
    return Phase({task: share / total for task, share in shares.items()}, entry.get("steps"))
