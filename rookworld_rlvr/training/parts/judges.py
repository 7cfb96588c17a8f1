"""What judges among the rewards remember, kept in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...rewards.judge import JudgeReward, judges_of
from .part import Part


class Judges(Part):
    """The judges' states in checkpoints.

    Args:
        judges: By name.
    """

    def __init__(self, judges: Mapping[str, JudgeReward]) -> None:
        self.judges = judges

    @classmethod
    def of(cls, trainer: Any) -> Judges | None:
        """The part, where a judge stands among a trainer's rewards."""
        judges = judges_of(trainer.reward_funcs)
        return cls(judges) if judges else None

    def state(self) -> dict[str, Any]:
        return {"judges": {name: judge.state() for name, judge in self.judges.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        for name, judge in self.judges.items():
            if name in state.get("judges", {}):  # none: it has come into the recipe since
                judge.load(state["judges"][name])
