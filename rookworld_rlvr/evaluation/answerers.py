"""Who answers prompts: a language model, whose prompts the processes of a distributed run share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object

from ..common.progress import Progress
from ..models.decoding import GREEDY, PLAIN, Decoding

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Answerer(ABC):
    """A model under test.

    Attributes:
        name: As results name it.
        decoding: How it chooses its tokens, for the record.
        sampling: How it chooses those of `samples`, if otherwise.
    """

    name: str
    decoding: Mapping[str, Any]
    sampling: Mapping[str, Any] | None = None

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
        decoding: How `complete` chooses tokens; if greedily, `samples` are drawn at temperature 1.
    """

    def __init__(
        self, name: str, complete: Callable[..., list[str]], decoding: Decoding = GREEDY
    ) -> None:
        self.name = name
        self.decoding = decoding.as_dict()
        self.complete = complete
        self._sampling = decoding if decoding.temperature else PLAIN
        self.sampling = self._sampling.as_dict()

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`; a prompt that appears several times is decoded once."""
        return self._answered(prompts, self.complete, self.name)

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """See `Answerer`."""

        def draw(share: Sequence[str], progress: Callable[[int], object]) -> list[list[str]]:
            texts = self.complete(
                [prompt for prompt in share for _ in range(count)],
                decoding=decoding or self._sampling,
                progress=progress,
            )
            return [texts[at : at + count] for at in range(0, len(texts), count)]

        return self._answered(prompts, draw, f"{self.name}, sampled", each=count)

    def _answered(
        self, prompts: Sequence[str], answer: Callable[..., list[Answer]], title: str, each: int = 1
    ) -> list[Answer]:
        unique = list(dict.fromkeys(prompts))
        answers = dict(zip(unique, shared(unique, answer, title, each), strict=True))
        return [answers[prompt] for prompt in prompts]


def shared(
    items: Sequence[Asked], answer: Callable[..., list[Answer]], title: str, each: int = 1
) -> list[Answer]:
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
    by_index = dict(gather_object(list(zip(share, answers, strict=True))))
    return [by_index[index] for index in range(len(items))]
