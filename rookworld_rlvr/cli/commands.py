"""The commands by name, and how to type them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.loading import PACKAGED_MODEL

SCRIPTS = {
    "grpo": "grpo",
    "sft": "sft",
    "diagnose": "diagnose",
    "evaluate": "evaluate",
    "report": "report",
    "audit": "audit_data",
    "prepare": "prepare_data",
    "judge": "train_judge",
    "sweep": "sweep",
    "evolve": "evolve",
    "workspace": "wandb_workspace",
}
"""Command → the script in ``recipes/`` that it runs."""

MODULES = {
    "analyse": "rookworld_rlvr.inference.analyse",
    "play": "rookworld_rlvr.inference.play",
    "uci": "rookworld_rlvr.inference.uci",
}
"""Command → the module that it runs."""


def command_name() -> str:
    """How to call the script that is running: by its command, or by its file."""
    script = Path(sys.argv[0])
    names = {name: f"rookworld {command}" for command, name in SCRIPTS.items()}
    return names.get(script.stem, script.name)


def typed() -> str:
    """How to type the command here: by name, or by path if the shell would not find it."""
    beside, found = Path(sys.executable).with_name("rookworld"), shutil.which("rookworld")
    is_ours = not beside.is_file() or (found is not None and Path(found).samefile(beside))
    return "rookworld" if is_ours else shlex.quote(str(beside))


def next_commands(
    output_dir: Path,
    start: str | None,
    command: str = "grpo",
    given: Mapping[str, Any] | None = None,
) -> str:
    """The commands to suggest after a run: look at it, evaluate it, train on with keys of your own.

    Args:
        output_dir: The run's folder.
        start: The starting model; None if it was a new one.
        command: The command that ran.
        given: The keys that it was given: the user's own tasks, and after supervised training which
            rows to go on with.
    """
    folder, given = shlex.quote(str(output_dir)), given or {}
    models = [shlex.quote(start), folder] if start else [folder]
    lines = [" ".join(["evaluate", *(f"--model_name_or_path {model}" for model in models)])]
    if command == "sft":
        kept = {key: given[key] for key in _KEPT_BY_SFT if given.get(key)}
        # The packaged model's recipe suits what is trained from it; others get TRL's defaults.
        usual = f" --config grpo_nano --output_dir {folder}-grpo" if start == PACKAGED_MODEL else ""
        rewards = _words({"rewards": _rewards_for(given.get("tasks") or [])})
        lines += [f"grpo{usual} --model_name_or_path {folder}{_words(kept)}{rewards}"]
    elif start == PACKAGED_MODEL:
        lines += ["recipes copy grpo_mixed .", "grpo --config grpo_mixed.yaml   # after your edits"]
    else:
        config, new = f"{output_dir}/resolved_config.yaml", f"{output_dir}-2"
        words = f"grpo --config {shlex.quote(config)} --output_dir {shlex.quote(new)}"
        lines += [f"{words}   # after your edits"]
    own = _words({"tasks_from": given.get("tasks_from") or []})
    lines = [f"report --run {folder}{own}", *lines] if command == "grpo" else lines
    return "\n".join(["what comes next:", *(f"  {typed()} {line}" for line in lines)])


_KEPT_BY_SFT = (
    *("dataset_name", "tasks_from", "tasks", "eval_dataset_name", "heldout_share"),
    "max_completion_length",
)


def _words(keys: Mapping[str, Any]) -> str:
    """Keys as they are typed; those with an empty list are left out.

    >>> _words({"tasks": ["policy", "environment"], "heldout_share": 0.3, "rewards": []})
    ' --tasks policy environment --heldout_share 0.3'
    """
    lists = {key: value if isinstance(value, list) else [value] for key, value in keys.items()}
    return "".join(f" --{key} {shlex.join(map(str, lists[key]))}" for key in lists if lists[key])


def _rewards_for(tasks: Sequence[str]) -> list[str]:
    """A reward for each task, if the usual recipe's do not judge them all."""
    from ..tasks.registry import TASKS  # it knows the user's own by now

    judged = all(TASKS[task].is_default for task in tasks)
    return [] if judged else [f"{task}_{TASKS[task].rewards[0]}" for task in tasks]
