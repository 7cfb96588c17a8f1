"""What a recipe's rewards give for answers that are typed in: the group as a training step has it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError, RookWorldError
from ..common.files import is_own
from ..rewards.registry import check_reward_specs, open_rewards, specs_of
from ..tasks.registry import TASKS, task_of
from ..tasks.types import Values

PATIENCE_S = 10.0  # a reward of the user's own may take

Numbers = dict[str, list[float | None]]


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

    from ..training.parts.advantages import scaled
    from ..training.parts.groups import weighted

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
    from ..rewards.trial import rewards_of  # with torch

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
    except RookWorldError as error:
        there.send(str(error))
