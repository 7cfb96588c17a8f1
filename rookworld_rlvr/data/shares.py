"""Shares of kinds of rows in a mixture."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from ..common.errors import ConfigurationError
from ..common.settings import share_faults


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

    def as_dict(self) -> dict[str, float]:
        """Shares by name."""
        return {name: getattr(self, name) for name in self.names()}
