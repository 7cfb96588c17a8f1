"""Where the truth about policy answers comes from: the rows' own values, the engine, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from ..common.errors import IllegalPositionError, NotationError
from ..common.progress import Progress
from ..common.settings import setting
from ..tasks.registry import TASKS, task_of
from ..tasks.scoring import Values, values_by_move
from .labeller import Labeller
from .pool import EngineArguments, position_asked


@lru_cache(maxsize=4_096)
def _valued_position(prompt: str) -> str | None:
    """The FEN of a prompt that needs values; None where it is malformed or has no legal move."""
    try:
        fen = TASKS[task_of(prompt)].position(prompt).fen
        position_asked(fen)
    except (NotationError, IllegalPositionError):
        return None
    return fen


def policy_values(
    truth: PolicyTruth, prompts: Sequence[str], column: Sequence[Any], applies: Sequence[bool]
) -> list[Values | None]:
    """What the moves are worth, asked for all of a batch's prompts that need it at once."""
    fens = {
        index: fen
        for index, prompt in enumerate(prompts)
        if applies[index]
        and TASKS[task_of(prompt)].needs_values
        and (fen := _valued_position(prompt))
    }
    found = truth.values(list(fens.values()), [column[index] for index in fens])
    values = dict(zip(fens, found, strict=True))
    return [values.get(index) for index in range(len(prompts))]


LabelSource = Literal["stored", "engine", "stored_or_engine"]


LABELS: tuple[LabelSource, ...] = get_args(LabelSource)


@dataclass
class LabelArguments(EngineArguments):
    """Where the values of moves come from that policy rewards and held-out metrics are computed by."""

    labels: LabelSource = setting(
        "stored",
        "stored, the rows' action_values, which every policy row then needs; engine, asked for every "
        "position; stored_or_engine, asked for those without. Values that the engine gave are kept in "
        "engine_cache.",
    )


class PolicyTruth:
    """What every legal move is worth, for the rows of a batch.

    Args:
        labels: One of `LABELS`.
        labeller: The engine; needed unless `labels` is ``stored``.
    """

    def __init__(self, labels: str = "stored", labeller: Labeller | None = None) -> None:
        if labels not in LABELS or (labels != "stored" and labeller is None):
            raise ValueError(f"labels={labels!r} with labeller={labeller!r}")
        self.labels = labels
        self.labeller = labeller

    @classmethod
    def open(cls, args: LabelArguments, policy_rows: int, unlabelled: int) -> PolicyTruth:
        """Start the engine where it is needed.

        Args:
            args: Whom to ask.
            policy_rows: How many there are; without any, no engine is needed.
            unlabelled: How many of them have no values; ``stored_or_engine`` asks for these.

        Raises:
            EngineError: The engine is needed, and there is none.
        """
        asked = {"stored": 0, "engine": policy_rows, "stored_or_engine": unlabelled}[args.labels]
        return cls(args.labels, Labeller(args)) if asked else cls()

    def values(
        self, fens: Sequence[str], stored: Sequence[Any], progress: str = ""
    ) -> list[Values | None]:
        """The values of each row; None where they cannot be had.

        Args:
            fens: Positions with a legal move.
            stored: The rows' `action_values`, or None each.
            progress: Title of a progress bar; empty for none.

        Raises:
            RookWorldError: See `Labeller.values`.
        """
        if self.labels == "engine":
            stored = [None] * len(fens)
        found = list(map(values_by_move, stored))
        waiting = [index for index, values in enumerate(found) if values is None]
        if self.labeller is None or not waiting:
            return found
        asked = [fens[index] for index in waiting]
        with Progress(progress, len(set(asked)), "positions", hidden=not progress) as shown:
            answers = self.labeller.values(asked, shown.update)
        for index, answer in zip(waiting, answers, strict=True):
            found[index] = None if answer is None else answer.by_move()
        return found

    def lines(self) -> list[str]:
        """Whom the values are of, and what could not be had, for a terminal."""
        if self.labeller is None:
            return []
        source, given_up = self.labeller.source, self.labeller.given_up
        return [
            f"labels: {self.labels}, {source.engine}, {source.limit}",
            f"positions searched    {self.labeller.searched:>8}",
            f"positions given up    {len(given_up):>8}",
            *(f"    {position}: {reason}" for position, reason in list(given_up.items())[:5]),
        ]

    def close(self) -> None:
        """End the engine."""
        if self.labeller is not None:
            self.labeller.close()

    def __enter__(self) -> PolicyTruth:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
