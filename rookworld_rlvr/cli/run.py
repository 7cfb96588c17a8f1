"""How a script is called, runs and ends: its command, its devices, what comes next, what went wrong."""

from __future__ import annotations

import dataclasses
import gc
import io
import logging
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..common.errors import EXIT_INTERRUPTED, RookWorldError
from ..common.files import find_recipe, read_keys, shipped
from ..common.machine import has_gpu, reaches_hub
from ..common.terminal import drop_stdout, printable, unwatch_ctrl_c
from ..models.loading import PACKAGED_MODEL
from .help_text import MODEL, help_entries, key_of

if TYPE_CHECKING:
    from .failures import Others

_FOUND = {path.stem: path for path in sorted(shipped("recipes").glob("*.py"))}
SCRIPTS = {name: _FOUND[name] for name in help_entries()["commands"] if name in _FOUND} | _FOUND
"""Command → the script in ``recipes/`` that it runs."""

MODULES = {name: f"rookworld_rlvr.inference.{name}" for name in ("analyse", "play", "uci")} | {
    path.parent.name: f"rookworld_rlvr.extras.{path.parent.name}.__main__"
    for path in sorted(Path(__file__).parents[1].glob("extras/*/__main__.py"))
}
"""Command → the module that it runs."""


POSITIONAL = {"evaluate": MODEL, "export": MODEL, "report": "run"}
"""Script → the key that words without one belong to, where only one thing can be meant."""


NEUTRAL = ("rewards", "dataset_name", "dtype", "bf16")
"""The keys of the packaged model's recipe that serve any other model too."""


# TRL 1.16 itself uses these deprecated names, so the user can do nothing about the warning.
warnings.filterwarnings("ignore", message=r"`(is_)?gradient_checkpointing\w*` is deprecated")


# peft sets it right for GPT-2's Conv1D by itself, and torch's is said on every machine without a GPU.
warnings.filterwarnings("ignore", message="fan_in_fan_out is set|'pin_memory' argument is set")


# --------------------------------------------------------------------------------------------------
# The command line
# --------------------------------------------------------------------------------------------------
def command_name() -> str:
    """How to call the script that is running: by its command, or by its file."""
    script = Path(sys.argv[0])
    return f"rookworld {script.stem}" if script.stem in SCRIPTS else script.name


def options(line: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The keys of a command line with the words after each, the first with what comes before any.

    >>> options(["--learning-rate=1e-5", "--tasks", "policy", "environment"])[1:]
    [('learning_rate', ['1e-5']), ('tasks', ['policy', 'environment'])]
    """
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in line:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            found.append((key_of(flag), [value] if equals else []))
        else:
            found[-1][1].append(word)
    return found


def usual(recipe: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What applies of the usual recipe, which is used without ``--config``.

    Its learning rate and lengths suit the packaged model only, so that any other one is trained with
    the defaults. A model or data set of one's own has a folder of its own.

    Args:
        recipe: The keys of the usual recipe.
        given: Those of the command line.
    """
    if MODEL not in recipe:
        return recipe
    model, data = given.get(MODEL), str(given.get("dataset_name", ""))
    has_other_model = model not in (None, PACKAGED_MODEL)
    has_own_data = bool({"/", "."} & set(data))  # a file, or on the Hub
    if not (has_other_model or has_own_data):
        return recipe
    name = Path(str(model)).name if has_other_model else Path(data).stem
    folder = f"runs/{Path(recipe['output_dir']).name.partition('_')[0]}-{name}"
    if has_other_model:
        recipe = {key: recipe[key] for key in NEUTRAL if key in recipe}
    return {**recipe, "output_dir": folder}


# --------------------------------------------------------------------------------------------------
# From its start to its end
# --------------------------------------------------------------------------------------------------
def run_cli(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run a script's `main`; for bad input, print one message without traceback and exit with code 2.

    If `main` raises on one of several processes, all of them end, and the first one says why.
    """
    if "torch" in sys.modules:  # a report needs none of it
        _choose_devices()
    for name in ("modeling_utils", "trainer", "trainer_utils"):
        logging.getLogger(f"transformers.{name}").addFilter(_is_no_false_alarm)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log file is read while it grows
    if "datasets" in sys.modules and not sys.stderr.isatty():
        _hide_bars()  # they would fill a log file
    code: Any = 0
    others = _others_of_this_run()
    if "resume_from_checkpoint" not in _keys(main):  # training takes Ctrl-C itself, once it begins
        unwatch_ctrl_c()
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        code = _say("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ended:
        code = ended.code
    except BrokenPipeError:
        if "resume_from_checkpoint" in _keys(main):
            raise  # training does not end because nobody reads what it prints
        drop_stdout()  # the reader left: `| head`
        code = 128 + signal.SIGPIPE
    except Exception as error:
        from .failures import EXIT_BAD_INPUT, text_of

        text = text_of(error, _keys(main))
        if others is not None:
            code = others.failed(error if text is None else RookWorldError(text), command_name())
        elif text is not None:
            code = _say(text, EXIT_BAD_INPUT)
            drop_stdout()
        else:
            raise
    if others is not None:
        others.end()
    _close_process_group()
    raise SystemExit(code)


def _hide_bars() -> None:
    """Show no progress bars, which would fill a log file."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()  # the Hub's too


def _choose_devices() -> None:
    """Use one GPU without a launcher; transformers would spread the model over all of them."""
    import torch

    if "LOCAL_RANK" in os.environ:
        if not torch.accelerator.is_available():
            # accelerate's launcher does not pass `use_cpu` on to several processes; without it, each
            # process would run as if it were the only one.
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    elif (count := torch.cuda.device_count()) > 1:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        os.environ["CUDA_VISIBLE_DEVICES"] = first
        said = f"one of {count} GPUs is used; --num_processes {count} uses all of them"
        print(said, file=sys.stderr)  # stdout may be read by a program


def _keys(main: Callable[[Sequence[str]], None]) -> set[str]:
    """A script's keys."""
    groups: Sequence[type] = getattr(main, "__globals__", {}).get("GROUPS", ())
    return {item.name for kind in groups for item in dataclasses.fields(kind)}


def _say(text: str, code: int) -> int:
    """Print on one process why a script ends."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{command_name()}: {printable(text)}", file=sys.stderr)
    return code


def _others_of_this_run() -> Others | None:
    """The other processes; None for a single one, and without torch's launcher."""
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not has_store or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from .failures import Others

    return Others()


def _close_process_group() -> None:
    """Leave the process group before the interpreter shuts down.

    If a gloo thread releases its last tensor during the shutdown, it aborts the process, and a finished
    run ends with SIGABRT (PyTorch issue 190489). vLLM leaves its own groups first, which it could not
    do later.
    """
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # a trainer has reference cycles, which would keep the group and its threads
        if engine := sys.modules.get("vllm.distributed"):
            engine.cleanup_dist_env_and_memory()
        else:
            torch.distributed.destroy_process_group()


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    """Whether a warning is worth showing; four of transformers' are not.

    One is that `generate` got no attention mask, for a batch without padding. One is that a checkpoint
    lacks the head, when the head is tied to the embedding. One is that arguments have changed since a
    checkpoint, which its run says in other words. And one is that the best checkpoint has gone, when the
    run's folder was renamed.
    """
    text = str(record.msg)
    if "do not match the ones in the `trainer_state.json`" in text:
        return False
    if "recorded in the resumed state does not exist" in text:
        return False
    return "passing in an `attention_mask`" not in text and not text.endswith("['lm_head.weight'].")


# --------------------------------------------------------------------------------------------------
# What comes next: the commands that a training run suggests at its end
# --------------------------------------------------------------------------------------------------
_KEPT_BY_SFT = (
    *("dataset_name", "tasks_from", "tasks", "eval_dataset_name", "heldout_share"),
    *("labels", "max_completion_length"),
)


_LARGER, _LARGER_MODEL = "grpo_mixed", "jrahn/RookWorld-LM-124M"  # needs a GPU, and the Hub
_LONGER = "grpo_policy_nano"  # goes on from the packaged recipe's end, on any machine


def next_commands(
    output_dir: Path,
    start: str,
    given: Mapping[str, Any],
    command: str = "grpo",
    rows: int | None = None,
) -> str:
    """The commands to suggest after a run: look at it, evaluate it, train on.

    They run on this machine: nothing is from the Hub if it is not reached, no recipe in bf16 without a
    GPU.

    Args:
        output_dir: The run's folder.
        start: The starting model.
        given: The keys that it was given: the user's own tasks, and after supervised training which
            rows to go on with.
        command: The command that ran.
        rows: Rows it trained on, which may be too few for a batch of the packaged model's recipe.
    """
    folder = shlex.quote(str(output_dir))
    lines = [f"evaluate {shlex.quote(start)} {folder}"]
    if command == "grpo" and "report" in SCRIPTS:
        lines.insert(0, f"report {folder}{_typed_keys(given, ['tasks_from'])}")
    if command == "sft":
        # The packaged model's recipe suits what is trained from it; others get TRL's defaults.
        usual = f" --config grpo_nano --output_dir {folder}-grpo" if start == PACKAGED_MODEL else ""
        recipe = read_keys(find_recipe("grpo_nano"))
        most = (rows or 1_000) * recipe["num_generations"]
        if usual and most < recipe[(key := "per_device_train_batch_size")]:
            usual += f" --{key} {most}"
        kept = _typed_keys(given, _KEPT_BY_SFT) + _rewards_for(given.get("tasks") or [])
        lines.append(f"grpo{usual} --model {folder}{kept}")
    elif start == PACKAGED_MODEL and has_gpu() and reaches_hub(_LARGER_MODEL):
        lines += [f"recipes copy {_LARGER} .", f"grpo --config {_LARGER}.yaml   # after your edits"]
    elif start == PACKAGED_MODEL and output_dir.name != _LONGER:
        lines.append(f"grpo --config {_LONGER} --model {folder}   # trains on, for better moves")
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
