"""Models under test by name: packaged, a folder, a Hub id, or `random`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import chess
from accelerate import PartialState

from ..common.errors import RookWorldError
from ..common.settings import Checked, each, setting
from ..inference.lookahead import look_ahead
from ..models import loading
from ..models.choices import text_logps
from ..models.decoding import ANSWER_TOKENS, GREEDY, PLAIN, ROOKWORLD, Decoding, complete, shared
from ..tasks import rules
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, task_of
from .registry import RANDOM_MOVER, contestant_faults
from .suite import Answerer


@dataclass
class ModelArguments(Checked):
    """Which models, and how they choose their tokens."""

    model_name_or_path: list[str] = setting(
        [loading.PACKAGED_MODEL],
        "Models to evaluate: packaged names, folders or Hub ids; random plays random legal "
        "moves. The others are compared with the first.",
        check=each(contestant_faults),
    )
    model_revision: str = setting("main", "Branch, tag or commit of models on the Hub.")
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32",
        "Precision of weights and forward passes. With float32, answers do not depend on the batch's "
        "size.",
    )
    decoding: Literal["greedy", "sampled"] = setting(
        "greedy",
        "How tokens are chosen: greedy, or sampled at temperature 0.6 and top-k 5, as in RookWorld's "
        "own scripts.",
    )
    lookahead: bool = setting(
        False,
        "Whether models value each candidate move by their own answers about the position after it. "
        "They play better and take several times as long. An `opponent` never looks ahead.",
    )
    batch_size: int = setting(64, "Prompts that a process decodes at once.", least=1)
    max_new_tokens: int = setting(ANSWER_TOKENS, "Largest number of tokens in an answer.", least=1)


class LanguageModel(Answerer):
    """A causal language model; the processes of a distributed run share the prompts.

    The same prompt gets the same answer in any batch and on any process, greedy or sampled.

    Args:
        name: As results name it; for a policy in training, the run's name.
        complete: Decodes one completion for each prompt on this process, such as
            `models.decoding.complete`; it takes `progress`, and for `samples` also `decoding`.
        decoding: How `complete` chooses tokens; if greedily, `samples` are drawn at temperature 1.
        choice_logps: Log-probs of choices after each text, such as `models.choices.text_logps`; without
            it, all choices count as equally likely.
    """

    def __init__(
        self,
        name: str,
        complete: Callable[..., list[str]],
        decoding: Decoding = GREEDY,
        choice_logps: Callable[..., list[list[float]]] | None = None,
    ) -> None:
        self.name = name
        self.decoding = decoding.as_dict()
        self.complete = complete
        self._choice_logps = choice_logps
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

    def log_probs(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """See `Answerer`."""
        if self._choice_logps is None or not prompts:
            return super().log_probs(prompts, choices)
        pairs = [*zip(prompts, choices, strict=True)]
        return shared(pairs, self._choice_logps, f"{self.name}, legal moves")

    def _answered(
        self, prompts: Sequence[str], answer: Callable[..., list[Any]], title: str, each: int = 1
    ) -> list[Any]:
        unique = {str(prompt): prompt for prompt in prompts}  # a trainer's may be chats
        found = shared(list(unique.values()), answer, title, each)
        answers = dict(zip(unique, found, strict=True))
        return [answers[str(prompt)] for prompt in prompts]


class Lookahead(Answerer):
    """A model that looks a move ahead before it answers a policy prompt, see `inference.lookahead`.

    Other answers, samples and log-probs are the model's own.

    Args:
        model: Answers policy and environment prompts.
    """

    def __init__(self, model: Answerer) -> None:
        self.model = model
        self.name = model.name
        self.decoding = {**model.decoding, "lookahead": True}
        self.sampling = model.sampling or model.decoding

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`; of a policy prompt's position, no moves before it are known.

        A prompt without a legal position gets the model's answer.
        """
        found = self.model.answers(prompts)
        boards = {
            place: board
            for place, prompt in enumerate(prompts)
            if (board := _asked(prompt)) is not None
        }
        ahead = look_ahead(
            [*boards.values()], [found[place] for place in boards], self.model.answers
        )
        for place, answer in zip(boards, ahead, strict=True):
            found[place] = answer
        return found

    def policy_answers(self, boards: Sequence[chess.Board]) -> list[str]:
        """See `Answerer`; the model is told the moves on the boards."""
        return look_ahead(boards, self.model.policy_answers(boards), self.model.answers)

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """See `Answerer`."""
        return self.model.samples(prompts, count, decoding)

    def log_probs(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """See `Answerer`."""
        return self.model.log_probs(prompts, choices)


def _asked(prompt: str) -> chess.Board | None:
    """The position of a policy prompt; None for another prompt, or if there is no such position."""
    if task_of(prompt) != POLICY.name:
        return None
    try:
        return rules.board_of(POLICY.position(prompt).fen)
    except RookWorldError:
        return None


class RandomMover(Answerer):
    """Answers by chance: random legal moves, all of them evaluated as 0, see `Task.guess`.

    The prompt alone decides an answer.
    """

    name = RANDOM_MOVER

    def __init__(self) -> None:
        self.decoding = {"name": "random"}

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        return [_guess(prompt, "0") for prompt in prompts]

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """See `Answerer`."""
        return [[_guess(prompt, f"0 {turn}") for turn in range(count)] for prompt in prompts]


def _guess(prompt: str, seed: str) -> str:
    return TASKS[task_of(prompt)].guess(prompt, random.Random(f"{seed} {prompt}"))


def open_model(name: str, args: ModelArguments) -> Answerer:
    """Load a model under test.

    Args:
        name: One of `args.model_name_or_path`.
        args: How it answers.

    Raises:
        RookWorldError: The model was not found, or could not be loaded.
    """
    if name == RANDOM_MOVER:
        return RandomMover()
    state = PartialState()
    with state.local_main_process_first():  # the others find it in the cache
        model = loading.load_model(name, revision=args.model_revision, dtype=args.dtype)
        tokenizer = loading.load_tokenizer(name, revision=args.model_revision)
    decoding = ROOKWORLD if args.decoding == "sampled" else GREEDY
    model = model.to(state.device).eval()
    decode = partial(
        complete,
        model,
        tokenizer,
        decoding=decoding,
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens,
    )
    score = partial(text_logps, model, tokenizer, batch_size=args.batch_size)
    opened = LanguageModel(name, decode, decoding, score)
    return Lookahead(opened) if args.lookahead else opened
