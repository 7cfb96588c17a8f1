"""Every command that the package prints, run as it stands, in a folder outside of the clone."""

import importlib
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest

from rookworld_rlvr.cli.run import MODULES, SCRIPTS, next_commands

from ..killed import run as run_apart
from ..support import REPOSITORY, recipe
from .pages import commands, run

NOT_RUN = {
    "rookworld prepare --config prepare_policy": "reads seven million rows from the Hub",
    "rookworld prepare --config prepare_policy --cluster local": "the same",
    "rookworld prepare --config prepare_games": "plays games for minutes",
    "rookworld audit --dataset_name jrahn/rookworld_7m --max_rows 100000": "reads from the Hub",
    "rookworld workspace --project rookworld-rlvr --entity you": "needs an account at W&B",
    "rookworld workspace --output_file workspace.json": "tests/extras/workspace runs it",
    "rookworld sweep --config sweep_nano --count 8": "tests/extras/sweep runs it",
    "rookworld sweep --config sweep_nano --count 12": "the same",
    "rookworld export runs/grpo_nano --format onnx --output_file nano.onnx": (
        "tests/recipes/test_export.py runs it, where its packages are"
    ),
    "rookworld export jrahn/RookWorld-LM-124M --format gguf --output_file rookworld.gguf": "the same",
}
"""What the tests do not run, and why; the commands of an audit are run by its own tests."""

STRINGS = [
    path
    for pattern in ("rookworld_rlvr/**/*.py", "rookworld_rlvr/assets/**/*.[yj]*", "recipes/*.py")
    for path in REPOSITORY.glob(pattern)
]


def printed() -> list[str]:
    """The commands of the help texts, and those that a run ends with."""
    modules = [*map(recipe, SCRIPTS), *map(importlib.import_module, MODULES.values())]
    text = "\n".join(module.__doc__ or "" for module in modules).replace("\\\n", " ")
    text += "\n" + next_commands(Path("runs/grpo_nano"), "rookworld-nano", {})
    lines = [re.sub(r"^\S*rookworld ", "rookworld ", line.strip()) for line in text.splitlines()]
    shown = (line for line in lines if line.startswith("rookworld "))
    return list(dict.fromkeys(shlex.join(words) for line in shown for words in commands(line)))


def test_a_command_that_a_message_names_exists() -> None:
    assert set(NOT_RUN) <= set(printed())
    command = re.compile(r"(?<![\w/-])rookworld (?:`\")?([a-z]+)\b( --\w+)*")
    for path in STRINGS:
        for name, options in command.findall(path.read_text(encoding="utf-8")):
            assert name in {*SCRIPTS, *MODULES, *([] if options else ["recipes"])}, path


def test_after_sft_the_same_rows_are_suggested() -> None:
    given = {"dataset_name": "my rows.txt", "tasks": ["environment"], "max_steps": 3}
    given["max_completion_length"] = "137"
    of_mine = partial(next_commands, Path("runs/mine"), "rookworld-nano")
    words = "grpo --config grpo_nano --output_dir runs/mine-grpo --model runs/mine "
    words += "--dataset_name 'my rows.txt' --tasks environment --max_completion_length 137"
    assert of_mine(given, "sft").splitlines()[-1].endswith(words)
    text = of_mine({**given, "tasks": ["policy", "fill_in"]}, "sft")
    assert " --tasks policy fill_in --max_completion_length 137" in text
    assert text.endswith(" --rewards policy_best_move fill_in_exact")
    text = of_mine({}, "sft", rows=15)
    assert "--output_dir runs/mine-grpo --per_device_train_batch_size 120 --model" in text
    assert "--per_device_train_batch_size" not in of_mine({}, "sft", rows=16)


def test_what_comes_next_runs_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(folder: str = "runs/grpo_nano", start: str = "rookworld-nano") -> str:
        return next_commands(Path(folder), start, {}).splitlines()[-1].split("rookworld ", 1)[1]

    for has_gpu in (True, False):
        for reaches_hub in (True, False):
            where = {"has_gpu": has_gpu, "reaches_hub": reaches_hub}
            for name, answer in where.items():
                monkeypatch.setattr(
                    f"rookworld_rlvr.cli.run.{name}", lambda *_, answer=answer: answer
                )
            if all(where.values()):
                assert last().startswith("grpo --config grpo_mixed.yaml ")
            else:
                assert last().startswith("grpo --config grpo_policy_nano --model runs/grpo_nano ")
    of_that = last("runs/grpo_policy_nano")
    assert of_that.startswith("grpo --config runs/grpo_policy_nano/resolved_config.yaml ")
    assert last("runs/b", "runs/a").startswith("grpo --config runs/b/resolved_config.yaml ")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["environment", "fill_in"])
def test_what_sft_prints_runs_as_it_stands(task: str, tmp_path: Path) -> None:
    def said(name: str, line: str) -> str:
        code, said = run_apart(name, shlex.split(line), tmp_path)
        assert code == 0, said
        return said

    made = {"environment": "--synthetic_rows 150", "fill_in": "--synthetic_fill_in_rows 150"}[task]
    said("prepare.py", f"{made} --output_file rows.parquet")
    words = f"--model_name_or_path rookworld-nano --dataset_name rows.parquet --tasks {task}"
    small = "--max_steps 1 --heldout_rows 2 --report_to none --use_cpu"
    printed = said("sft.py", f"{words} --output_dir runs/mine {small}")
    (line,) = re.findall(" grpo (--.*)", printed)
    said("grpo.py", f"{line} {small} --per_device_train_batch_size 2 --num_generations 2")


@pytest.mark.slow
def test_every_printed_command_runs_as_it_stands(tmp_path: Path, stockfish: str) -> None:
    line = "P: 6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1 M: a1a8 a1a7 h2h4 E: 1.0 5.0 3.0 B: a1a8\n"
    for name in ("rows.txt", "puzzles.txt"):
        (tmp_path / name).write_text(line)
    (tmp_path / "positions.fen").write_text("6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1\n")
    lines = [line for line in printed() if line not in NOT_RUN]
    first = "rookworld grpo"  # the others ask the model that it leaves
    assert run(first.split(), tmp_path)
    for name in "ab":
        shutil.copytree(tmp_path / "runs" / "grpo_nano", tmp_path / "runs" / name)
    lines.sort(key=lambda line: line.startswith("rookworld report"))  # of what others leave
    for words in (next(commands(line)) for line in lines if line != first):
        assert run(words, tmp_path)
