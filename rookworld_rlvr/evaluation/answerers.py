"""Who answers prompts: a language model, an oracle that is always right, a random legal mover."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object

from ..common.errors import RookWorldError
from ..common.progress import Progress
from ..models.decoding import GREEDY, Decoding
from ..tasks.registry import TASKS, task_of
from ..tasks.scoring import Values
from ..tasks.task import Task

T = TypeVar("T")


ORACLE, RANDOM_MOVER = "oracle", "random"


class Answerer(ABC):
    """A model under test.

    Attributes:
        name: As results name it.
        decoding: How it chooses its tokens, for the record.
        asked_by: The suite that asks, for a progress bar.
    """

    asked_by: str = ""
    name: str
    decoding: Mapping[str, Any]

    @abstractmethod
    def answers(self, prompts: Sequence[str]) -> list[str]:
        """One completion for each prompt, in order; the same on every process."""


class LanguageModel(Answerer):
    """A causal language model; the processes of a distributed run share the prompts.

    The same prompt gets the same answer in any batch and on any process, greedy or sampled.

    Args:
        name: As results name it; for a policy in training, the run's name.
        complete: Decodes one completion for each prompt on this process, such as
            `models.decoding.complete`; it takes `progress`.
        decoding: How `complete` chooses tokens.
    """

    def __init__(
        self,
        name: str,
        complete: Callable[..., list[str]],
        decoding: Decoding = GREEDY,
    ) -> None:
        self.name = name
        self.decoding = decoding.as_dict()
        self.complete = complete

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`; a prompt that appears several times is decoded once."""
        unique = list(dict.fromkeys(prompts))
        title = f"{self.name}: {self.asked_by}" if self.asked_by else self.name
        answers = dict(zip(unique, shared(unique, self.complete, title), strict=True))
        return [answers[prompt] for prompt in prompts]


def shared(prompts: Sequence[str], complete: Callable[..., list[T]], title: str) -> list[T]:
    """Let every process complete a share of the prompts, and return all completions on each.

    All shares have the same size, so some prompts may be completed twice. Under FSDP all processes take
    part in each forward, and a process with one batch less would leave the others waiting.

    Args:
        prompts: `N` texts, the same on every process.
        complete: Completes some of them, and calls `progress` with the size of each batch.
        title: Of a progress bar.

    Returns:
        `N` completions.
    """
    state = PartialState()
    rank, world = state.process_index, state.num_processes
    share = [
        (rank + turn * world) % len(prompts) for turn in range(math.ceil(len(prompts) / world))
    ]
    with Progress(title, len(share), "prompts") as progress:
        completions = complete([prompts[index] for index in share], progress=progress.update)
    if world == 1:
        return completions
    found = dict(gather_object(list(zip(share, completions, strict=True))))
    return [found[index] for index in range(len(prompts))]


class Oracle(Answerer):
    """Always right: python-chess for environment and fill-in, the engine's values for the policy.

    Args:
        values: Gives the values of all legal moves of each position; None if they are not known.
    """

    name = ORACLE

    def __init__(self, values: Callable[[Sequence[str]], list[Values | None]]) -> None:
        self.decoding = {"name": "none"}
        self._values = values

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`.

        Raises:
            RookWorldError: A position's values are not known, or nothing fits a masked record.
        """
        tasks = [TASKS[task_of(prompt)] for prompt in prompts]
        fens = [
            task.position(prompt).fen
            for task, prompt in zip(tasks, prompts, strict=True)
            if task.needs_values
        ]
        values = dict(zip(fens, self._values(fens), strict=True)) if fens else {}
        return [_truth(*pair, values) for pair in zip(tasks, prompts, strict=True)]


def _truth(task: Task, prompt: str, known: Mapping[str, Values | None]) -> str:
    fen = task.position(prompt).fen if task.needs_values else None
    truth = task.truth(prompt, None if fen is None else known[fen])
    if truth is None:
        what = f"values of the moves in {fen!r}; install an engine, or" if fen else "answer;"
        raise RookWorldError(f"model_name_or_path: the oracle has no {what} leave the oracle out")
    return truth


class RandomMover(Answerer):
    """Answers by chance: random legal moves, all of them evaluated as 0, see `Task.guess`.

    Args:
        seed: Seed and prompt alone decide an answer.
    """

    name = RANDOM_MOVER

    def __init__(self, seed: int = 0) -> None:
        self.decoding = {"name": "random", "seed": seed}
        self._seed = seed

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        return [
            TASKS[task_of(prompt)].guess(prompt, random.Random(f"{self._seed} {prompt}"))
            for prompt in prompts
        ]
