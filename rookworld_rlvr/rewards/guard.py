"""What a reward that fails costs: its rows, and beyond a limit the run, on all processes together."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_callable_name, is_async_callable

from ..common.errors import IllegalPositionError, NotationError, RookWorldError
from ..tasks.registry import task_of
from ..tasks.text import message_text

logger = logging.getLogger(__name__)


UNSCORED_LIMIT = 0.1
"""The share of a batch's completions that may be unscored because a reward failed."""


class RewardGuard:
    """Turns what goes wrong in reward functions into rows without a reward.

    A row that one reward fails on gets no reward at all: a sum without it would be another score. If a
    call raises, the reward is asked again for the completions of each prompt by themselves, so that one
    of them does not cost the batch. One of our own rewards, which `is_packaged`, is not asked again: an
    engine has tried already, and judges call each other.

    Attributes:
        limit: The share of a batch's completions that may be unscored; above it, the run stops.
        own: The guarded functions that are not rewards of this package, by TRL's name of each.
        faults: The first failure of each call that failed, on this process.
    """

    def __init__(self) -> None:
        self.limit = UNSCORED_LIMIT
        self.own: dict[str, Any] = {}
        self.faults: list[str] = []
        self._calls: list[_Call] = []
        self._shown: set[str] = set()  # rewards whose failure was shown
        self._names: list[str] = []  # TRL's of the functions, some perhaps twice
        self._columns: dict[str, set[str]] = {}  # what each reward has logged by completion

    def around(self, reward_funcs: Any) -> Any:
        """Reward functions, guarded; models and names are left as they are."""
        if reward_funcs is None:
            return None
        return [
            func if isinstance(func, torch.nn.Module | str) else self._guarded(func)
            for func in (reward_funcs if isinstance(reward_funcs, list) else [reward_funcs])
        ]

    def _guarded(self, func: Any) -> Any:
        def guarded(**inputs: Any) -> list[float | None]:  # TRL gives keywords only
            call = _Call(made.__name__, func, inputs)
            for rows, given in call.pieces():
                with call.asked(rows):
                    call.take(rows, func(**given))
            return self._kept(call)

        async def guarded_async(**inputs: Any) -> list[float | None]:
            call = _Call(made.__name__, func, inputs)
            for rows, given in call.pieces():
                with call.asked(rows):
                    call.take(rows, await func(**given))
            return self._kept(call)

        made = functools.wraps(func)(guarded_async if is_async_callable(func) else guarded)
        made.__name__ = name = get_callable_name(func)
        self._names.append(name)
        if self._names.count(name) > 1:  # two partials of one function
            made.__name__ = f"{name}_{self._names.count(name)}"
        if not getattr(func, "is_packaged", False):
            self.own[made.__name__] = made
        return made

    def _kept(self, call: _Call) -> list[float | None]:
        """The rewards of a call, with all its columns logged; its first failure is shown."""
        self._calls.append(call)
        known = self._columns.setdefault(call.name, set())
        # TRL would show an earlier batch's columns beside these rows.
        for column in sorted(known - call.logged):
            call.log_extra(column, [None] * call.size)
        known |= call.logged
        if call.error is not None:
            self.faults.append(str(call.error))
            if call.name not in self._shown:
                self._shown.add(call.name)
                text = "%s; the rows that it failed on are left out (shown once)"
                logger.warning(text, call.error, exc_info=call.error.__cause__)
        return call.rewards

    def settle(
        self, rewards: torch.Tensor, record: Callable[[Mapping[str, float]], None]
    ) -> torch.Tensor:
        """Rewards ``(N, F)`` of all processes' completions, all nan in a row that a reward failed on.

        Args:
            rewards: Rewards by function; nan if there is none.
            record: Takes the metrics.

        Raises:
            RookWorldError: On all processes, if more rows than the limit allows are unscored.
        """
        lost = self.failures(len(rewards))
        unscored = sorted(set().union(*lost.values()))
        counted = {f"{name}/unscored": rows for name, rows in lost.items()} | {"unscored": unscored}
        record({f"rewards/{name}": len(rows) / len(rewards) for name, rows in counted.items()})
        left = rewards.clone()
        left[unscored] = torch.nan
        return left

    def failures(self, size: int) -> dict[str, set[int]]:
        """The rows that each reward has failed on since the last call of this method.

        Args:
            size: The number of rows on all processes together, as many on each.

        Raises:
            RookWorldError: On all processes, if more of them than the limit allows are unscored.
        """
        here, asked = [], Counter[str]()  # a reward may be asked about the rows in several calls
        for call in self._calls:
            rows = [asked[call.name] + row for row in sorted(call.unscored)]
            here.append((call.name, rows, str(call.error)))
            asked[call.name] += call.size
        self._calls.clear()
        everywhere = gather_object([here])
        lost: dict[str, set[int]] = {}
        faults = []
        for process, calls in enumerate(everywhere):
            first = process * size // len(everywhere)
            for name, rows, fault in calls:
                lost.setdefault(name, set()).update(first + row for row in rows)
                where = f" (on process {process})" if len(everywhere) > 1 else ""
                faults += [f"{fault}{where}"] if rows else []
        unscored = len(set().union(*lost.values()))
        if unscored / size > self.limit:
            raise RookWorldError(
                f"a reward failed: {faults[0]}; {unscored} of {size} completions are unscored, more "
                f"than {self.limit:.0%} of the batch; mend the reward, or let it return None for rows "
                "that it cannot judge"
            )
        return lost


class _Call:
    """What TRL's call of a reward comes to, in one call of the function or, if that raises, in several.

    Attributes:
        rewards: A number or None for each row.
        unscored: The rows that the reward failed on.
        error: The first failure.
        logged: The columns that the function has logged by completion.
    """

    def __init__(self, name: str, func: Any, inputs: Mapping[str, Any]) -> None:
        self.name = name
        self.size = len(inputs["prompts"])
        self.rewards: list[float | None] = [None] * self.size
        self.unscored: set[int] = set()
        self.error: RookWorldError | None = None
        self.logged: set[str] = set()
        self._raised = False
        self._func = func
        self._inputs = inputs

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Hand TRL a column."""
        self.logged.add(column)
        self._inputs["log_extra"](column, values)

    def pieces(self) -> Iterator[tuple[range, dict[str, Any]]]:
        """Rows and inputs: of the whole batch; if that raises, of each prompt by itself."""
        logs = {"log_extra": self.log_extra} if "log_extra" in self._inputs else {}
        yield range(self.size), {**self._inputs, **logs}
        prompts = self._inputs["prompts"]
        groups = [[*rows] for _, rows in groupby(range(self.size), key=prompts.__getitem__)]
        if not self._raised or getattr(self._func, "is_packaged", False) or len(groups) == 1:
            return
        self.unscored.clear()
        silent = {name: _ignore for name in ("log_extra", "log_metric") if name in self._inputs}
        for rows in groups:
            inputs = only_rows(rows, self.size, {**self._inputs, **silent})
            yield range(rows[0], rows[-1] + 1), inputs

    def take(self, rows: range, values: Any) -> None:
        """Take what the function returned for some rows."""
        for row, number in zip(rows, checked(self.name, values, len(rows)), strict=True):
            if isinstance(number, RookWorldError):
                self._note(number, range(row, row + 1))
            else:
                self.rewards[row] = number

    @contextmanager
    def asked(self, rows: range) -> Iterator[None]:
        """Note the rows of a piece if the block raises."""
        try:
            with placed_errors(self.name):
                yield
        except RookWorldError as error:
            self._raised = True
            self._note(error, rows)

    def _note(self, error: RookWorldError, rows: range) -> None:
        self.error = self.error or error
        tasks = getattr(self._func, "tasks", None)  # it has no reward for other tasks' rows anyway
        prompts = self._inputs["prompts"]
        self.unscored.update(
            row for row in rows if tasks is None or task_of(message_text(prompts[row])) in tasks
        )


def _ignore(name: str, value: Any) -> None:
    """In place of TRL's functions that log: the first call has done it."""


# --------------------------------------------------------------------------------------------------
# Calls of a user's reward
# --------------------------------------------------------------------------------------------------
@contextmanager
def placed_errors(name: str) -> Iterator[None]:
    """What a reward raises, as one message with its name, file and line.

    Of this package's errors only those about a text, as the others say what is wrong themselves.
    """
    try:
        yield
    except Exception as error:
        about_text = isinstance(error, NotationError | IllegalPositionError)
        if isinstance(error, RookWorldError) and not about_text:
            raise
        from ..common.own import place_of

        raise RookWorldError(f"the reward {name} raised {place_of(error)}") from error


def only_rows(rows: Sequence[int], size: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What TRL passes for `size` completions, for some of them."""
    if len(rows) == size:
        return dict(inputs)
    chosen = {
        key: [value[row] for row in rows]
        if isinstance(value, list) and len(value) == size
        else value
        for key, value in inputs.items()
    }
    if (log := inputs.get("log_extra")) is not None:

        def log_extra(column: str, values: Sequence[Any]) -> None:
            by_row = dict(zip(rows, values, strict=True))
            log(column, [by_row.get(row) for row in range(size)])

        chosen["log_extra"] = log_extra
    return chosen


def listed(name: str, values: Any, size: int) -> Sequence[Any]:
    """What a reward returned for `size` completions, as a list of that length.

    Raises:
        RookWorldError: It is not a list, array or tensor, or it has another length.
    """
    values = values.tolist() if hasattr(values, "tolist") else values  # NumPy, PyTorch
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != size:
        said = f"{len(values)} rewards" if isinstance(values, Sequence) else "no list"
        raise RookWorldError(
            f"the reward {name} returned {said} for {size} completions; return one number or None for "
            "each"
        )
    return values


def checked(name: str, values: Any, size: int) -> list[float | RookWorldError | None]:
    """What a reward returned: for each row a number, None, or what is wrong with the value.

    Raises:
        RookWorldError: See `listed`.
    """
    return [
        RookWorldError(f"the reward {name} returned {value!r}; return finite numbers or None")
        if value is not None and not _is_finite(value)
        else value
        if value is None
        else float(value)
        for value in listed(name, values, size)
    ]


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number; numbers of NumPy and PyTorch are, texts are not."""
    try:
        return not isinstance(value, str | bytes) and math.isfinite(value)
    except Exception:  # what a user's function returns may raise anything, as a vector does
        return False
