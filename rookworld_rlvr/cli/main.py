"""The command `rookworld`: runs the scripts in ``recipes/``, and lists or copies the recipes."""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from .. import __version__
from ..common import (
    ctrl_c,
    threads,  # noqa: F401  # for what it starts: before torch is loaded
)
from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.shipped import shipped, shipped_names
from ..common.terminal import show, width, wrapped
from ..models.loading import PACKAGED_MODEL
from .early import check_early, first_line, options

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

LAUNCHER = {
    "--accelerate_config": "--config_file",
    "--num_processes": "--num_processes",
    "--num_machines": "--num_machines",
    "--machine_rank": "--machine_rank",
    "--main_process_ip": "--main_process_ip",
    "--main_process_port": "--main_process_port",
}
"""Option of `rookworld` for several processes → option of ``accelerate launch``."""


def main() -> NoReturn:
    """Run a command; for bad input, print one message and exit with code 2."""
    command, *words = sys.argv[1:] or ["--help"]
    try:
        if command in ("-h", "--help", "help"):
            show(usage())
        elif command in ("-V", "--version"):
            show(f"rookworld-rlvr {__version__}")
        elif command == "recipes":
            show("\n".join(recipes(words)))
        elif command in SCRIPTS:
            launcher, line = command_line(SCRIPTS[command], words)
            start(command, Path(line[0]), options(line[1:]))
            if launcher:
                os.environ[ctrl_c.VARIABLE] = "1"
                raise SystemExit(launch([*launcher, *line]))
            ctrl_c.hand_over()
            os.execv(sys.executable, [sys.executable, *line])  # the script replaces this process
        elif command in MODULES:
            # -P: otherwise a chess.py in the working folder would hide python-chess
            os.execv(sys.executable, [sys.executable, "-P", "-m", MODULES[command], *words])
        else:
            close = close_matches(command, [*SCRIPTS, *MODULES, "recipes"])
            raise ConfigurationError([f"{command!r} is not a command{close}; see rookworld --help"])
    except RookWorldError as error:
        name = f"rookworld {command}" if command in SCRIPTS else "rookworld"
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(0)


def start(command: str, script: Path, given: Mapping[str, Sequence[str]]) -> None:
    """Say what can be said at once, because the script loads torch first, which takes ten seconds.

    Raises:
        ConfigurationError: See `check_early`.
    """
    if not {"help", "help_all", "h"} & given.keys():
        check_early(script, given)
        if line := first_line(script, given):
            print(wrapped(f"rookworld {command}: {line}"), flush=True)


def command_name() -> str:
    """How to call the script that is running: by its command, or by its file."""
    script = Path(sys.argv[0])
    names = {name: f"rookworld {command}" for command, name in SCRIPTS.items()}
    return names.get(script.stem, script.name)


def typed() -> str:
    """How to type the command here: by name, or by path if the shell would not find it."""
    beside = Path(sys.executable).with_name("rookworld")
    found = shutil.which("rookworld")
    if not beside.is_file() or (found and Path(found).samefile(beside)):
        return "rookworld"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


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
    folder = shlex.quote(str(output_dir))
    models = [shlex.quote(start), folder] if start else [folder]
    lines = [" ".join(["evaluate", *(f"--model_name_or_path {model}" for model in models)])]
    if command == "sft":
        kept = {key: (given or {}).get(key) or [] for key in _KEPT_BY_SFT}
        kept["rewards"] = _rewards_for(kept["tasks"])  # `sft` has none
        # The packaged model's recipe suits what is trained from it; others get TRL's defaults.
        usual = f" --config grpo_nano --output_dir {folder}-grpo" if start == PACKAGED_MODEL else ""
        lines += [f"grpo{usual} --model_name_or_path {folder}{_words(kept)}"]
    elif start == PACKAGED_MODEL:
        lines += ["recipes copy grpo_mixed .", "grpo --config grpo_mixed.yaml   # after your edits"]
    else:
        config, new = f"{output_dir}/resolved_config.yaml", f"{output_dir}-2"
        words = f"grpo --config {shlex.quote(config)} --output_dir {shlex.quote(new)}"
        lines += [f"{words}   # after your edits"]
    own = _words({"tasks_from": (given or {}).get("tasks_from") or []})
    lines = [f"report --run {folder}{own}", *lines] if command == "grpo" else lines
    return "\n".join(["what comes next:", *(f"  {typed()} {line}" for line in lines)])


_KEPT_BY_SFT = (
    *("dataset_name", "tasks_from", "tasks", "eval_dataset_name", "heldout_share"),
    "max_completion_length",
)


def _words(keys: Mapping[str, Any]) -> str:
    """Keys as they are typed; those without a value are left out.

    >>> _words({"tasks": ["policy", "environment"], "heldout_share": 0.3, "text_column": ""})
    ' --tasks policy environment --heldout_share 0.3'
    """
    lists = {key: value if isinstance(value, list) else [value] for key, value in keys.items()}
    return "".join(
        f" --{key} {shlex.join(map(str, items))}"
        for key, items in lists.items()
        if items not in ([], [""])
    )


def _rewards_for(tasks: Sequence[str]) -> list[str]:
    """A reward for each task, if the usual recipe's do not judge them all."""
    from ..tasks.registry import TASKS  # it knows the user's own by now

    return (
        []
        if all(TASKS[task].is_default for task in tasks)
        else [f"{task}_{TASKS[task].rewards[0]}" for task in tasks]
    )


def usage() -> str:
    """The commands, one per line, each with the first sentence of its script."""
    files = {name: shipped("recipes") / f"{script}.py" for name, script in SCRIPTS.items()}
    files |= {name: _file_of(module) for name, module in MODULES.items()}
    lines = [_entry(f"  {name:<10} ", _first_sentence(path)) for name, path in files.items()]
    more = (
        "rookworld COMMAND --help describes the keys of a command; "
        "rookworld --version gives the version.",
        "To run it on several processes, add --num_processes N, --accelerate_config NAME, or both; "
        f"NAME is a file or one of {', '.join(shipped_names('accelerate_configs'))}.",
        "On several machines, run the command on each, with --num_machines, --machine_rank from 0, and "
        "the --main_process_ip and --main_process_port of rank 0; --num_processes counts all.",
    )
    return "\n".join(
        [
            "rookworld COMMAND [--config RECIPE] [--key value ...]",
            "",
            *lines,
            _entry(
                "  recipes    ",
                "List the packaged recipes, or copy one: recipes copy NAME [FOLDER].",
            ),
            "",
            wrapped("\n".join(more), 0),
        ]
    )


def command_line(script: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options for accelerate's launcher, empty if not needed, and the script with its arguments."""
    path = str(shipped("recipes") / f"{script}.py")
    launcher: list[str] = []
    rest: list[str] = []
    given = [part for word in words for part in _split(word)]
    while given:
        word = given.pop(0)
        if word in LAUNCHER:
            if not given:
                raise ConfigurationError([f"{word}: the value is missing; give one"])
            value = given.pop(0)
            value = _accelerate_config(value) if word == "--accelerate_config" else value
            launcher += [LAUNCHER[word], value]
        else:
            rest.append(word)
    if launcher and "--config_file" not in launcher:
        launcher = ["--config_file", _accelerate_config(_usual_config()), *launcher]
    return [*launcher, *_of_machines(launcher)], [path, *rest]


def _of_machines(launcher: Sequence[str]) -> list[str]:
    """Further options for several machines; empty for one.

    Raises:
        ConfigurationError: Options are missing, or are not numbers.
    """
    given = dict(zip(launcher[::2], launcher[1::2], strict=True))
    numbers = {"num_processes", "num_machines", "machine_rank", "main_process_port"}
    faults = [
        f"--{name}: {value!r} is not a whole number of 0 or more"
        for name in sorted(numbers)
        if not (value := given.get(f"--{name}", "0")).isdecimal()
    ]
    if faults:
        raise ConfigurationError(faults)
    file = _settings(Path(given["--config_file"])) if given else {}
    known = {**file, **{name.removeprefix("--"): value for name, value in given.items()}}
    machines = int(known.get("num_machines") or 1)
    if machines < 2:
        lost = [name for name in ("machine_rank", "main_process_ip") if f"--{name}" in given]
        if lost:
            raise ConfigurationError(
                [f"--{name}: this is for several machines; give --num_machines" for name in lost]
            )
        return []
    rank = int(given.get("--machine_rank", machines))
    if rank >= machines:
        faults.append(f"--machine_rank: give this machine's number, from 0 to {machines - 1}")
    if not known.get("main_process_ip"):
        faults.append("--main_process_ip: give the address of the machine with rank 0")
    if not int(known.get("main_process_port") or 0):
        faults.append(
            "--main_process_port: give a port that is free there, the same on all machines"
        )
    if int(known.get("num_processes") or 0) % machines:
        faults.append(
            f"--num_processes: {known['num_processes']} processes do not spread evenly over {machines} "
            "machines; it counts those of all machines"
        )
    if faults:
        raise ConfigurationError(faults)
    return ["--same_network"]


def _settings(path: Path) -> dict[str, Any]:
    """What an accelerate configuration says.

    Raises:
        ConfigurationError: The file is not YAML or JSON, or not a mapping.
    """
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        text = f"--accelerate_config: {path} cannot be read ({' '.join(str(error).split())})"
        raise ConfigurationError([f"{text}; accelerate config writes one"]) from error
    if not isinstance(found, dict):
        text = f"--accelerate_config: {path} is not a mapping of keys to values"
        raise ConfigurationError([f"{text}; accelerate config writes one"])
    return found


def launch(words: Sequence[str]) -> int:
    """Run accelerate's launcher and give the script's exit code, without further output.

    By itself the launcher turns every failure into exit code 1 and adds a traceback.
    """
    # After a signal, a step, an evaluation and a checkpoint may take longer than the usual 30 seconds.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3600")
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    signal.signal(
        signal.SIGINT, lambda number, frame: None
    )  # the script handles Ctrl-C; wait for it
    options = launch_command_parser().parse_args(list(words))
    try:
        launch_command(options)
    except ChildFailedError as error:
        code = _exit_code(error.get_first_failure()[1].exitcode)
        if int(options.num_machines or 1) > 1 and code not in (2, 130, 143):
            print(_how_machines_go_on(code), file=sys.stderr)
        return code
    except subprocess.CalledProcessError as error:
        return _exit_code(error.returncode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _exit_code(code: int) -> int:
    """The exit code of a process; if a signal ended it, as a shell gives it.

    >>> _exit_code(2), _exit_code(-15)
    (2, 143)
    """
    return 128 - code if code < 0 else code


def _how_machines_go_on(code: int) -> str:
    """What to do after a failure on several machines; the cause may be on another one."""
    return (
        f"rookworld: this machine's processes ended with exit code {code}. If a connection was closed, "
        "another machine ended first: look there for the cause. When all machines have ended, give each "
        "its command again, with --resume_from_checkpoint auto to go on from the last checkpoint"
    )


def recipes(words: Sequence[str]) -> list[str]:
    """List the recipes with a description each, or copy one."""
    folder, names = shipped("recipes"), shipped_names("recipes")
    if words in (["-h"], ["--help"]):
        return ["rookworld recipes lists them; rookworld recipes copy NAME [FOLDER] copies one."]
    if not words:
        return [_entry(f"{name:<20} ", first_comment(folder / f"{name}.yaml")) for name in names]
    if words[0] != "copy" or len(words) not in (2, 3):
        raise ConfigurationError(
            [f"recipes: {' '.join(words)!r} is not understood; write copy NAME [FOLDER]"]
        )
    name = words[1].removesuffix(".yaml")
    if name not in names:
        raise ConfigurationError(
            [f"recipes: there is no recipe {words[1]!r}{close_matches(name, names)}"]
        )
    target = Path(words[2] if len(words) == 3 else ".") / f"{name}.yaml"
    if target.exists():
        raise ConfigurationError(
            [f"recipes: {target} exists already; remove it, or name another folder"]
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / target.name, target)
    except OSError as error:
        raise ConfigurationError([f"recipes: cannot write {target} ({error.strerror})"]) from error
    return [str(target)]


def _split(word: str) -> list[str]:
    """Split ``--key=value`` into two words if it is an option of the launcher."""
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag in LAUNCHER else [word]


def _accelerate_config(name: str) -> str:
    """The file of an accelerate configuration, given as a name or as a file."""
    if Path(name).is_file():
        return name
    names = shipped_names("accelerate_configs")
    if name not in names:
        raise ConfigurationError(
            [
                f"--accelerate_config: {name!r} is not a file; give a file or one of {', '.join(names)}"
            ]
        )
    return str(shipped("accelerate_configs") / f"{name}.yaml")


def _usual_config() -> str:
    import torch  # takes a second, so only if several processes are launched

    return "multi_gpu" if torch.accelerator.is_available() else "cpu"


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return Path(spec.origin)


def _entry(head: str, text: str) -> str:
    """A list's entry in the terminal's width."""
    return textwrap.fill(text, width(), initial_indent=head, subsequent_indent=" " * len(head))


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def first_comment(path: Path) -> str:
    """A recipe's description: its comment up to the first empty line."""
    lines = [line.removeprefix("#").strip() for line in path.read_text("utf-8").splitlines()]
    return " ".join(lines[: lines.index("")])


if __name__ == "__main__":  # python -m, if the shell does not find the command, as in a notebook
    main()
