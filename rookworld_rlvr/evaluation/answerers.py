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
from ..models.decoding import GREEDY, PLAIN, Decoding
from ..tasks.registry import TASKS, task_of
from ..tasks.scoring import Values
from ..tasks.task import Task

ORACLE, RANDOM_MOVER = "oracle", "random"

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class Answerer(ABC):
    """A model under test.

    Attributes:
        name: As results name it.
        decoding: How it chooses its tokens, for the record.
        sampling: How it chooses those of `samples`, for the record.
        asked_by: The suite that asks, for a progress bar.
    """

    asked_by: str = ""
    name: str
    decoding: Mapping[str, Any]

    @property
    def sampling(self) -> Mapping[str, Any]:
        """See the class."""
        return self.decoding

    @abstractmethod
    def answers(self, prompts: Sequence[str]) -> list[str]:
        """One completion for each prompt, in order; the same on every process."""

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """`count` completions for each prompt; all the same unless the answerer draws them.

        Args:
            prompts: `N` texts.
            count: Completions of each.
            decoding: How a language model draws them; None draws them by its `sampling`.
        """
        return [[answer] * count for answer in self.answers(prompts)]


class LanguageModel(Answerer):
    """A causal language model; the processes of a distributed run share the prompts.

    The same prompt gets the same answer in any batch and on any process, greedy or sampled.

    Args:
        name: As results name it; for a policy in training, the run's name.
        complete: Decodes one completion for each prompt on this process, such as
            `models.decoding.complete`; it takes `progress`, and for `samples` also `decoding`.
        decoding: How `complete` chooses tokens.
        sampling: How the tokens of `samples` are chosen.
    """

    def __init__(
        self,
        name: str,
        complete: Callable[..., list[str]],
        decoding: Decoding = GREEDY,
        sampling: Decoding = PLAIN,
    ) -> None:
        self.name = name
        self.decoding = decoding.as_dict()
        self.complete = complete
        self._sampling = sampling

    @property
    def sampling(self) -> Mapping[str, Any]:
        """See `Answerer`."""
        return self._sampling.as_dict()

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`; a prompt that appears several times is decoded once."""
        unique = list(dict.fromkeys(prompts))
        answers = dict(zip(unique, shared(unique, self.complete, self._title), strict=True))
        return [answers[prompt] for prompt in prompts]

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """See `Answerer`."""

        def draw(mine: Sequence[str], progress: Callable[[int], object]) -> list[list[str]]:
            texts = self.complete(
                [prompt for prompt in mine for _ in range(count)],
                decoding=decoding or self._sampling,
                progress=progress,
            )
            return [texts[at : at + count] for at in range(0, len(texts), count)]

        unique = list(dict.fromkeys(prompts))
        title = f"{self._title}, sampled"
        drawn = dict(zip(unique, shared(unique, draw, title, each=count), strict=True))
        return [drawn[prompt] for prompt in prompts]

    @property
    def _title(self) -> str:
        return f"{self.name}: {self.asked_by}" if self.asked_by else self.name


def shared(
    items: Sequence[Asked], answer: Callable[..., list[Found]], title: str, each: int = 1
) -> list[Found]:
    """Let every process answer a share of the items, such as prompts, and return all answers on each.

    All shares have the same size, so some items may be answered twice. Under FSDP all processes take
    part in each forward, and a process with one batch less would leave the others waiting.

    Args:
        items: `N` items, the same on every process.
        answer: Answers some of them, and calls `progress` with the number of completions of each batch.
        title: Of a progress bar.
        each: Completions per item.

    Returns:
        `N` answers.
    """
    state = PartialState()
    rank, world = state.process_index, state.num_processes
    share = [(rank + turn * world) % len(items) for turn in range(math.ceil(len(items) / world))]
    unit = "prompts" if each == 1 else "completions"
    with Progress(title, len(share) * each, unit) as progress:
        answers = answer([items[index] for index in share], progress=progress.update)
    if world == 1:
        return answers
    found = dict(gather_object(list(zip(share, answers, strict=True))))
    return [found[index] for index in range(len(items))]


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
        return [_guess(prompt, f"{self._seed}") for prompt in prompts]

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """See `Answerer`."""
        turns = [f"{self._seed} {turn}" for turn in range(count)]
        return [[_guess(prompt, turn) for turn in turns] for prompt in prompts]


def _guess(prompt: str, seed: str) -> str:
    return TASKS[task_of(prompt)].guess(prompt, random.Random(f"{seed} {prompt}"))


class Turns(Answerer):
    """Answers with each prompt's sample of the current turn; all samples are drawn at the first turn.

    Args:
        model: Who is asked.
        count: Samples of each prompt.

    Attributes:
        turn: From 0 to `count` - 1.
    """

    def __init__(self, model: Answerer, count: int) -> None:
        self.name = model.name
        self.decoding = model.sampling
        self.turn = 0
        self._model, self._count = model, count
        self._drawn: dict[str, list[str]] = {}

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._drawn]
        if new:
            samples = self._model.samples(new, self._count)
            self._drawn |= dict(zip(new, samples, strict=True))
        return [self._drawn[prompt][self.turn] for prompt in prompts]
