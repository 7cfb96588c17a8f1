"""End all processes together when a reward, or what teaches right answers, raises."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_callable_name, is_async_callable

from ..common.errors import RookWorldError


class RewardGuard:
    """Keeps what a reward raises until all processes can raise together.

    A process that ended alone would leave the others waiting for its rewards.
    """

    def __init__(self) -> None:
        self._failures: list[tuple[str, Exception]] = []

    def around(self, reward_funcs: Any) -> Any:
        """Reward functions, guarded; models, names and what is awaited are left as they are."""
        if not isinstance(reward_funcs, list):
            return reward_funcs
        names: list[str] = []
        return [self._guarded(func, names) for func in reward_funcs]

    def _guarded(self, func: Any, names: list[str]) -> Any:
        """A guarded function under TRL's name of it, numbered if it is among `names` already."""
        if isinstance(func, torch.nn.Module | str) or is_async_callable(func):
            return func
        name = get_callable_name(func)
        names.append(name)

        @functools.wraps(func)
        def guarded(**kwargs: Any) -> Any:  # TRL gives keywords only
            try:
                return func(**kwargs)
            except Exception as error:
                self._failures.append((f"a reward failed: {guarded.__name__}", error))
                return [None] * len(kwargs["prompts"])

        # Two partials of one function would share a column of TRL's tables.
        guarded.__name__ = name if names.count(name) == 1 else f"{name}_{names.count(name)}"
        return guarded

    @contextmanager
    def held(self, work: str) -> Iterator[None]:
        """Keep what the block raises, for `raise_together`; `work` names what it does."""
        try:
            yield
        except Exception as error:
            self._failures.append((f"{work} failed", error))

    def raise_together(self, rank: int) -> None:
        """Raise on every process what was raised on any of them.

        Raises:
            RookWorldError: If every failure was one; otherwise RuntimeError.
        """
        mine = [
            (f"{what} on process {rank}: {error!r}", isinstance(error, RookWorldError))
            for what, error in self._failures
        ]
        failures = gather_object(mine)
        if failures:
            cause = self._failures[0][1] if self._failures else None
            kind = RookWorldError if all(known for _, known in failures) else RuntimeError
            raise kind("; ".join(text for text, _ in failures)) from cause
