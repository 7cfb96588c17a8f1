"""The command `rookworld`: runs the scripts in ``recipes/``, and lists or copies the recipes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import NoReturn

from .. import __version__
from ..common import machine  # noqa: F401  # for what it starts: before torch is loaded
from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.files import (
    find_recipe,
    message_of,
    read_asset,
    read_keys,
    replace_text,
    shipped,
    shipped_names,
)
from ..common.terminal import STARTS, drop_stdout, entry, show, wrapped
from ..evaluation.registry import RANDOM_MOVER
from ..models.loading import check_model_name
from .help_text import MODEL, help_entries, named_here
from .run import MODULES, POSITIONAL, SCRIPTS, options, usual

LAUNCHER = (
    *("accelerate_config", "num_processes"),
    *("num_machines", "machine_rank", "main_process_ip", "main_process_port"),
)
"""Options of `rookworld` for several processes: those of ``accelerate launch``, and its file."""


def main() -> NoReturn:
    """Run a command; for bad input, print one message and exit with code 2."""
    command, *line = sys.argv[1:] or ["--help"]
    try:
        if command in ("-h", "--help", "help"):
            show(usage())
        elif command in ("-V", "--version"):
            show(f"rookworld-rlvr {__version__}")
        elif command == "recipes":
            show("\n".join(recipes(line)))
        elif command in SCRIPTS:
            launcher, line = command_line(command, line)
            start(command, line)
            os.environ[STARTS] = "1"
            if launcher:
                raise SystemExit(launch([*launcher, *line]))
            # A Ctrl-C waits until the script can `watch_ctrl_c`.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            os.execv(sys.executable, [sys.executable, *line])  # the script replaces this process
        elif command in MODULES:
            # -P: otherwise a chess.py in the working folder would hide python-chess
            os.execv(sys.executable, [sys.executable, "-P", "-m", MODULES[command], *line])
        else:
            close = close_matches(command, [*SCRIPTS, *MODULES, "recipes"])
            meant = "; rookworld grpo trains a model" if command == "train" else close
            raise RookWorldError(f"{command!r} is not a command{meant}; see rookworld --help")
    except (RookWorldError, OSError) as error:
        if (text := message_of(error)) is None:
            raise
        name = f"rookworld {command}" if command in SCRIPTS else "rookworld"
        print(f"{name}: {text}", file=sys.stderr)
        drop_stdout()
        raise SystemExit(2) from None
    raise SystemExit(0)


def start(command: str, line: Sequence[str]) -> None:
    """Say what can be said at once, because the script loads torch first, which takes ten seconds.

    Raises:
        ConfigurationError: A key, the recipe or a model's folder does not exist.
    """
    (_, strays), *options_given = options(line[1:])
    given = dict(options_given)
    if not {"help", "-h"} & {*given, *line}:
        check_keys(Path(line[0]), given)
        names = {*given.get(MODEL, ()), *(strays if POSITIONAL.get(command) == MODEL else ())}
        if faults := [*chain(*map(check_model_name, sorted(names - {RANDOM_MOVER})))]:
            raise ConfigurationError(faults)
        if said := first_line(Path(line[0]), given):
            to_people = sys.stderr if asks_json(given) else sys.stdout  # a program reads the other
            print(wrapped(f"rookworld {command}: {said}"), file=to_people, flush=True)


def asks_json(given: Mapping[str, Sequence[str]]) -> bool:
    """Whether a line or its recipe has the key `json`, which prints an object for programs."""
    return "json" in given or bool((file := recipe_of(given)) and read_keys(file).get("json"))


def recipe_of(given: Mapping[str, Sequence[str]]) -> Path | None:
    """The file of the recipe that a line names."""
    return find_recipe(given["config"][-1]) if given.get("config") else None


_UNDER_PARAMETERS = (
    "; a key of the runs belongs under parameters: --parameters '{{{}: {{value: ...}}}}'"
)


def check_keys(script: Path, given: Mapping[str, Sequence[str]]) -> None:
    """Refuse keys that a script does not have, by the table of keys that is packaged.

    Those of the recipe that is given are looked at, too. With other versions of TRL and transformers
    than those of the table, the script itself refuses what it does not know, some seconds later.

    Raises:
        ConfigurationError: With these keys.
    """
    if not (known := keys_of(script)):
        return
    known.add("config")
    file = recipe_of(given)
    where = dict.fromkeys(read_keys(file) if file else (), str(file))
    where |= dict.fromkeys(given, "command line")
    if unknown := [key for key in where if str(key).removeprefix("no_") not in known]:
        of_runs = keys_of(script.with_name("grpo.py")) if script.stem == "sweep" else set()
        meant = (
            _UNDER_PARAMETERS.format(key) if key in of_runs else named_here(str(key), known)
            for key in unknown
        )
        said = zip(unknown, meant, strict=True)
        raise ConfigurationError(
            [f"{where[key]}: unknown key {key!r}{clause}" for key, clause in said]
        )


def keys_of(script: Path) -> set[str]:
    """The keys of a script, from the table that ``make docs`` writes; empty if that is not of here."""
    table = read_asset("keys.yaml")
    if any(version(name) != of_table for name, of_table in table["versions"].items()):
        return set()
    return {*table["keys"][script.stem]}


def first_line(script: Path, given: Mapping[str, Sequence[str]]) -> str:
    """The recipe that a command is about to use, and its folder; empty if it will soon say more."""
    default = read_asset("keys.yaml")["recipes"].get(script.stem)
    if default is None:
        return "loading …" if script.stem in ("evaluate", "export") else ""
    line = {key: values[-1] for key, values in given.items() if values}
    file = find_recipe(line["config"]) if "config" in line else script.with_name(default)
    content = read_keys(file)
    recipe = content if "config" in line else usual(content, line)
    what = f"recipe {file}" if "config" in line else f"recipe {file.stem}, as no --config is given"
    if recipe.get("learning_rate") != content.get("learning_rate"):
        model = line[MODEL]
        what = f"no --config is given, so {model} is trained with TRL's defaults"
        what += f" (--config {file.stem} is the packaged model's recipe)"
    name = recipe.get("name", "sweep") if script.stem == "sweep" else file.stem
    folder = line.get("output_dir") or recipe.get("output_dir", f"runs/{name}")
    return what if script.stem == "diagnose" else f"{what}; output in {folder}"


def usage() -> str:
    """Three examples, then the commands, each with the first sentence of its script."""
    package = Path(__file__).parents[2]
    files = SCRIPTS | {
        name: package / f"{path.replace('.', '/')}.py" for name, path in MODULES.items()
    }
    lines = {name: _first_sentence(path) for name, path in files.items()}
    lines["recipes"] = (
        "List the packaged recipes; recipes show NAME explains one, copy NAME copies it."
    )
    more = help_entries()["usage"].format(configs=", ".join(shipped_names("accelerate_configs")))
    entries = [entry(f"  {name:<10} ", text) for name, text in lines.items()]
    head = "rookworld COMMAND [--config RECIPE] [--key value ...]"
    examples = [f"  {line}" for line in help_entries()["examples"].splitlines()]
    return "\n".join([head, "", *examples, "", *entries, "", wrapped(more, 0)])


def command_line(command: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options for accelerate's launcher, empty if not needed, and the script with its arguments.

    Raises:
        ConfigurationError: An option for several processes or machines is missing.
    """
    (_, rest), *given = options(words)
    launcher: dict[str, str] = {}
    for key, values in given:
        if key not in LAUNCHER:
            rest += [f"--{key}", *values]
        elif len(values) == 1:
            launcher[key] = values[0]
        else:
            raise ConfigurationError([f"--{key}: {' '.join(values)!r} is not one value; give one"])
    line = [str(SCRIPTS[command]), *rest]
    if not launcher:
        return [], line
    file = _accelerate_config(launcher.pop("accelerate_config", "") or _usual_config())
    more = chain(*((f"--{key}", value) for key, value in launcher.items()))
    return ["--config_file", file, *more, *_of_machines(Path(file), launcher)], line


def _of_machines(file: Path, given: Mapping[str, str]) -> list[str]:
    """Further options for several machines; empty for one.

    Raises:
        ConfigurationError: The file cannot be read, or options are missing, with which accelerate would
            wait for ever.
    """
    known = {**read_keys(file, "--accelerate_config: "), **given}
    if str(known.get("num_machines", 1)) == "1":
        return []
    known["machine_rank"] = given.get("machine_rank")  # the file's is one machine's
    needed = ("machine_rank", "main_process_ip", "main_process_port")
    if missing := [key for key in needed if known.get(key) in (None, 0)]:
        why = "missing; on several machines give each its machine_rank, from 0, and the address and a "
        raise ConfigurationError([f"--{key}: {why}free port of rank 0" for key in missing])
    return ["--same_network"]


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
    # The script handles Ctrl-C; wait for it.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        launch_command(launch_command_parser().parse_args(list(words)))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except subprocess.CalledProcessError as error:
        code = error.returncode
    except SignalException as error:
        code = -int(error.sigval)
    else:
        return 0
    return 128 - code if code < 0 else code  # as a shell gives that of a signal


def recipes(words: Sequence[str]) -> list[str]:
    """A table of the recipes, what one of them is for, or a copy of one."""
    from .catalogue import recipe_table, recipe_text, recipes_help

    if not words:
        return recipe_table()
    if {"--help", "-h"} & {*words} or words == ["help"]:
        return recipes_help()
    does, *given = words
    if len(given) not in {"show": (1,), "copy": (1, 2)}.get(does, ()):
        said = f"recipes {' '.join(words)}: not known; rookworld recipes lists them, recipes show NAME "
        raise ConfigurationError(
            [f"{said}says what one is for, recipes copy NAME [WHERE] copies it"]
        )
    name, names = given[0].removesuffix(".yaml"), shipped_names("recipes")
    if name not in names:
        close = close_matches(name, names) or "; rookworld recipes lists them"
        raise ConfigurationError([f"there is no recipe {given[0]!r}{close}"])
    return recipe_text(name) if does == "show" else [str(_copied(name, Path(*given[1:])))]


def _copied(name: str, target: Path) -> Path:
    """Copy a recipe to a file or into a folder; the new file.

    Raises:
        ConfigurationError: There is such a file.
    """
    target = target if target.suffix == ".yaml" else target / f"{name}.yaml"
    if target.exists():
        raise ConfigurationError([f"{target} exists already; remove it, or name another place"])
    target.parent.mkdir(parents=True, exist_ok=True)
    recipe = shipped("recipes") / f"{name}.yaml"
    replace_text(target, recipe.read_text(encoding="utf-8"))
    return target


def _accelerate_config(name: str) -> str:
    """The file of an accelerate configuration, given as a name or as a file."""
    if Path(name).is_file():
        return name
    names = shipped_names("accelerate_configs")
    if name not in names:
        here = ", ".join(names)
        raise ConfigurationError([f"--accelerate_config: {name!r} is not a file or one of {here}"])
    return str(shipped("accelerate_configs") / f"{name}.yaml")


def _usual_config() -> str:
    import torch  # takes a second, so only if several processes are launched

    return "multi_gpu" if torch.accelerator.is_available() else "cpu"


def _first_sentence(path: Path) -> str:
    return path.read_text(encoding="utf-8").split('"""')[1].split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":  # python -m, if the shell does not find the command, as in a notebook
    main()
