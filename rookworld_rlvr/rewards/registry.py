"""The registry of rewards: functions in TRL's signature over the tasks' scorers.

A reward takes ``prompts``, ``completions`` and the data set's columns as keywords, all of length `B`,
and returns `B` numbers, or None for a row that it does not apply to: a row of another task, or one
whose truth is missing. Names are dashboard keys: TRL logs ``rewards/<name>/mean``.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ..common.errors import ConfigurationError, close_matches
from ..common.extras import extra
from ..common.files import is_own
from ..common.settings import record_faults
from ..engine.truth import PolicyTruth, policy_values
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, score_row, task_of
from ..tasks.text import message_text
from . import composites
from .arguments import call_options
from .positions import warn_of_positions

logger = logging.getLogger(__name__)

RewardFunc = Callable[..., Any]
"""Takes keywords; returns a number or None for each row. A user's function may be a coroutine."""


Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward of the registry.

    Args:
        tasks: The tasks that it judges.
        number: Makes the number of a score; takes the options as keywords.
        options: What an entry for it may have; `number` has the defaults.
        range: The values that it takes, such as ``[0, 1]`` or ``0 or 1``.
        meaning: One sentence; empty if a user's own task leaves it out.
    """

    tasks: tuple[str, ...]
    number: Callable[..., float]
    options: type[composites.Options] = composites.Options
    range: str = "[0, 1]"
    meaning: str = ""


COMPOSITES: Mapping[str, Reward] = {
    "weighted_policy": Reward(
        (POLICY.name,),
        POLICY.quality,
        meaning="0.5 `policy_best_move` + 0.3 `policy_candidates` + 0.2 `policy_evaluation`.",
    ),
    "graduated": Reward(
        (ENVIRONMENT.name, POLICY.name),
        composites.graduated,
        composites.GraduatedOptions,
        "[-0.3, 1]",
        "Environment and policy answers on one scale, by the share that is right; `shaping` sets the "
        "scale's form.",
    ),
    "asymmetric": Reward(
        (ENVIRONMENT.name,),
        composites.asymmetric,
        range="[-1, 1]",
        meaning="A wrong next state costs more than a wrong reward or flag.",
    ),
}
"""Rewards made of several components."""


def known_rewards() -> dict[str, Reward]:
    """Every reward by name: the components that each task makes rewards of, then the composites."""
    components = {
        f"{task.name}_{component}": Reward(
            (task.name,), itemgetter(component), meaning=task.meanings.get(component, "")
        )
        for task in TASKS.values()
        for component in task.rewards
    }
    return {**components, **COMPOSITES}


def get_reward_funcs(
    specs: Sequence[Spec | str], truth: PolicyTruth | None = None
) -> list[RewardFunc]:
    """Reward functions by name, in the order given; they give TRL's trainer numbers without weights.

    Args:
        specs: A name, or ``{"name": ..., "weight": ..., **options}``, each. A weight is for
            `RookWorldGRPOConfig`; here it is left out, with a warning. The name ``judge`` or
            ``judge_<suffix>`` means a frozen model, which is loaded, see `extras.judge`. A name with a
            colon means the user's own, see `own.user_reward`.
        truth: Where the values of moves come from; None takes the column `action_values`.

    Raises:
        ConfigurationError: Unknown names or options, with their close matches.
        RookWorldError: A judge could not be loaded.

    >>> (exact,) = get_reward_funcs(["environment_exact"])
    >>> exact(
    ...     ["A: 8/8/8/8/8/4k3/8/4K3 w - - 0 1+e1d1+e1d1+"],
    ...     ["8/8/8/8/8/4k3/8/3K4 b - - 1 1+0.5+1+0"],
    ... )
    [1.0]
    """
    funcs = open_rewards(specs, truth)
    weights = [spec.get("weight", 1.0) for spec in specs_of(specs)]
    if set(weights) != {1.0}:
        logger.warning("weights are the trainer's: give it reward_weights=%s", weights)
    return funcs


def open_rewards(specs: Sequence[Spec | str], truth: PolicyTruth | None = None) -> list[RewardFunc]:
    """The same, for a trainer that is given the weights."""
    chosen = specs_of(specs)
    faults = check_reward_specs(chosen)
    if faults:
        raise ConfigurationError(faults)
    return [_open(spec, truth or PolicyTruth()) for spec in chosen]


def with_functions(rewards: Any) -> Any:
    """TRL's `reward_funcs` with functions for this package's names; TRL takes any text for a model.

    Raises:
        ConfigurationError, RookWorldError: See `get_reward_funcs`.
    """
    if isinstance(rewards, list | tuple):
        return [with_functions(reward) for reward in rewards]
    if not isinstance(rewards, str):
        return rewards
    is_ours = rewards in known_rewards() or is_own(rewards) or _is_judge(rewards)
    return get_reward_funcs([rewards])[0] if is_ours else rewards


def specs_of(specs: Any) -> Any:
    """A list of rewards with each name as ``{"name": ...}``; anything else as it is."""
    if not isinstance(specs, list | tuple):
        return specs
    return [{"name": spec} if isinstance(spec, str) else spec for spec in specs]


def _is_judge(name: str) -> bool:
    return re.fullmatch(r"judge(_[a-z0-9]+)*", name) is not None


def _open(spec: Spec, truth: PolicyTruth) -> RewardFunc:
    if is_own(spec["name"]):
        from .own import user_reward

        return user_reward(spec, judged_tasks(spec))
    if _is_judge(spec["name"]):
        judges = extra("judge.reward")
        reward: RewardFunc = judges.JudgeReward(judges.JudgeSpec(**spec), truth=truth)
        return reward
    return _reward_func(spec, truth)


def check_reward_specs(specs: Any) -> list[str]:
    """What is wrong with a list of reward specifications, one sentence each."""
    if not isinstance(specs, list | tuple) or not specs:
        return ["rewards: must be a list of rewards; give some of " + ", ".join(known_rewards())]
    faults = []
    names = []
    for spec in specs:
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            faults.append(
                f"rewards: {spec!r} must be a mapping with a name; write "
                "'{name: environment_exact, weight: 1.0}', or the name alone"
            )
            continue
        names.append(spec["name"].rpartition(":")[2])  # for a user's own: the dashboard's name
        faults += _check_reward_spec(spec)
        weight = spec.get("weight", 1.0)
        if isinstance(weight, float) and not math.isfinite(weight):
            faults.append(f"rewards: weight {weight!r} of {spec['name']} is not a finite number")
    twice = sorted({name for name in names if names.count(name) > 1})
    return faults + [
        f"rewards: {name!r} appears twice; give it once, with the sum of its weights, or rename one"
        for name in twice
    ]


def _check_reward_spec(spec: Spec) -> list[str]:
    name = spec["name"]
    if is_own(name):
        from .own import own_faults

        return own_faults(spec)
    if _is_judge(name):
        if (judges := extra("judge.reward")) is None:
            return [f"rewards: {name}: judges are not part of this copy; take the reward out"]
        return record_faults(judges.JudgeSpec, {"model": "", **spec}, f"rewards: {name}")
    rewards = known_rewards()
    if name not in rewards:
        close = close_matches(name, (*rewards, "judge"))
        return [
            f"rewards: there is no reward called {name!r} (your own is path/to/file.py:name){close}"
        ]
    return record_faults(rewards[name].options, spec, f"rewards: {name}")


def tasks_of(specs: Sequence[Spec]) -> set[str]:
    """The tasks that at least one of the rewards judges."""
    return {task for spec in specs for task in judged_tasks(spec)}


def judged_tasks(spec: Spec) -> tuple[str, ...]:
    """The tasks that a reward judges: of a judge or a user's own all, unless `tasks` names some."""
    if is_own(spec["name"]) or _is_judge(spec["name"]):
        return tuple(spec.get("tasks") or TASKS)
    return known_rewards()[spec["name"]].tasks


def _reward_func(spec: Spec, truth: PolicyTruth) -> RewardFunc:
    name = spec["name"]
    reward = known_rewards()[name]
    options = {key: value for key, value in spec.items() if key not in ("name", "weight")}

    def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        action_values: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        values_too = {} if action_values is None else {"action_values": action_values}
        given = call_options(name, reward.options, columns | values_too, len(prompts))
        chosen = {**options, **given}
        pairs = zip(map(message_text, prompts), map(message_text, completions), strict=True)
        mine = {row: pair for row, pair in enumerate(pairs) if task_of(pair[0]) in reward.tasks}
        stored = [None if action_values is None else action_values[row] for row in mine]
        values = policy_values(truth, [prompt for prompt, _ in mine.values()], stored)
        numbers: list[float | None] = [None] * len(prompts)
        for (row, pair), by_move in zip(mine.items(), values, strict=True):
            if (score := score_row(*pair, by_move)) is not None:
                numbers[row] = reward.number(score, **chosen)
        if log_metric is not None:
            warn_of_positions(log_metric)
            for row in mine:
                log_metric(f"rewards/{name}/without_truth", float(numbers[row] is None))
            if truth.labeller is not None:
                log_metric("engine/given_up", len(truth.labeller.given_up))
        return numbers

    reward_func.__name__ = name
    reward_func.__doc__ = (
        f"{reward.meaning or name}\n\nRange: {reward.range}. None for a row that is not of the task "
        f"{' or '.join(reward.tasks)}, or whose truth is not known."
    )
    vars(reward_func).update(
        truth=truth,  # for parts of the trainer that judge the same completions
        tasks=reward.tasks,
        is_packaged=True,  # see `guard`
    )
    return reward_func
