"""What comes next: the commands that a training run suggests at its end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.files import find_recipe, read_keys
from ..models.loading import PACKAGED_MODEL

_KEPT_BY_SFT = (
    *("dataset_name", "tasks_from", "tasks", "eval_dataset_name", "heldout_share"),
    *("labels", "max_completion_length"),
)


def next_commands(
    output_dir: Path,
    start: str,
    given: Mapping[str, Any],
    command: str = "grpo",
    rows: int | None = None,
) -> str:
    """The commands to suggest after a run: look at it, evaluate it, train on with keys of your own.

    Args:
        output_dir: The run's folder.
        start: The starting model.
        given: The keys that it was given: the user's own tasks, and after supervised training which
            rows to go on with.
        command: The command that ran.
        rows: Rows it trained on, which may be too few for a batch of the packaged model's recipe.
    """
    folder = shlex.quote(str(output_dir))
    both = f"--model_name_or_path {shlex.quote(start)} --model_name_or_path {folder}"
    lines = [f"evaluate {both}"]
    if command == "grpo":
        lines.insert(0, f"report --run {folder}{_typed_keys(given, ['tasks_from'])}")
    if command == "sft":
        # The packaged model's recipe suits what is trained from it; others get TRL's defaults.
        usual = f" --config grpo_nano --output_dir {folder}-grpo" if start == PACKAGED_MODEL else ""
        recipe = read_keys(find_recipe("grpo_nano"))
        most = (rows or 1_000) * recipe["num_generations"]
        if usual and most < recipe[(key := "per_device_train_batch_size")]:
            usual += f" --{key} {most}"
        kept = _typed_keys(given, _KEPT_BY_SFT) + _rewards_for(given.get("tasks") or [])
        lines.append(f"grpo{usual} --model_name_or_path {folder}{kept}")
    elif start == PACKAGED_MODEL:
        lines += ["recipes copy grpo_mixed .", "grpo --config grpo_mixed.yaml   # after your edits"]
    else:
        config, new = f"{output_dir}/resolved_config.yaml", f"{output_dir}-2"
        edited = f"grpo --config {shlex.quote(config)} --output_dir {shlex.quote(new)}"
        lines.append(f"{edited}   # after your edits")
    return "\n".join(["what comes next:", *(f"  {typed()} {line}" for line in lines)])


def typed() -> str:
    """How to type the command here: by name, or by path if the shell would not find it."""
    beside, found = Path(sys.executable).with_name("rookworld"), shutil.which("rookworld")
    is_ours = not beside.is_file() or (found is not None and Path(found).samefile(beside))
    return "rookworld" if is_ours else shlex.quote(str(beside))


def _typed_keys(given: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Those keys that were given, as they are typed.

    >>> _typed_keys({"tasks": ["policy", "environment"], "seed": 3}, ["tasks", "tasks_from"])
    ' --tasks policy environment'
    """
    lists = {key: value if isinstance(value, list) else [value] for key, value in given.items()}
    return "".join(f" --{key} {shlex.join(map(str, lists[key]))}" for key in keys if given.get(key))


def _rewards_for(tasks: Sequence[str]) -> str:
    """A reward for each task, if the usual recipe's do not judge them all."""
    from ..tasks.registry import TASKS  # it knows the user's own by now

    if all(TASKS[task].is_default for task in tasks):
        return ""
    return _typed_keys(
        {"rewards": [f"{task}_{TASKS[task].rewards[0]}" for task in tasks]}, ["rewards"]
    )
