"""Models under test by name: packaged, a folder, a Hub id, `oracle` or `random`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from accelerate import PartialState

from ..common.progress import Progress
from ..common.settings import Checked, setting
from ..engine.labeller import Labeller
from ..engine.pool import EngineArguments
from ..models import loading
from ..models.decoding import ANSWER_TOKENS, GREEDY, PLAIN, ROOKWORLD, Decoding, complete
from ..tasks.scoring import Values
from .answerers import ORACLE, RANDOM_MOVER, Answerer, LanguageModel, Oracle, RandomMover


def _model_faults(names: Sequence[str], where: str) -> list[str]:
    own = (ORACLE, RANDOM_MOVER)
    return [f for name in names if name not in own for f in loading.check_model_name(name, where)]


@dataclass
class ModelArguments(Checked):
    """Which models, and how they choose their tokens."""

    model_name_or_path: list[str] = setting(
        [loading.PACKAGED_MODEL],
        "Models to evaluate: packaged names, folders or Hub ids; oracle is always right, random plays "
        "random legal moves. The others are compared with the first.",
        once=True,
        check=_model_faults,
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
    decoding_seed: int = setting(
        0, "Seed of sampling; a sampled answer depends only on this seed and the prompt."
    )
    batch_size: int = setting(64, "Prompts that a process decodes at once.", least=1)
    max_new_tokens: int = setting(ANSWER_TOKENS, "Largest number of tokens in an answer.", least=1)

    def chosen_decoding(self) -> Decoding:
        """How tokens are chosen."""
        if self.decoding == "greedy":
            return GREEDY
        return replace(ROOKWORLD, seed=self.decoding_seed)

    def chosen_sampling(self) -> Decoding:
        """How tokens are chosen for pass@k."""
        decoding = self.chosen_decoding()
        return decoding if decoding.temperature else replace(PLAIN, seed=self.decoding_seed)


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
                found = self._labeller.values(missing, progress.update)
            for fen, values in zip(missing, found, strict=True):
                if values is not None:
                    self._known[fen] = values.by_move()
        return [self._known.get(fen) for fen in fens]


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
        return RandomMover(args.decoding_seed)
    state = PartialState()
    with state.local_main_process_first():  # the others find it in the cache
        model = loading.load_model(
            name, revision=args.model_revision, dtype=getattr(torch, args.dtype)
        )
        tokenizer = loading.load_tokenizer(name, revision=args.model_revision)
    decoding = args.chosen_decoding()
    decode = partial(
        complete,
        model.to(state.device).eval(),
        tokenizer,
        decoding=decoding,
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens,
    )
    return LanguageModel(name, decode, decoding, args.chosen_sampling())
