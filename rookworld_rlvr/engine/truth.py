"""Truth for policy answers: the values stored in the rows, the engine's, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ..common.errors import IllegalPositionError, NotationError
from ..common.progress import quiet
from ..common.settings import setting
from ..tasks import rules
from ..tasks.registry import TASKS, task_of
from ..tasks.types import Values, values_by_move
from . import EngineArguments

if TYPE_CHECKING:
    from .labeller import Labeller


@lru_cache(maxsize=4_096)
def _valued_position(prompt: str) -> str | None:
    """The FEN to value for a prompt; None if the prompt is malformed or has no legal move."""
    try:
        fen = TASKS[task_of(prompt)].position(prompt).fen
        return fen if rules.legal_moves(fen) else None
    except (NotationError, IllegalPositionError):
        return None


def policy_values(
    truth: PolicyTruth, prompts: Sequence[str], column: Sequence[Any]
) -> list[Values | None]:
    """Values for the prompts of a batch, all asked at once; None for prompts that need none.

    Args:
        truth: Where values come from.
        prompts: `N` prompts.
        column: The rows' `action_values`, each may be None.
    """
    fens = {
        index: fen
        for index, prompt in enumerate(prompts)
        if TASKS[task_of(prompt)].needs_values and (fen := _valued_position(prompt))
    }
    with quiet(True):  # a step has its own progress
        found = truth.values(list(fens.values()), [column[index] for index in fens])
    values = dict(zip(fens, found, strict=True))
    return [values.get(index) for index in range(len(prompts))]


@dataclass
class LabelArguments(EngineArguments):
    """Where the values of moves come from, for policy rewards and held-out metrics."""

    labels: Literal["stored", "stored_or_engine"] = setting(
        "stored",
        "Where values of moves come from. stored: the rows' action_values, which every policy row then "
        "needs; stored_or_engine: the engine, for rows without them. Its values are kept in "
        "engine_cache.",
    )


class PolicyTruth:
    """Values of all legal moves for the rows of a batch.

    Args:
        labeller: Asks the engine for rows without values; None asks nobody.
    """

    def __init__(self, labeller: Labeller | None = None) -> None:
        self.labeller = labeller

    @classmethod
    def open(cls, args: LabelArguments, unlabelled: int) -> PolicyTruth:
        """Make a `PolicyTruth`, and start the engine only if it is needed.

        Args:
            args: Where values come from, and which engine to use.
            unlabelled: How many policy rows have no values.

        Raises:
            EngineError: The engine is needed, but was not found or does not run.
        """
        if args.labels == "stored" or not unlabelled:
            return cls()
        from .labeller import Labeller  # most runs need no engine

        return cls(Labeller(args))

    def values(self, fens: Sequence[str], stored: Sequence[Any]) -> list[Values | None]:
        """The values of each row; None if they are neither stored nor found by the engine.

        Args:
            fens: Positions with a legal move.
            stored: The rows' `action_values`, each may be None.

        Raises:
            RookWorldError: See `Labeller.values`.
        """
        found = list(map(values_by_move, stored))
        waiting = [fen for fen, values in zip(fens, found, strict=True) if values is None]
        if self.labeller is None or not waiting:
            return found
        answers = iter(self.labeller.values(waiting))
        return [next(answers) if values is None else values for values in found]

    def lines(self) -> list[str]:
        """A summary for the terminal: the engine, and how many positions were searched or given up."""
        if self.labeller is None:
            return []
        source, given_up = self.labeller.source, self.labeller.given_up
        return [
            f"engine: {source.engine}, {source.limit}",
            f"positions searched    {self.labeller.searched:>8}",
            f"positions given up    {len(given_up):>8}",
        ]
