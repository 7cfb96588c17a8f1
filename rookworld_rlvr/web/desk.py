"""What the page works with: models, which are loaded when they are first asked, and values of moves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import RLock

from ..common.errors import EngineError, RookWorldError
from ..engine import EngineArguments
from ..engine.labeller import Labeller
from ..inference.arguments import start
from ..inference.model import RookWorld
from ..tasks.types import Values


class Desk:
    """Models and values.

    Args:
        models: Names of models.
        runs: The folder of runs, whose models are added.
        is_private: Whether the page is for this machine alone.
    """

    def __init__(self, models: Sequence[str], runs: Path, is_private: bool) -> None:
        self.folder = runs
        self.is_private = is_private
        self._names = models
        self._loaded: dict[str, RookWorld] = {}
        self._lock = RLock()  # one model is asked at a time, from several threads

    def runs(self) -> list[str]:
        """The runs of the folder, the latest first; those of a sweep and of rounds are below it."""
        found = {path.parent for path in self.folder.rglob("resolved_config.yaml")}
        latest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
        return [str(path) for path in latest]

    def models(self) -> list[str]:
        """Models to choose from."""
        of_runs = [name for name in self.runs() if (Path(name) / "config.json").is_file()]
        return list(dict.fromkeys([*self._names, *of_runs]))

    def warm_up(self) -> None:
        """Load the first model, and with it what takes seconds to import."""
        with suppress(RookWorldError), self._lock:  # whoever asks for it is told what is wrong
            self._model(self.models()[0])

    def complete(self, name: str, prompts: Sequence[str]) -> list[str]:
        """Greedy answers.

        Raises:
            RookWorldError: The model is not one of `models`, or could not be loaded.
        """
        with self._lock:
            return self._model(name).complete(prompts)

    def sample(self, name: str, prompt: str, count: int, temperature: float) -> list[str]:
        """Answers sampled as in training, others at each call; raises what `complete` raises."""
        from ..models.decoding import Decoding  # with torch

        drawn = Decoding("sampled", temperature=temperature, seed=random.getrandbits(31))
        with self._lock:
            return self._model(name).complete([prompt] * count, decoding=drawn)

    def pieces(self, name: str, text: str) -> list[str]:
        """The tokens of a text, as text."""
        with self._lock:
            tokenizer = self._model(name).tokenizer
            return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]

    def _model(self, name: str) -> RookWorld:
        if name not in self._loaded:
            if name not in self.models():
                raise RookWorldError(f"{name!r} is not one of the models of this page")
            self._loaded[name] = start(name)
        return self._loaded[name]

    # --------------------------------------------------------------------------------------------
    # Values
    # --------------------------------------------------------------------------------------------
    def values(self, fen: str) -> Values | None:
        """Centipawns of all legal moves: Stockfish's, or without it those of the packaged data."""
        with self._lock:
            if self.engine is None:
                from ..evaluation.suites.policy import heldout_values

                return heldout_values().get(fen)
            (found,) = self.engine.values([fen])
            return found

    @cached_property
    def engine(self) -> Labeller | None:
        """Stockfish; None if it is not installed."""
        with suppress(EngineError):
            return Labeller(EngineArguments())
        return None
