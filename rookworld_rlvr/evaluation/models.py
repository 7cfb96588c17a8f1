"""Models under test by name: packaged, a folder, a Hub id, `oracle` or `random`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from accelerate import PartialState

from ..common.errors import ConfigurationError, close_matches
from ..engine.labeller import Labeller
from ..engine.pool import EngineArguments
from ..models import loading
from ..models.decoding import GREEDY, Decoding
from ..tasks.scoring import Values
from .answerers import (
    MAX_NEW_TOKENS,
    ORACLE,
    RANDOM_MOVER,
    Answerer,
    LanguageModel,
    Oracle,
    RandomMover,
)

DECODINGS = ("greedy", "sampled", "custom")


DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ModelArguments:
    """Which models, and how they choose their tokens.

    Args:
        model_name_or_path: Packaged names, folders or Hub ids; ``oracle`` is always right, ``random``
            moves legally at random. The first is what the others are compared with.
        model_revision: Branch, tag or commit of a Hub id.
        dtype: float32, bfloat16 or float16. Under float32 a batch of one and a batch of many give the
            same answers.
        decoding: ``greedy``; ``sampled``, T 0.6 and top-k 5 as RookWorld's own scripts have it; or
            ``custom``, by the three keys below.
        temperature: Of ``custom``.
        top_k: Of ``custom``; 0 for all tokens.
        top_p: Of ``custom``.
        decoding_seed: Says, with the prompt, what is drawn.
        batch_size: Prompts decoded at once by a process.
        max_new_tokens: Most tokens of an answer.
    """

    model_name_or_path: list[str] = field(default_factory=lambda: [loading.PACKAGED_MODEL])
    model_revision: str = "main"
    dtype: str = "float32"
    decoding: str = "greedy"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    decoding_seed: int = 0
    batch_size: int = 64
    max_new_tokens: int = MAX_NEW_TOKENS

    def __post_init__(self) -> None:
        faults = self._model_faults() + self._decoding_faults()
        faults += [
            f"{key}: {getattr(self, key)!r} is too small; give at least 1"
            for key in ("batch_size", "max_new_tokens")
            if getattr(self, key) < 1
        ]
        if self.dtype not in DTYPES:
            faults.append(f"dtype: {self.dtype!r} is none{close_matches(self.dtype, DTYPES)}")
        if faults:
            raise ConfigurationError(faults)

    def _model_faults(self) -> list[str]:
        names = self.model_name_or_path
        faults = [
            fault
            for name in names
            if name not in (ORACLE, RANDOM_MOVER)
            for fault in loading.check_model_name(name)
        ]
        faults += [
            f"model_name_or_path: {name!r} stands there {names.count(name)} times; give it once"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        return faults

    def _decoding_faults(self) -> list[str]:
        own = {key: getattr(self, key) for key in ("temperature", "top_k", "top_p")}
        given = [key for key, value in own.items() if value is not None]
        if self.decoding not in DECODINGS:
            return [f"decoding: {self.decoding!r} is none{close_matches(self.decoding, DECODINGS)}"]
        if self.decoding != "custom":
            return [f"{key}: needs decoding: custom; leave it out, or set that" for key in given]
        faults = []
        if self.temperature is None or self.temperature <= 0:
            faults.append(
                f"temperature: {self.temperature!r} is not above 0; decoding: greedy has 0"
            )
        if self.top_k is not None and self.top_k < 0:
            faults.append(f"top_k: {self.top_k!r} is below 0; 0 takes all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            faults.append(f"top_p: {self.top_p!r} is not in (0, 1]")
        return faults

    def chosen_decoding(self) -> Decoding:
        """How tokens are chosen."""
        if self.decoding == "greedy":
            return GREEDY
        if self.decoding == "sampled":
            return Decoding("sampled", temperature=0.6, top_k=5, seed=self.decoding_seed)
        return Decoding(
            "custom",
            self.temperature or 0.0,
            self.top_k or 0,
            self.top_p or 1.0,
            self.decoding_seed,
        )


class OracleValues:
    """Values of positions: those that the suites carry, else the engine's, which is started then and
    ended with the process.

    Args:
        known: By FEN.
        engine_args: Whom to ask for others.
    """

    def __init__(self, known: Mapping[str, Values], engine_args: EngineArguments) -> None:
        self._known = dict(known)
        self._engine_args = engine_args
        self._labeller: Labeller | None = None

    def __call__(self, fens: Sequence[str]) -> list[Values | None]:
        """Values of all legal moves of each position; None where the engine gave up.

        Raises:
            EngineError: The engine is needed, and there is none.
        """
        missing = [fen for fen in dict.fromkeys(fens) if fen not in self._known]
        if missing:
            self._labeller = self._labeller or Labeller(self._engine_args)
            for fen, values in zip(missing, self._labeller.values(missing), strict=True):
                if values is not None:
                    self._known[fen] = values.by_move()
        return [self._known.get(fen) for fen in fens]


def open_model(
    name: str,
    args: ModelArguments,
    values: Callable[[Sequence[str]], list[Values | None]],
    progress: Callable[[int], object] | None = None,
) -> Answerer:
    """Load a model under test.

    Args:
        name: One of `args.model_name_or_path`.
        args: How it answers.
        values: What the oracle knows.
        progress: See `LanguageModel`.

    Raises:
        RookWorldError: There is no such model, or it cannot be had.
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
    return LanguageModel(
        name,
        model.to(state.device).eval(),
        tokenizer,
        decoding=args.chosen_decoding(),
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens,
        progress=progress,
    )
