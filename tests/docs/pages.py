"""The documentation as a reader uses it: its code fences in order, commands run small."""

import contextlib
import io
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml
from trl.cli import main as trl_main

from rookworld_rlvr.cli import main
from rookworld_rlvr.cli.run import MODULES
from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.common.files import find_recipe

from ..support import REPOSITORY, ran, script, started

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)

# Commands that need a network, an account, a package manager or hours. What they name must exist.
NOT_RUN = "accelerate apt-get brew cd git hf make pip python source trackio uv wandb".split()

TRAINING = """
    --max_rows 400 --synthetic_rows 40 --heldout_rows 4 --max_steps 1 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --gradient_accumulation_steps 1
    --dtype float32 --bf16 false --use_cpu --report_to none --dataloader_pin_memory false
""".split()
GROUPS = "--num_generations 4 --max_completion_length 24 --logging_steps 1".split()
NANO = "--model_name_or_path rookworld-nano --dataset_name rookworld-nano-openings".split()
SMALL: dict[str, list[str]] = {
    "grpo": [*NANO, *TRAINING, *GROUPS],
    "sft": TRAINING,
    "diagnose": [*NANO, *TRAINING, *GROUPS],
    "evaluate": "--suite_rows 4 --suite_games 1 --elo_games 2 --elo_pool material".split(),
    "judge": [*TRAINING, *"--train_pairs 40 --heldout_pairs 20".split()],
    "audit": ["--max_rows", "200"],
    "prepare": "--max_rows 4 --engine_depth 2 --synthetic_rows 4 --synthetic_policy_rows 4".split(),
}
"""What is put behind a command so that it takes seconds; what the page gives itself stays, but for a
model and data that have to be downloaded, and for many steps or games."""
FEWER = {"--games": "60", "--game_rows": "100", "--game_policy_rows": "12"}
"""What a page's own numbers are lowered to; its games would take minutes."""
ROUNDS: dict[str, Any] = {"rounds": 1, "games": 4, "plies": 2, "match_games": 2, "engine_depth": 2}
ROUNDS["train"] = {"max_steps": 2, "eval_steps": 1, "save_steps": 1, "heldout_rows": 4}
ROUNDS["train"] |= {"max_rows": 400, "synthetic_rows": 40}
ROUNDS["train"] |= {"per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none"}


def fences(page: Path) -> Iterator[tuple[str, str]]:
    yield from FENCE.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a console fence."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def follow(page: Path, folder: Path) -> int:
    """Do in a folder what a page says; how many commands and pieces of Python were run."""
    names: dict[str, Any] = {}
    done = 0
    for language, text in fences(page):
        if file := re.match(r"# file: (\S+)\n", text):
            (folder / file[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            with contextlib.chdir(folder):
                exec(compile(text, str(page), "exec"), names)
            done += 1
        elif language == "console":
            done += sum(run(words, folder) for words in commands(text))
    return done


def run(words: list[str], folder: Path) -> bool:
    """Run a command small, and whether it was run: of others only what they name is looked for."""
    command, given = "".join(words[1:2]), words[2:]
    if words[0] == "trl":
        run_trl(words[1:], folder)
    elif words[0] != "rookworld":
        assert words[0] in NOT_RUN, f"{words}: neither run nor listed as one that is not"
        for word in words[1:]:
            if word.startswith(("recipes/", "benchmarks/", "accelerate_configs/")):
                assert (REPOSITORY / word).exists(), word
        if words[0] == "make" and "-C" not in words:
            targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
            assert command in targets, words
        return False
    elif command == "recipes" or command.startswith("-"):
        with contextlib.chdir(folder):
            assert main.recipes(given) if command == "recipes" else main.usage()
    elif command == "uci":  # an engine ends its process
        module = ("-m", MODULES[command], *given)
        assert "uciok" in ran(sys.executable, *module, input="uci\nquit\n", cwd=folder).stdout
    elif command == "web" and "--space" not in given:
        run_page(given, folder)
    elif command in MODULES:
        run_module(MODULES[command], given, folder)
    else:
        code = None if command == "diagnose" else 0  # 1: a run should not start like this
        given = small(command, main.command_line(command, given)[1][1:], folder)
        with pytest.MonkeyPatch.context() as patch:
            if rounds := extra("evolve.rounds"):
                patch.setattr(rounds, "run_child", partial(train, folder))
            done = script(f"{command}.py", *given, cwd=folder, code=code)
        assert done.returncode in (0, 1), (words, done.stderr[-2000:])
    return True


def train(folder: Path, words: list[str], log: Path) -> int:
    """Train a round in this process; `test_evolve` starts the real child."""
    line = main.command_line("grpo", words[words.index("grpo") + 1 :])[1]
    return script("grpo.py", *line[1:], cwd=folder).returncode


def small(command: str, words: list[str], folder: Path) -> list[str]:
    """The words with what makes them quick; a key that the page gives is not given twice."""
    if "--help" in words:
        return words
    for key in {"--max_steps", "--suite_games", "--elo_games", "--overfit_single_batch"} & {*words}:
        words[words.index(key) + 1] = "2"
    for key in FEWER.keys() & {*words}:  # 0 stays 0
        words[words.index(key) + 1] = min(words[words.index(key) + 1], FEWER[key], key=int)
    given = {word for word in words if word.startswith("--")}
    recipe: dict[str, Any] = {}
    if "--config" in given:
        with contextlib.chdir(folder):
            recipe = yaml.safe_load(find_recipe(words[words.index("--config") + 1]).read_text())
    if command == "sweep":  # its trials are made small
        trial = ["${interpreter}", "${program}", "${args}", *TRAINING, *GROUPS]
        (folder / "sweep.yaml").write_text(yaml.safe_dump({**recipe, "command": trial}))
        return ["--config", "sweep.yaml", "--count", "1"]
    if command == "evolve":
        recipe = yaml.safe_load(find_recipe("evolve_nano").read_text())
        (folder / "evolve.yaml").write_text(yaml.safe_dump({**recipe, **ROUNDS}))
        if "--config" in words:  # that recipe, made small
            del words[words.index("--config") : words.index("--config") + 2]
        return ["--config", "evolve.yaml", *("2" if word == "5" else word for word in words)]
    if str(recipe.get("dataset_name")).startswith("rookworld-"):
        given.add("--dataset_name")  # it is packaged
    options = re.findall(r"--\w+(?: (?!--)\S+)*", " ".join(SMALL.get(command, [])))
    extra = (option.split() for option in options if option.split()[0] not in given)
    return [*words, *chain.from_iterable(extra)]


def run_page(words: list[str], folder: Path) -> None:
    """The page, which is served until it is interrupted."""
    options: Any = {"cwd": folder, "stderr": None}
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # as in front
    with started(sys.executable, "-m", MODULES["web"], *words, **options) as page:
        said = [line for _, line in zip(range(2), page.stdout, strict=False)]
        page.send_signal(signal.SIGINT)
        try:
            assert page.wait(timeout=60) == 130, said
        finally:
            page.kill()
    assert "the page is at http://127.0.0.1:" in said[-1], said


def run_module(module: str, words: list[str], folder: Path) -> None:
    """One of the commands that are modules; a person who is asked something leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [module, *words])
        patch.setattr(sys, "stdin", io.StringIO("quit\n"))
        with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
    assert not ended.value.code, words


def run_trl(words: list[str], folder: Path) -> None:
    """A command of TRL's, whose script runs in this process and not under `accelerate launch`."""

    def launch(script_name: str, launch_args: list[str], training_script_args: list[str]) -> None:
        assert not launch_args, "words that the script does not know"
        patch.setattr(sys, "argv", [script_name, *training_script_args])
        patch.setattr(sys, "path", [*sys.path])  # the script puts the folder in front
        runpy.run_path(f"{Path(trl.__file__).parent}/scripts/{script_name}", run_name="__main__")

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.setattr("trl.cli.accelerate_launcher.launch_training_script", launch)
        assert trl_main(words) == 0
