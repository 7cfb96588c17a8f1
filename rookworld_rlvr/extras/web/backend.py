"""What the page works with: models, values of moves, and rewards of answers that are typed in.

Models are loaded when they are first asked. Rewards are given as a training step gives them to a group.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import yaml

from ...common.errors import ConfigurationError, EngineError, RookWorldError
from ...common.files import is_own
from ...engine import EngineArguments
from ...engine.labeller import Labeller
from ...inference.arguments import start
from ...inference.model import RookWorld
from ...rewards.registry import check_reward_specs, open_rewards, specs_of
from ...tasks.registry import TASKS, task_of
from ...tasks.types import Values

PATIENCE_S = 10.0  # a reward of the user's own may take

Numbers = dict[str, list[float | None]]


class Backend:
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
        from ...models.decoding import Decoding  # with torch

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
                from ...evaluation.suites.policy import heldout_values

                return heldout_values().get(fen)
            (found,) = self.engine.values([fen])
            return found

    @cached_property
    def engine(self) -> Labeller | None:
        """Stockfish; None if it is not installed."""
        with suppress(EngineError):
            return Labeller(EngineArguments())
        return None


# --------------------------------------------------------------------------------------------------
# Rewards
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Trial:
    """A group of answers with its rewards.

    Args:
        rewards: By name, a number for each answer, or None if the reward does not apply.
        weights: By name.
        totals: Of each answer, the weighted sum; nan if no reward applies.
        advantages: Of each answer.
    """

    rewards: Numbers
    weights: Mapping[str, float]
    totals: Sequence[float]
    advantages: Sequence[float]


def row_of(prompt: str, values: Values | None) -> dict[str, Any]:
    """A prompt as a row with the columns that rewards get.

    Raises:
        RookWorldError: The prompt cannot be read.
    """
    task = TASKS[task_of(prompt)]
    read = task.read_prompt(prompt)
    column = [{"move": move, "cp": cp} for move, cp in (values or {}).items()]
    return task.row(read, "", task.position(read), column or None)


def read_block(text: str, is_private: bool = True) -> list[dict[str, Any]]:
    """The rewards of a recipe's block ``rewards: [...]``.

    Args:
        text: In YAML.
        is_private: Whether nobody else can write the block, so that it may name files to run.

    Raises:
        ConfigurationError: It is not YAML or not a list, or names a file outside of this folder.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise ConfigurationError([f"rewards: not valid YAML ({said})"]) from error
    specs = specs_of(content.get("rewards") if isinstance(content, dict) else content)
    if not isinstance(specs, list):
        raise ConfigurationError(check_reward_specs(specs))
    for spec in specs:
        source = str(spec.get("name")).rpartition(":")[0] if isinstance(spec, dict) else ""
        is_inside = Path(source).resolve().is_relative_to(Path.cwd()) and source.endswith(".py")
        fault = f"{source} is not a .py file in {Path.cwd()}, the folder of this page"
        if not is_private:
            fault = "a page that others can reach runs no files; start one on your machine"
        if source and not (is_private and is_inside):
            raise ConfigurationError([f"rewards: {fault}"])
    return specs


def try_rewards(
    row: Mapping[str, Any], answers: Sequence[str], specs: Sequence[Any], scale: str = "group"
) -> Trial:
    """Score answers to one prompt as a training step scores its samples.

    Args:
        row: The prompt's row, see `row_of`.
        answers: Of one group.
        specs: The rewards, see `open_rewards`.
        scale: TRL's `scale_rewards`.

    Raises:
        RookWorldError: A reward does not exist, failed, or has not answered in `PATIENCE_S`.
    """
    import torch  # with what follows, it takes seconds

    from ...training.advantages import scaled, weighted

    is_foreign = any(isinstance(spec, dict) and is_own(spec.get("name")) for spec in specs)
    rewards, weights = (_apart if is_foreign else _scored)([row] * len(answers), answers, specs)
    table = torch.tensor(
        [[torch.nan if x is None else x for x in given] for given in rewards.values()]
    ).T.double()  # (N, F), summed as in training
    totals = weighted(table, torch.tensor([*weights.values()])).view(1, -1)  # as one group
    advantages = scaled(totals - totals.nanmean(), totals, scale)
    return Trial(rewards, weights, totals.flatten().tolist(), advantages.flatten().tolist())


def _scored(
    rows: Sequence[Mapping[str, Any]], answers: Sequence[str], specs: Any
) -> tuple[Numbers, dict[str, float]]:
    from ...rewards.trial import rewards_of  # with torch

    funcs = open_rewards(specs)
    with asyncio.Runner() as runner:
        rewards = rewards_of(rows, answers, funcs, runner)
    weights = (float(spec.get("weight", 1.0)) for spec in specs)
    return rewards, dict(zip(rewards, weights, strict=True))


def _apart(*asked: Any) -> tuple[Numbers, dict[str, float]]:
    """The same in a process of its own: a user's file may raise anything, or never end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "rookworld_rlvr.rewards.trial"])
    here, there = context.Pipe()
    child = context.Process(target=_send, args=(there, *asked), daemon=True)
    child.start()
    there.close()
    try:
        here.recv()  # it has imported what it needs
        if not here.poll(PATIENCE_S):
            raise RookWorldError(f"a reward has not answered within {PATIENCE_S:.0f} s")
        result = here.recv()
    except EOFError:
        raise RookWorldError("a reward has ended its process") from None
    finally:
        child.kill()
        child.join()
    if isinstance(result, str):
        raise RookWorldError(result)
    return result  # type: ignore[no-any-return]


def _send(there: Any, *asked: Any) -> None:
    there.send("ready")
    try:
        there.send(_scored(*asked))
    except ConfigurationError as error:
        there.send("\n".join(error.faults))
    except RookWorldError as error:
        there.send(str(error))
