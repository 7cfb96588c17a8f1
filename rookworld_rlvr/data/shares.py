"""Shares of kinds of rows in a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from ..common.errors import ConfigurationError, close_matches, json_value
from ..tasks.types import TASKS

_TOLERANCE = 1e-6  # of the sum of shares


def share_faults(where: str, shares: Any, tasks: Sequence[str] | None) -> list[str]:
    """What is wrong with shares of tasks, one sentence each.

    Args:
        where: The configuration's key that gave them.
        shares: By task.
        tasks: Those that are trained at all, where they are known.
    """
    if not isinstance(shares, Mapping):
        return [f"{where}: {shares!r} is no mapping of tasks to shares"]
    faults = []
    for task, share in shares.items():
        if task not in TASKS:
            faults.append(f"{where}: {task!r} is no task{close_matches(str(task), TASKS)}")
        elif isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
            faults.append(f"{where}: {task} is {share!r}, no share; give a number from 0 to 1")
    if faults:
        return faults
    if not abs(sum(shares.values()) - 1) <= _TOLERANCE:
        faults.append(f"{where}: the shares add up to {sum(shares.values()):g}, not to 1")
    faults += [
        f"{where}: {task} has a share of {share:g}, but `tasks` leaves it out: {list(tasks)}"
        for task, share in shares.items()
        if share and tasks is not None and task not in tasks
    ]
    return faults


@dataclass(frozen=True)
class Shares:
    """Shares by name, each in [0, 1]; they add up to 1."""

    def __post_init__(self) -> None:
        shares = self.as_dict()
        faults = [
            f"share {name}={share!r} is not in [0, 1]; give a fraction"
            for name, share in shares.items()
            if not 0 <= share <= 1
        ]
        total = sum(shares.values())
        if abs(total - 1) > 1e-6:
            faults.append(f"the shares of {self.what()}s add up to {total:g}, not 1: {shares}")
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def what(cls) -> str:
        """What the names are names of."""
        return cls.__name__.removesuffix("Shares").lower()

    @classmethod
    def of(cls, shares: Mapping[str, float]) -> Self:
        """The shares given; names that are left out get 0."""
        return cls(**{**dict.fromkeys(cls().as_dict(), 0.0), **shares})

    def as_dict(self) -> dict[str, float]:
        """Shares by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read_shares(key: str, given: Any, of: type[Shares]) -> tuple[Any, list[str]]:
    """A key's shares, read as JSON where they are text, and what is wrong with them.

    Args:
        key: Of the configuration.
        given: Shares by name, or None.
        of: What they are to be.
    """
    try:
        given = json_value(key, given)
    except ConfigurationError as error:
        return given, error.faults
    if given is None:
        return given, []
    if not isinstance(given, Mapping):
        return given, [f"{key}: {given!r} is no mapping of {of.what()}s to shares"]
    known = list(of().as_dict())
    faults = [
        f"{key}: unknown {of.what()} {name!r}{close_matches(str(name), known)}"
        for name in given
        if name not in known
    ]
    faults += [
        f"{key}: {name} is {share!r}, no number"
        for name, share in given.items()
        if isinstance(share, bool) or not isinstance(share, int | float)
    ]
    if not faults:
        try:
            of.of(given)
        except ConfigurationError as error:
            faults += error.faults
    return given, faults
