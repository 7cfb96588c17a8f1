"""A guard on held-out metrics: a checkpoint that loses too much of one is not kept as the best."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...common.errors import close_matches
from ...common.settings import setting
from ...evaluation.registry import SUITE_HEADLINES
from ...tasks.metrics import training_metrics
from ..health.readings import losses
from .part import Part, arguments_of


def metric_faults(value: str | None, name: str) -> list[str]:
    """What is wrong with the name of a metric by which checkpoints are compared."""
    known = (*training_metrics(), *SUITE_HEADLINES.values())
    if value in known:
        return []
    return [f"{name}: {value!r} is not a held-out metric{close_matches(str(value), known)}"]


def _names_faults(guard: Mapping[str, Any], name: str) -> list[str]:
    return [fault for metric in guard for fault in metric_faults(metric, name)]


@dataclass
class GuardArguments:
    """What a run may lose on held-out rows."""

    guard: dict[str, float] | str | None = setting(
        None,
        "Mapping of held-out metrics or headlines of suites to the most that they may lose against the "
        "start, such as {environment/exact: 0.01}. A checkpoint that loses more is reported by the "
        "health rule guard and never kept as the best. If all do, the run ends with the starting "
        "model.",
        least=0,
        check=_names_faults,
    )

    def guard_faults(self, args: Any) -> list[str]:
        """Faults that show once transformers has settled when to evaluate and save.

        Args:
            args: The trainer's arguments.
        """
        if not self.guard:
            return []
        if not args.load_best_model_at_end:
            return [
                "guard: the last checkpoint would be kept, whatever it loses; leave out "
                "load_best_model_at_end: false"
            ]
        # transformers asks for equal strategies unless the best is saved.
        if args.save_strategy != "steps" or args.eval_steps == args.save_steps:
            return []
        return [
            f"guard: checkpoints are evaluated every {args.eval_steps:g} steps and saved every "
            f"{args.save_steps:g}, so that one that keeps the guard may be lost; give save_steps the "
            "value of eval_steps"
        ]


class Guard(Part):
    """Judges each evaluation by what it loses against the start, and saves the start itself.

    The starting model is the first checkpoint and the best until another one keeps the guard. What is
    judged is in the trainer's log, so that a resumed run judges alike.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        most: The largest loss by metric.
    """

    def __init__(self, trainer: Any, most: Mapping[str, float]) -> None:
        self.trainer = trainer
        self.most = most

    @classmethod
    def of(cls, trainer: Any) -> Guard | None:
        """The part, if there is a guard."""
        most = arguments_of(trainer.args, GuardArguments).guard
        return cls(trainer, dict(most)) if isinstance(most, Mapping) and most else None

    def is_broken(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's metrics lose more than they may against the run's first ones."""
        first = ChainMap(*self.trainer.state.log_history)  # of each metric, its first value
        return bool(losses(self.most, first, metrics))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self.trainer.is_in_train:
            self.trainer.save_start()
