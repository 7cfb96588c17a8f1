"""Models under test by name: packaged, a folder, a Hub id, `oracle` (always right) or `random`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from accelerate import PartialState

from ..common.errors import RookWorldError
from ..common.progress import Progress
from ..common.settings import Checked, each, setting
from ..engine.arguments import EngineArguments
from ..engine.labeller import Labeller
from ..models import loading
from ..models.decoding import ANSWER_TOKENS, GREEDY, ROOKWORLD, Decoding, complete
from ..tasks.registry import TASKS, task_of
from ..tasks.task import Task
from ..tasks.types import Values
from .answerers import Answerer, LanguageModel
from .registry import ORACLE, RANDOM_MOVER, contestant_faults


@dataclass
class ModelArguments(Checked):
    """Which models, and how they choose their tokens."""

    model_name_or_path: list[str] = setting(
        [loading.PACKAGED_MODEL],
        "Models to evaluate: packaged names, folders or Hub ids; oracle is always right, random plays "
        "random legal moves. The others are compared with the first.",
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
    batch_size: int = setting(64, "Prompts that a process decodes at once.", least=1)
    max_new_tokens: int = setting(ANSWER_TOKENS, "Largest number of tokens in an answer.", least=1)


class OracleValues:
    """Values of positions: the suites' own, else the engine's.

    The engine is started when it is first needed, and ended with the process.

    Args:
        known: By FEN.
        engine_args: The engine for other positions.
    """

    def __init__(self, known: Mapping[str, Values], engine_args: EngineArguments) -> None:
        self._known = dict(known)
        self._engine_args = engine_args
        self._labeller: Labeller | None = None

    def __call__(self, fens: Sequence[str]) -> list[Values | None]:
        """Values of all legal moves of each position; None if the engine gave up.

        Raises:
            EngineError: An engine is needed, and none was found.
        """
        missing = [fen for fen in dict.fromkeys(fens) if fen not in self._known]
        if missing:
            self._labeller = self._labeller or Labeller(self._engine_args)
            with Progress("values for the oracle", len(missing), "positions") as progress:
                answers = self._labeller.values(missing, progress.update)
            for fen, values in zip(missing, answers, strict=True):
                if values is not None:
                    self._known[fen] = values.by_move()
        return [self._known.get(fen) for fen in fens]


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


def open_model(
    name: str,
    args: ModelArguments,
    values: Callable[[Sequence[str]], list[Values | None]],
) -> Answerer:
    """Load a model under test.

    Args:
        name: One of `args.model_name_or_path`.
        args: How it answers.
        values: For the oracle.

    Raises:
        RookWorldError: The model was not found, or could not be loaded.
    """
    if name == ORACLE:
        return Oracle(values)
    if name == RANDOM_MOVER:
        return RandomMover()
    state = PartialState()
    with state.local_main_process_first():  # the others find it in the cache
        model = loading.load_model(
            name, revision=args.model_revision, dtype=getattr(torch, args.dtype)
        )
        tokenizer = loading.load_tokenizer(name, revision=args.model_revision)
    decoding = ROOKWORLD if args.decoding == "sampled" else GREEDY
    decode = partial(
        complete,
        model.to(state.device).eval(),
        tokenizer,
        decoding=decoding,
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens,
    )
    return LanguageModel(name, decode, decoding)
