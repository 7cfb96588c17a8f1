"""End all processes together when a reward raises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from ..common.errors import RookWorldError


class RewardGuard:
    """Keeps what a reward raises until all processes can raise together.

    A process that ended alone would leave the others waiting for its rewards.
    """

    def __init__(self) -> None:
        self._failures: list[tuple[str, Exception]] = []

    def around(self, reward_funcs: Any) -> Any:
        """Reward functions, guarded; models, names and coroutines are left as they are."""
        if not isinstance(reward_funcs, list):
            return reward_funcs
        return [self._guarded(func) for func in reward_funcs]

    def _guarded(self, func: Any) -> Any:
        if isinstance(func, torch.nn.Module | str) or inspect.iscoroutinefunction(func):
            return func

        @functools.wraps(func)
        def guarded(**kwargs: Any) -> Any:  # TRL gives keywords only
            try:
                return func(**kwargs)
            except Exception as error:
                self._failures.append((func.__name__, error))
                return [None] * len(kwargs["prompts"])

        return guarded

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keep what the block raises, for `raise_together`."""
        try:
            yield
        except Exception as error:
            self._failures.append((name, error))

    def raise_together(self, rank: int) -> None:
        """Raise on every process what a reward has raised on any of them.

        Raises:
            RookWorldError: If every failure was one; otherwise RuntimeError.
        """
        mine = [
            (f"{name} on process {rank}: {error!r}", isinstance(error, RookWorldError))
            for name, error in self._failures
        ]
        failures = gather_object(mine)
        if failures:
            cause = self._failures[0][1] if self._failures else None
            kind = RookWorldError if all(known for _, known in failures) else RuntimeError
            raise kind(f"a reward failed: {'; '.join(text for text, _ in failures)}") from cause
