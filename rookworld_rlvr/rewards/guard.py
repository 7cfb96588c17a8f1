"""What a reward that fails costs: its rows, and beyond a limit the run, on all processes together."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_callable_name, is_async_callable

from ..common.errors import RookWorldError
from ..common.own import place_of
from ..common.settings import setting
from ..tasks.registry import task_of
from ..tasks.text import message_text
from .own import checked, only_rows

logger = logging.getLogger(__name__)


@dataclass
class RewardFaultArguments:
    """What a reward that fails may cost."""

    reward_timeout: float | None = setting(
        300.0,
        "Seconds that a call of a reward of your own may take; after that, its rows count as unscored. "
        "None sets no limit. Packaged rewards have engine_timeout instead.",
        above=0,
    )
    unscored_limit: float = setting(
        0.1,
        "The share of a batch's completions that may be unscored because a reward failed: it raised, "
        "took too long or returned no number. Above it, the run stops.",
        least=0,
        most=1,
    )


class RewardGuard:
    """Turns what goes wrong in reward functions into rows without a reward.

    A row that one reward fails on gets no reward at all: a sum without it would be another score. If a
    call raises, the reward is asked again for the completions of each prompt by themselves, so that one
    of them does not cost the batch. A call that took too long is not repeated. Nor is one of our own
    rewards, which `limits_itself`: an engine has its own time-outs, and judges call each other.

    Args:
        args: The keys.

    Attributes:
        own: The guarded functions that are not rewards of this package, by TRL's name of each.
        faults: The first failure of each call that failed, on this process.
    """

    def __init__(self, args: RewardFaultArguments) -> None:
        self.own: dict[str, Any] = {}
        self.faults: list[str] = []
        self._args = args
        self._calls: list[_Call] = []
        self._columns: dict[str, list[str]] = {}  # what each reward has logged by completion
        self._shown: set[str] = set()  # rewards whose failure was shown

    def around(self, reward_funcs: Any) -> Any:
        """Reward functions, guarded; models and names are left as they are."""
        if reward_funcs is None:
            return None
        funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        names: list[str] = []
        return [self._guarded(func, names) for func in funcs]

    def _guarded(self, func: Any, names: list[str]) -> Any:
        """A guarded function under TRL's name of it, numbered if it is among `names` already."""
        if isinstance(func, torch.nn.Module | str):
            return func
        name = get_callable_name(func)
        names.append(name)
        if names.count(name) > 1:  # two partials of one function
            name = f"{name}_{names.count(name)}"
        seconds = None if _limits_itself(func) else self._args.reward_timeout

        def guarded(**inputs: Any) -> list[float | None]:  # TRL gives keywords only
            call = _Call(name, func, inputs)
            for rows, given in call.pieces():
                with call.asked(rows), time_limit(seconds):
                    call.take(rows, func(**given))
            return self._kept(call)

        async def guarded_async(**inputs: Any) -> list[float | None]:
            call = _Call(name, func, inputs)
            for rows, given in call.pieces():
                with call.asked(rows):
                    call.take(rows, await within(seconds, func(**given)))
            return self._kept(call)

        made = functools.wraps(func)(guarded_async if is_async_callable(func) else guarded)
        made.__name__ = name
        if not _limits_itself(func):
            self.own[name] = made
        return made

    def _kept(self, call: _Call) -> list[float | None]:
        """The rewards of a call, after what it logged; its first failure is shown."""
        known = self._columns.setdefault(call.name, [])
        known.extend(column for column in call.columns if column not in known)
        call.log(known)
        self._calls.append(call)
        self.faults += [call.fault] if call.fault else []
        if call.error is not None and call.name not in self._shown:
            self._shown.add(call.name)
            trace = None if isinstance(call.error, RookWorldError) else call.error
            text = "%s; rows that it gives no number are unscored (shown once)"
            logger.warning(text, call.fault, exc_info=trace)
        return call.rewards

    def settle(
        self, rewards: torch.Tensor, record: Callable[[Mapping[str, float]], None]
    ) -> torch.Tensor:
        """Rewards ``(N, F)`` of all processes' completions, all nan in a row that a reward failed on.

        Args:
            rewards: Rewards by function; nan if there is none.
            record: Takes the metrics.

        Raises:
            RookWorldError: On all processes, if more rows than `unscored_limit` are unscored.
        """
        lost = self.failures(len(rewards))
        unscored = sorted(set().union(*lost.values()))
        record(
            {f"rewards/{name}/unscored": len(rows) / len(rewards) for name, rows in lost.items()}
        )
        record({"rewards/unscored": len(unscored) / len(rewards)})
        left = rewards.clone()
        left[unscored] = torch.nan
        return left

    def failures(self, size: int) -> dict[str, set[int]]:
        """The rows that each reward has failed on since the last call of this method.

        Args:
            size: The number of rows on all processes together, as many on each.

        Raises:
            RookWorldError: On all processes, if more of them than `unscored_limit` are unscored.
        """
        here, asked = [], Counter[str]()  # a reward may be asked about the rows in several calls
        for call in self._calls:
            rows = [asked[call.name] + row for row in sorted(call.unscored)]
            here.append((call.name, rows, call.fault))
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
        if unscored / size > self._args.unscored_limit:
            raise RookWorldError(
                f"a reward failed: {faults[0]}; {unscored} of {size} completions are unscored, more "
                f"than unscored_limit: {self._args.unscored_limit:g} of the batch; mend the reward, or "
                "give a higher limit"
            )
        return lost


# --------------------------------------------------------------------------------------------------
# A call
# --------------------------------------------------------------------------------------------------
class RewardTimeoutError(RookWorldError):
    """A reward took longer than `reward_timeout`; the message goes on after the reward's name."""


class _Call:
    """What TRL's call of a reward comes to, in one call of the function or, if that raises, in several.

    Attributes:
        rewards: A number or None for each row.
        unscored: The rows that the reward failed on.
        error: The first failure.
        columns: What the reward logged by completion.
    """

    def __init__(self, name: str, func: Any, inputs: Mapping[str, Any]) -> None:
        self.name = name
        self.error: Exception | None = None
        self._raised: Exception | None = None  # of the latest piece
        self._func = func
        self._inputs = inputs
        self.size = len(inputs["prompts"])
        self._clear()

    def _clear(self) -> None:
        self.rewards: list[float | None] = [None] * self.size
        self.unscored: set[int] = set()
        self.columns: dict[str, list[Any]] = {}
        self._metrics: list[tuple[str, float]] = []

    @property
    def fault(self) -> str:
        """The first failure in one line; empty if there is none."""
        if self.error is None:
            return ""
        if isinstance(self.error, RewardTimeoutError):
            return f"the reward {self.name} {self.error}"
        known = isinstance(self.error, RookWorldError)
        return str(self.error) if known else f"the reward {self.name} raised {place_of(self.error)}"

    def pieces(self) -> Iterator[tuple[slice, dict[str, Any]]]:
        """Rows and inputs: of the whole batch; if that raises, of each prompt by itself."""
        yield self._piece(slice(0, self.size))
        is_over = self._raised is None or isinstance(self._raised, RewardTimeoutError)
        if is_over or _limits_itself(self._func):
            return
        prompts = self._inputs["prompts"]
        groups = [list(rows) for _, rows in groupby(range(self.size), key=prompts.__getitem__)]
        if len(groups) > 1:
            self._clear()
            for rows in groups:
                yield self._piece(slice(rows[0], rows[-1] + 1))

    def _piece(self, rows: slice) -> tuple[slice, dict[str, Any]]:
        inputs = dict(self._inputs)
        if "log_extra" in inputs:
            inputs["log_extra"] = partial(self._log_extra, rows)
        if "log_metric" in inputs:
            inputs["log_metric"] = lambda name, value: self._metrics.append((name, value))
        return rows, only_rows(range(self.size)[rows], self.size, inputs)

    def _log_extra(self, rows: slice, column: str, values: Sequence[Any]) -> None:
        """Keep what a reward logs by completion, in the rows that it was asked for."""
        if len(values) != self.size:
            raise RookWorldError(
                f"the reward {self.name} logs {len(values)} values of {column!r} for "
                f"{self.size} completions; log one for each"
            )
        self.columns.setdefault(column, [None] * self.size)[rows] = values[rows]

    @contextmanager
    def asked(self, rows: slice) -> Iterator[None]:
        """Note the rows of a piece if the block raises."""
        self._raised = None
        try:
            yield
        except Exception as error:  # whatever a user's function raises
            self._raised = error
            self._fails(error, range(self.size)[rows])

    def take(self, rows: slice, values: Any) -> None:
        """Take what the function returned for some rows."""
        count = rows.stop - rows.start
        for row, number in enumerate(checked(self.name, values, count), rows.start):
            if isinstance(number, RookWorldError):
                self._fails(number, [row])
            else:
                self.rewards[row] = number

    def _fails(self, error: Exception, rows: Iterable[int]) -> None:
        self.error = self.error or error
        tasks = getattr(self._func, "tasks", None)  # it has no reward for other tasks' rows anyway
        prompts = self._inputs["prompts"]
        self.unscored.update(
            row for row in rows if tasks is None or task_of(message_text(prompts[row])) in tasks
        )

    def log(self, columns: Iterable[str]) -> None:
        """Hand TRL what was logged, with all of `columns`, so that they stay as long as the others."""
        for column in columns:
            self._inputs["log_extra"](column, self.columns.get(column, [None] * self.size))
        for name, value in self._metrics:
            self._inputs["log_metric"](name, value)


def _limits_itself(func: Any) -> bool:
    return getattr(func, "limits_itself", False)


class _StopError(BaseException):
    """Not an Exception, because a reward may catch all of those."""


async def within(seconds: float | None, work: Awaitable[Any]) -> Any:
    """The result of asynchronous work.

    Raises:
        RewardTimeoutError: It took longer than `seconds`; None sets no limit.
    """
    limit, found = asyncio.timeout(seconds), None
    try:
        async with limit:
            found = await work
    except TimeoutError:
        if not limit.expired():  # a time-out of its own, such as of a request
            raise
    if limit.expired():  # even if it caught what ended it
        raise RewardTimeoutError(f"took longer than {seconds:g} s (reward_timeout)")
    return found


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """End the block after some seconds, wherever it is; None sets no limit.

    Raises:
        RewardTimeoutError: It took longer, even if it caught what ended it. Also outside of the main
            thread, where Python can end nothing.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise RewardTimeoutError(
            "was not asked: reward_timeout works in the main thread only; set it to null"
        )
    places: list[str] = []

    def stop(number: int, frame: FrameType | None) -> None:
        name, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("?", 0)
        places.append(f"{Path(name).name}, line {line}")
        raise _StopError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the alarm may come just before it
    except (_StopError, Exception):  # a function may turn what ended it into an error of its own
        if not places:
            raise
    finally:
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
    if places:
        raise RewardTimeoutError(f"was still in {places[0]} after {seconds:g} s (reward_timeout)")
