"""The states of judges among the rewards, kept in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...rewards.judge_spec import judges_of
from .part import Part


class Judges(Part):
    """Keeps the judges' states in checkpoints.

    Args:
        judges: The judges by name.
    """

    def __init__(self, judges: Mapping[str, Any]) -> None:
        self.judges = judges

    @classmethod
    def of(cls, trainer: Any) -> Judges | None:
        """The part, if there is a judge among the trainer's rewards."""
        judges = judges_of(trainer.reward_funcs)
        return cls(judges) if judges else None

    def state(self) -> dict[str, Any]:
        return {"judges": {name: judge.state() for name, judge in self.judges.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        for name, judge in self.judges.items():
            if name in state.get("judges", {}):  # not there if the recipe got the judge only now
                judge.load(state["judges"][name])
