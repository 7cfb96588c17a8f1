"""What a run was trained with, from which step on: keys that change when it is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from trl import ModelConfig

from ..common.errors import RookWorldError
from ..common.own import own_file_names
from ..data.loading import DataArguments
from ..evaluation.registry import SuiteArguments
from ..rewards.registry import specs_of
from .checkpoints import STATE
from .config import NewModelArguments
from .results import PROVENANCE, RESOLVED_CONFIG

Changes = Mapping[
    str, Sequence[Any]
]  # key → its value before, its value now; None if there is none


_FREE = {"max_quarantined_share", "attn_implementation"}


FIXED = {
    item.name
    for group in (
        DataArguments,
        ModelConfig,
        NewModelArguments,
        SuiteArguments,
    )
    for item in fields(group)
} - _FREE | {
    # which rows come, and what is right
    *("seed", "data_seed", "shuffle_dataset", "task_phases"),
    *("labels", "engine_depth"),
    # a judge's pairs
    *("generator", "train_pairs", "heldout_pairs", "pair_shares", "smallest_gap"),
    *("ranked_prompts", "ranked_tokens"),
    # what a checkpoint holds the state of
    *("model_init_kwargs", "optim", "optim_args", "optim_target_modules", "advantage_estimator"),
    *("auto_find_batch_size", "fsdp", "fsdp_config", "deepspeed", "parallelism_config"),
    # by what the best checkpoint so far was chosen
    *("metric_for_best_model", "greater_is_better", "guard"),
}
"""Keys that a checkpoint's run keeps: a resumed run could not take another value, or not be compared."""


_REMEMBERS_RATE = {"reduce_lr_on_plateau", "greedy"}  # schedules that do not follow from the step


_OF_RATE = {"learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs"}


def differences(before: str, now: str) -> dict[str, list[Any]]:
    """The keys that two resolved configurations do not share, but for the run's folder.

    Args:
        before: The text of ``resolved_config.yaml``.
        now: Another one. Defaults that the first does not know are new in this version.
    """
    (listed, known), (listed_now, known_now) = _keys(before), _keys(now)
    new = _mapping(now.partition("# The defaults.")[2]).keys() - known.keys()
    return {
        key: [known.get(key), known_now.get(key)]
        for key in sorted((listed.keys() | listed_now.keys()) - new - {"output_dir"})
        if known.get(key) != known_now.get(key)
    }


def _keys(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that a resolved configuration lists, and these with those that follow from them."""
    head, _, derived = text.partition("# What follows from the above.")
    digests = re.findall(r"^# (sha256 of .+): (\w+)$", head, re.MULTILINE)
    listed = {**_mapping(head), **dict(digests)}
    return listed, {**_mapping(re.sub("^# ", "", derived, flags=re.MULTILINE)), **listed}


def _mapping(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text)
    return found if isinstance(found, dict) else {}


# --------------------------------------------------------------------------------------------------
# A resumed run
# --------------------------------------------------------------------------------------------------
def changed_keys(checkpoint: Path, resolved: str) -> dict[str, list[Any]]:
    """The keys whose values differ from those that a checkpoint was trained with.

    Args:
        checkpoint: A checkpoint in a run's folder; of another folder nothing is known.
        resolved: The resolved configuration of the run that goes on from it.

    Raises:
        RookWorldError: Some of them cannot change; it names them all.
    """
    run = checkpoint.parent
    if not (run / RESOLVED_CONFIG).is_file():
        return {}
    try:
        found = differences((run / RESOLVED_CONFIG).read_text(encoding="utf-8"), resolved)
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise RookWorldError(f"{run / RESOLVED_CONFIG} could not be read ({said})") from error
    known = _keys(resolved)[1]
    done, steps = step_of(checkpoint), known.get("max_steps")
    if isinstance(steps, int) and 0 < steps < done:
        raise RookWorldError(
            f"max_steps: {steps}: {checkpoint} has made {done} steps already; give more than that"
        )
    for session in reversed(sessions_of(run)):  # their steps are made anew
        if session.get("from_step", 0) < step_of(checkpoint):
            break
        for key, (before, _) in session.get("changed", {}).items():
            found[key] = [before, known.get(key)]
    found = {key: [before, now] for key, (before, now) in found.items() if before != now}
    fixed = FIXED
    if _REMEMBERS_RATE & {
        *map(str, found.get("lr_scheduler_type", [known.get("lr_scheduler_type")]))
    }:
        fixed = FIXED | _OF_RATE
    if refused := sorted(found.keys() & fixed):
        raise RookWorldError(_refusal(checkpoint, {key: found[key] for key in refused}))
    return found


def _refusal(checkpoint: Path, refused: Changes) -> str:
    told = [
        f"  - {key}: was {words(before)}, is {words(now)}" for key, (before, now) in refused.items()
    ]
    text = (
        f"resume_from_checkpoint: {checkpoint} was trained with other values of keys that must stay "
        "while a run goes on:"
    )
    remedy = "give these keys their earlier values, or start a new run"
    if (checkpoint / "config.json").is_file():  # not of adapters alone
        remedy += (
            f" from its weights: --config {checkpoint.parent / RESOLVED_CONFIG} "
            f"--resume_from_checkpoint false --model_name_or_path {checkpoint} "
            f"--output_dir {checkpoint.parent}-2"
        )
    return "\n".join([text, *told, remedy])


def step_of(checkpoint: Path | None) -> int:
    """The optimiser steps that a checkpoint has made; 0 for none."""
    if checkpoint is None:
        return 0
    return int(json.loads((checkpoint / STATE).read_text()).get("global_step", 0))


def sessions_of(run: Path) -> list[dict[str, Any]]:
    """The starts of a run, from its ``provenance.json``; none if there is no such file."""
    path = run / PROVENANCE
    found: list[dict[str, Any]] = []
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))["sessions"]
    return found


def own_rewards_changed(sessions: Sequence[Mapping[str, Any]], rewards: Any) -> bool:
    """Whether the user's own rewards may have become other functions while a run was stopped.

    >>> own_rewards_changed([{}, {"changed": {"sha256 of mine.py": ["0a", "0b"]}}], ["mine.py:f"])
    True
    >>> own_rewards_changed([{}, {"changed": {"sha256 of part.py": ["0a", "0b"]}}], ["mine.py:f"])
    False
    >>> specs = [{"name": "mine.py:f", "weight": 1.0}], [{"name": "mine.py:f", "weight": 0.5}]
    >>> own_rewards_changed([{"changed": {"rewards": specs}}], specs[1])
    False
    """
    named = own_file_names(rewards)
    return any(
        key.removeprefix("sha256 of ") in named
        or (key == "rewards" and _unweighted(before) != _unweighted(now))
        for session in sessions
        for key, (before, now) in session.get("changed", {}).items()
    )


def _unweighted(specs: Any) -> Any:
    known = specs_of(specs)
    if not isinstance(known, list):
        return known
    return [{key: spec[key] for key in spec if key != "weight"} for spec in known]


# --------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------
def stretches(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What changed in a run's configuration, a line for each step from which on something did.

    >>> first, second = {}, {"from_step": 4, "changed": {"learning_rate": [1e-4, 5e-5]}}
    >>> stretches([first, second])
    ['from step 4: learning_rate 0.0001 -> 5e-05']

    A session that begins earlier than the one before makes its steps anew:

    >>> stretches([first, second, {"from_step": 2, "changed": {"beta": [0.0, 0.1]}}])
    ['from step 2: beta 0 -> 0.1']
    """
    valid: list[Mapping[str, Any]] = []
    for session in sessions:
        step = session.get("from_step", 0)
        valid = [*(earlier for earlier in valid if earlier.get("from_step", 0) < step), session]
    return [
        f"from step {session['from_step']}: {changed_words(session['changed'])}"
        for session in valid
        if session.get("changed")
    ]


def changed_words(changed: Changes) -> str:
    """Keys with their values before and now, in one line."""
    return "; ".join(f"{key} {words(was)} -> {words(now)}" for key, (was, now) in changed.items())


def words(value: Any) -> str:
    """A key's value, in short.

    >>> words(5e-5), words(None), words([{"name": "graduated", "weight": 0.5}, "other"])
    ('5e-05', 'none', 'graduated x 0.5, other')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, Mapping) and "name" in value:
        options = {key: value[key] for key in value if key not in ("name", "weight")}
        more = "".join(f" {key} {words(option)}" for key, option in options.items())
        return f"{value['name']} x {words(value.get('weight', 1))}{more}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(item)}" for key, item in value.items()) or "none"
    return "none" if value is None else str(value)
