"""Shares of kinds of rows in a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from ..common.errors import ConfigurationError
from ..common.settings import share_faults
from ..tasks.registry import TASKS


@dataclass(frozen=True)
class Shares:
    """Shares by name, each in [0, 1]; they add up to 1."""

    def __post_init__(self) -> None:
        shares = self.as_dict()
        faults = share_faults(f"shares of {self.what()}s", shares, shares, self.what())
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def what(cls) -> str:
        """What the names are names of."""
        return cls.__name__.removesuffix("Shares").lower()

    @classmethod
    def of(cls, shares: Any) -> Self:
        """The shares that a key gives; names that are left out get 0. None takes the default ones."""
        return cls() if shares is None else cls(**{**dict.fromkeys(cls.names(), 0.0), **shares})

    @classmethod
    def names(cls) -> list[str]:
        """What has a share."""
        return [field.name for field in fields(cls)]

    @classmethod
    def bounds(cls) -> dict[str, Any]:
        """Of a key that gives the shares, see `settings.Bounds`."""
        return {"among": cls.names(), "of": cls.what(), "shares": True}

    def as_dict(self) -> dict[str, float]:
        """Shares by name."""
        return {name: getattr(self, name) for name in self.names()}


def left_out_faults(where: str, shares: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    """Which tasks have a share though they are not trained, one sentence each.

    Args:
        where: The configuration's key that gave the shares.
        shares: By task; other keys are passed over.
        tasks: Those that are trained at all.
    """
    return [
        f"{where}: {task} has a share of {shares[task]:g}, but `tasks` leaves it out: {list(tasks)}"
        for task in shares
        if task in TASKS and shares[task] and task not in tasks
    ]
