"""The command `rookworld`: what it runs, what it copies, and that it works from a wheel alone."""

import os
import re
import signal
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from rookworld_rlvr.cli.main import command_line, main, recipes, usage
from rookworld_rlvr.cli.run import MODULES, SCRIPTS
from rookworld_rlvr.common.errors import ConfigurationError

from ..support import RECIPES, REPOSITORY, ran, started

MAIN = "from rookworld_rlvr.cli.main import main; main()"


def rookworld(*words: str, python: str = sys.executable, cwd: Path, code: int = 0) -> Any:
    return ran(python, "-c", MAIN, *words, cwd=cwd, timeout=240, code=code)


def test_every_script_is_a_command_and_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert {*SCRIPTS.values()} == {*RECIPES.glob("*.py")} and SCRIPTS["grpo"].stem == "grpo"
    text = re.sub(r"\n {10,}", " ", usage())
    for name in (*SCRIPTS, *MODULES):
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith("."), "a sentence"
    examples = usage().split("\n\n")[1].splitlines()
    assert [line.split()[:2] for line in examples] == [
        ["rookworld", name] for name in ("grpo", "report", "analyse")
    ]
    for listed in (usage(), "\n".join(recipes([]))):
        assert max(map(len, listed.splitlines())) <= 80, listed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plai"], "rookworld: 'plai' is not a command; did you mean play"),
        (["train"], "'train' is not a command; rookworld grpo trains a model"),
        (["grpo", "--num_processes"], "--num_processes: '' is not one value"),
        (["grpo", "--accelerate_config", "gpus"], "'gpus' is not a file or one of cpu, "),
        (["recipes", "copy", "grpo_mix"], "no recipe 'grpo_mix'; did you mean grpo_mixed"),
        (["recipes", "show", "xyz"], "no recipe 'xyz'; rookworld recipes lists them"),
        (["recipes", "show"], "recipes show: not known; rookworld recipes lists them"),
        (["evaluate", "runs/no"], "there is no folder 'runs/no'"),
        (["export", "--model", "runs/no"], "there is no folder 'runs/no'"),
        (["recipes", "copy", "grpo_nano", "/proc"], "cannot use '/proc/grpo_nano.yaml' (No such"),
        (["recipes", "copy", "grpo_nano", "/proc/no/x.yaml"], "cannot use '/proc/no' (No such"),
        (["recipes", "copy", "grpo_nano", "/dev/null"], "cannot use '/dev/null' (File exists)"),
    ],
)
def test_faults_name_the_remedy(words: list[str], said: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["rookworld", *words])
    monkeypatch.delattr(os, "execv")  # it would replace this process
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert said in err and not out


@pytest.mark.parametrize("words", ["recipes", "--help", "analyse --move e2e4", "audit --help"])
def test_output_that_cannot_be_written_is_one_message(words: str, tmp_path: Path) -> None:
    line = [sys.executable, "-c", MAIN, *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 2 and ": the disk is full (" in said


def test_several_processes_are_launched() -> None:
    script = str(RECIPES / "grpo.py")
    assert command_line("grpo", ["--max_steps", "3"]) == ([], [script, "--max_steps", "3"])
    fsdp2 = str(REPOSITORY / "accelerate_configs" / "fsdp2.yaml")
    words = ["--accelerate_config=fsdp2", "--max_steps=3", "--num_processes", "8"]
    options = ["--config_file", fsdp2, "--num_processes", "8"]
    assert command_line("grpo", words) == (options, [script, "--max_steps", "3"])
    usual, _ = command_line("grpo", ["--num_processes", "2"])
    assert Path(usual[1]).stem in ("cpu", "multi_gpu"), "what this machine has"


@pytest.mark.slow
def test_a_fault_on_two_processes_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    words = ["grpo", "--accelerate_config", "cpu", "--num_processes", "2", "--learning_rate", "-1"]
    done = rookworld(*words, cwd=tmp_path, code=2)
    assert done.stderr.count("learning_rate: -1.0 is too small") == 1


@pytest.mark.slow
@pytest.mark.parametrize("who", ["0", "1", "launcher", "all", "terminal"])
def test_a_signal_stops_two_processes_after_the_same_step(who: str, tmp_path: Path) -> None:
    """Schedulers send SIGTERM to the launcher, to one process or to all, a terminal Ctrl-C."""
    words = "grpo --accelerate_config cpu --num_processes 2 --max_steps 500 --heldout_rows 6"
    words += " --per_device_train_batch_size 16 --report_to none --logging_steps 1"
    words += " --eval_steps 500 --save_steps 500 --output_dir run"
    command = [sys.executable, "-uc", MAIN, *words.split()]
    process = started(*command, cwd=tmp_path, start_new_session=True)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("step     2/500"))
    number = signal.SIGINT if who == "terminal" else signal.SIGTERM
    if who == "terminal":
        os.killpg(process.pid, number)
    else:
        launcher = psutil.Process(process.pid)
        named = {child.environ().get("RANK"): child for child in launcher.children(recursive=True)}
        for name, target in {**named, "launcher": launcher}.items():
            if name is not None and who in ("all", name):
                target.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "Traceback" not in err and "--resume_from_checkpoint auto to go on" in out
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2, "both processes saved their part"


def test_recipes_are_a_table_and_each_is_explained() -> None:
    head, *lines = recipes([])
    rows = [line.split(maxsplit=4) for line in lines[: lines.index("")]]
    assert head.split() == ["name", "model", "on", "minutes", "needs"]
    assert {row[0] for row in rows} == {path.stem for path in RECIPES.glob("*.yaml")}
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["grpo_nano"] == ["rookworld-nano", "CPU", "2", "-"]
    assert by_name["grpo_rookworld"][1:] == ["GPU", "-", "the Hub, Stockfish"]
    if "grpo_fill_in_judge" in by_name:  # the judge may have been taken away
        assert by_name["grpo_fill_in_judge"][-1] == "sft_fill_in, judge_fill_in", "what runs first"
    assert by_name["sft_nano"][-1] == "runs/untrained", "no recipe makes it"
    if "sweep_environment" in by_name:
        assert by_name["sweep_environment"][0] == "RookWorld-LM-124M", "that of what it varies"
    for name in by_name:
        text = "\n".join(recipes(["show", name]))
        assert "\n  rookworld " in text, "its command, on a line of its own"
        assert not any(word in text for word in ("Minutes:", "Start:", "Rows:"))
        assert f"recipes copy {name} copies it" in text
    assert by_name["grpo_policy_nano"] == ["grpo_nano", "CPU", "14", "grpo_nano"], "as measured"
    assert by_name["grpo_learning"][-1] == "benchmarks/learning.py"
    assert by_name["grpo_games"][-1] == "prepare_moves", "a file of rows, which is not on the Hub"
    if "evolve_nano" in by_name:
        assert by_name["evolve_nano"][-1] == "grpo_nano, Stockfish"
    shown = "\n".join(recipes(["show", "grpo_policy_nano.yaml"]))
    assert shown.startswith("GRPO for better moves with rookworld-nano")
    assert "minutes   14 (two fast cores; twice that on slow ones)" in shown
    assert "model     rookworld-nano; measured from runs/grpo_nano (--model)" in shown
    assert recipes(["--help"]) == recipes(["show", "-h"]) == recipes(["help"])
    assert "copy NAME [WHERE]" in "\n".join(recipes(["--help"]))


def test_recipes_are_copied_but_never_over_another(tmp_path: Path) -> None:
    (path,) = recipes(["copy", "grpo_mixed", str(tmp_path / "mine")])
    assert Path(path).read_text() == (RECIPES / "grpo_mixed.yaml").read_text()
    with pytest.raises(ConfigurationError, match="exists"):
        recipes(["copy", "grpo_mixed.yaml", str(tmp_path / "mine")])
    assert recipes(["copy", "grpo_mixed", file := str(tmp_path / "my.yaml")]) == [file]
    assert Path(file).is_file()


@pytest.fixture(scope="module")
def from_a_wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with this package from a wheel, its dependencies lent."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(REPOSITORY)]
    subprocess.run(wheel, check=True)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = str(environment / "bin" / "python")
    (own,) = environment.glob("lib/python*/site-packages")
    (file,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", str(file)], check=True)
    (own / "lent.pth").write_text("\n".join(site.getsitepackages()))
    return python


@pytest.mark.slow
def test_a_wheel_trains_and_reports(from_a_wheel: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the clone would come before the wheel
    done = rookworld("recipes", "copy", "grpo_nano", python=from_a_wheel, cwd=tmp_path)
    assert done.stdout.strip() == "grpo_nano.yaml"
    small = "--max_steps 1 --per_device_train_batch_size 16 --heldout_rows 6 --report_to none"
    for recipe in ("grpo", "grpo --config grpo_nano.yaml"):
        words = f"{recipe} {small} --output_dir run".split()
        out = rookworld(*words, python=from_a_wheel, cwd=tmp_path).stdout
        assert "held-out metric" in out
        command = f"{Path(from_a_wheel).with_name('rookworld')} report run"
        assert command in out, "what comes next, as it is typed here"
    rookworld("report", "--run", "run", python=from_a_wheel, cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    resolved = yaml.safe_load((tmp_path / "run" / "provenance.json").read_text())
    assert str(REPOSITORY) not in resolved["sessions"][0]["command"], "the wheel's own script"
