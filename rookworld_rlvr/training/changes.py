"""What a run was trained with, from which step on: the keys that may change when it is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import RookWorldError
from .checkpoints import STATE
from .results import PROVENANCE, RESOLVED_CONFIG

Changes = Mapping[
    str, Sequence[Any]
]  # key → its value before, its value now; None if there is none


FREE = {
    # how long, how fast, and how often it is looked at
    *"max_steps num_train_epochs learning_rate logging_steps eval_steps save_steps".split(),
    *"eval_strategy save_strategy save_total_limit".split(),
    # where it logs and is pushed
    *"output_dir run_name project report_to log_completions health".split(),
    *"push_to_hub hub_model_id hub_private_repo hub_revision".split(),
    # what it fits into
    *"per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps".split(),
    *"gradient_checkpointing max_completion_length attn_implementation bf16 use_cpu".split(),
    *"dataloader_num_workers torch_compile use_vllm vllm_mode".split(),
    *"vllm_gpu_memory_utilization preflight max_quarantined_share".split(),
}
"""The keys that may change when a run is resumed. All others say what is trained and measured."""


def differences(before: str, now: str) -> dict[str, list[Any]]:
    """The keys that two resolved configurations do not share, but for the run's folder.

    Args:
        before: The text of ``resolved_config.yaml``.
        now: Another one. Defaults that the first does not know are new in this version.

    Raises:
        RookWorldError: The first is not valid YAML.
    """
    try:
        listed, known = _keys(before)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise RookWorldError(
            f"the {RESOLVED_CONFIG} of the run that is resumed could not be read ({said}); restore it, "
            "or start a new run in another output_dir"
        ) from error
    listed_now, known_now = _keys(now)
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
        RookWorldError: Some of them are not `FREE`; it names them all.
    """
    run = checkpoint.parent
    if not (run / RESOLVED_CONFIG).is_file():
        return {}
    found = differences((run / RESOLVED_CONFIG).read_text(encoding="utf-8"), resolved)
    known = _keys(resolved)[1]
    for session in reversed(sessions_of(run)):  # those whose steps are made anew
        if session.get("from_step", 0) < step_of(checkpoint):
            break
        found |= {
            key: [was, known.get(key)] for key, (was, _) in session.get("changed", {}).items()
        }
    found = {key: [was, now] for key, (was, now) in found.items() if was != now}
    schedule = known.get("lr_scheduler_type")
    fixed = {"learning_rate"} if schedule in ("reduce_lr_on_plateau", "greedy") else set()
    if refused := found.keys() - (FREE - fixed):
        raise RookWorldError(_refusal(checkpoint, {key: found[key] for key in sorted(refused)}))
    done, steps = step_of(checkpoint), known.get("max_steps")
    unused = (
        sorted(found.keys() - {"max_steps"}) if steps == done else []
    )  # no step is left for them
    if isinstance(steps, int) and (0 < steps < done or unused):
        earlier = f", or leave {', '.join(unused)} as before" if unused else ""
        raise RookWorldError(
            f"max_steps: {steps}: {checkpoint} has made {done} steps already; give more than that"
            f"{earlier}"
        )
    return found


def _refusal(checkpoint: Path, refused: Changes) -> str:
    run = checkpoint.parent
    remedy = "give these keys their earlier values, or start a new run"
    if (checkpoint / "config.json").is_file():  # not of adapters alone
        remedy += (
            f" from its weights, by adding to your command: --config {run / RESOLVED_CONFIG} "
            f"--resume_from_checkpoint false --model_name_or_path {checkpoint} --output_dir {run}-2"
        )
    lines = [f"  - {key}: was {words(was)}, is {words(now)}" for key, (was, now) in refused.items()]
    return "\n".join(
        [
            f"resume_from_checkpoint: {checkpoint} was trained with other values of keys that must stay "
            "while a run goes on:",
            *lines,
            remedy,
        ]
    )


def step_of(checkpoint: Path) -> int:
    """The optimiser steps that a checkpoint has made."""
    return int(json.loads((checkpoint / STATE).read_text())["global_step"])


def sessions_of(run: Path) -> list[dict[str, Any]]:
    """The starts of a run, from its ``provenance.json``; none if there is no such file."""
    path = run / PROVENANCE
    found: list[dict[str, Any]] = []
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))["sessions"]
    return found


# --------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------
def stretches(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What changed in a run's configuration, a line for each step from which on something did.

    >>> first, second = {}, {"from_step": 4, "changed": {"max_steps": [6, 9]}}
    >>> stretches([first, second])
    ['from step 4: max_steps 6 -> 9']

    A session that begins earlier than the one before makes its steps anew:

    >>> stretches([first, second, {"from_step": 2, "changed": {"max_steps": [6, 8]}}])
    ['from step 2: max_steps 6 -> 8']
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
