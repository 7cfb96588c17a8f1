"""What a command says beside its work: help, our name for an unknown key, what comes next."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from ..common.errors import ConfigurationError, close_matches
from ..common.files import find_recipe, read_asset, read_keys
from ..common.terminal import width, wrapped
from ..models.loading import PACKAGED_MODEL

_FEW = 60  # keys; of more, the help describes those that are set most often


@cache
def words() -> dict[str, Any]:
    """The file `assets/words.yaml`: our keys' other names, notes on them, and those to show first."""
    return read_asset("words.yaml")


def named_here(name: str, known: Collection[str]) -> str:
    """A clause for a message on an unknown key: our name for it, else the known ones that are close.

    >>> named_here("lr", ["learning_rate", "lr_scheduler_type"])
    '; here it is learning_rate'
    >>> named_here("learning_rat", ["learning_rate", "max_steps"])
    '; did you mean learning_rate?'
    """
    if name == "env":  # as TRL's own parser takes it
        return "; set variables of the environment in the shell"
    for key, others in words()["names"].items():
        if name in others and key in known:
            note = words()["notes"].get(key)
            return f"; here it is {key}" + (f" ({note})" if note else "")
    return close_matches(name, known) or "; --help lists the keys"


# --------------------------------------------------------------------------------------------------
# Help
# --------------------------------------------------------------------------------------------------
def help_text(
    name: str,
    actions: Mapping[str, argparse.Action],
    dataclass_types: Sequence[type],
    keys: Sequence[str] = (),
) -> str:
    """The text of ``--help``: the keys that people turn, then this package's by topic.

    Args:
        name: How the command is called.
        actions: The parser's, by key.
        dataclass_types: The dataclasses of the keys; each is a topic.
        keys: Describe only these.

    Raises:
        ConfigurationError: One of them does not exist.
    """
    if unknown := [key for key in keys if key not in actions]:
        raise ConfigurationError(
            [f"--help: unknown key {key!r}{named_here(key, actions)}" for key in unknown]
        )
    if keys:
        return "\n".join(_described(actions[key]) for key in keys)
    is_short = len(actions) <= _FEW
    shown = [] if is_short else [key for key in words()["first"] if key in actions]
    lines = [f"{name} [--config RECIPE] [--key value ...]"]
    if shown:
        lines += ["", "The keys that are set most often.", *(_described(actions[k]) for k in shown)]
    for owner in chain(*(reversed(kind.__mro__) for kind in dataclass_types)):
        names = [key for key in vars(owner).get("__annotations__", ()) if key in actions]
        names = [key for key in names if key not in shown]
        if not names or owner.__module__.startswith(("trl.", "transformers.")):
            continue
        shown += names
        lines += ["", " ".join((owner.__doc__ or "").split("\n\n")[0].split())]
        lines += (
            [_described(actions[key]) for key in names] if is_short else [f"  {', '.join(names)}"]
        )
    return wrapped("\n".join([*lines, "", "--help KEY describes one key, TRL's too."]))


def _described(action: argparse.Action) -> str:
    """A key with its default and its description, on one line if they fit."""
    choices = f" {action.metavar}" if isinstance(action.metavar, str) else ""
    has_default = action.default not in (None, argparse.SUPPRESS, [], "")
    head = f"  --{action.dest}{choices}" + (f" ({action.default})" if has_default else "")
    text = " ".join((action.help or "").replace("%%", "%").split())
    line = f"{head}  {text}"
    return line if len(line) <= width() else "\n".join([head, wrapped(f"      {text}", 6)])


# --------------------------------------------------------------------------------------------------
# What comes next
# --------------------------------------------------------------------------------------------------
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
