"""Sweeps: draws, commands as W&B's agent writes them, and the agent of the project on real trials."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args, load_sweep_config

from rookworld_rlvr.cli.main import first_line, main, recipes
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.extras.sweep import trials as sweeps
from rookworld_rlvr.extras.sweep.trials import SweepArguments, ranking, read_score, run_trial

from ... import killed
from ...engines import wait_until
from ...recipes.test_recipes import SMALL
from ...support import RECIPES, REPOSITORY, recipe, script

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="others let a trial outlive its agent")
METRIC = {"name": "eval/overall", "goal": "maximize"}


def sweep(parameters: dict[str, Any], method: str = "random", **keys: Any) -> SweepArguments:
    keys = {"metric": METRIC, "count": None if method == "grid" else 5, **keys}
    return SweepArguments(method=method, parameters=parameters, **keys)


def agent(*argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return script("sweep.py", *argv, cwd=REPOSITORY, code=code)


def write_sweep(path: Path, parameters: dict[str, Any], **keys: Any) -> None:
    """A grid over the recipe run small; `parameters` in place of, or beside, its options."""
    words = [word for word in SMALL if word != "--use_cpu"]
    fixed = dict(zip(words[::2], words[1::2], strict=True))
    fixed |= {"--max_steps": "1", "--heldout_rows": "4", "--use_cpu": "true"}
    command = ["${env}", "${interpreter}", "${program}", "--config", "recipes/grpo_nano.yaml"]
    command += [word for option in fixed.items() for word in option] + ["${args}"]
    usual = {"program": "recipes/grpo.py", "method": "grid", "metric": METRIC, "command": command}
    path.write_text(yaml.safe_dump({**usual, "parameters": parameters, **keys}))


def test_a_trial_is_the_same_whatever_the_count() -> None:
    parameters = {"beta": {"min": 0.0, "max": 1.0}, "seed": {"values": [1, 2, 3]}}
    assert sweep(parameters, count=9).trials()[:4] == sweep(parameters, count=4).trials()
    assert sweep(parameters, count=4, seed=1).trials() != sweep(parameters, count=4).trials()


def test_distributions() -> None:
    parameters = {
        "learning_rate": {"distribution": "log_uniform_values", "min": 1e-7, "max": 1e-3},
        "num_generations": {"min": 4, "max": 6},
        "tasks": {"value": ["environment"]},
    }
    drawn = sweep(parameters, count=2000).trials()
    exponents = [math.log10(values["learning_rate"]) for values in drawn]
    assert -7 <= min(exponents) < -6.9 and -3.1 < max(exponents) <= -3
    assert sum(exponents) / len(drawn) == pytest.approx(-5, abs=0.1)
    assert {values["num_generations"] for values in drawn} == {4, 5, 6}
    assert {values["tasks"] for values in drawn} == {'["environment"]'}
    drawn = sweep({"beta": {"values": [0, 0.1]}, "seed": {"values": [1, 2]}}, "grid").trials()
    assert [tuple(values.values()) for values in drawn] == [(0, 1), (0, 2), (0.1, 1), (0.1, 2)]


def test_the_command_is_the_one_of_wandb_s_agent() -> None:
    values = {"learning_rate": 3.2e-07, "zero_variance": "skip", "bf16": False, "seed": 8}
    words = sweep({"beta": {"value": 0}}, name="s").command_of(values, Path("runs/s/trial-000"))
    theirs = create_sweep_command_args({"args": {key: {"value": v} for key, v in values.items()}})
    assert words[:3] == ["/usr/bin/env", sys.executable, "recipes/grpo.py"]
    assert words[3:] == [*theirs["args"], "--output_dir=runs/s/trial-000"]


@pytest.mark.parametrize("name", [path.stem for path in RECIPES.glob("sweep_*.yaml")])
def test_trials_of_a_copied_sweep_parse(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (copied,) = recipes(["copy", name, "."])
    content = load_sweep_config(copied)
    assert content is not None
    content["parameters"] |= {"use_cpu": {"value": True}, "bf16": {"value": False}}
    arguments = SweepArguments(**content, count=30)
    trials = arguments.trials()
    for key, spec in content["parameters"].items():
        if "values" in spec:
            assert {trial[key] for trial in trials} == set(spec["values"])
    recipe("sweep").check_trials(arguments, trials[:8])
    assert arguments.name == name
    assert Path(arguments.command_of({}, Path("runs"))[2]) == RECIPES / "grpo.py"


def test_the_mean_of_two_shares_has_an_interval(tmp_path: Path) -> None:
    """R's prop.test(50, 100, correct = FALSE) gives [0.4038, 0.5962]; of two, it is narrower by √2."""
    entry = {"after": 0.5, "interval_after": [0.4038, 0.5962], "n": 100}
    names = ("environment/exact", "fill_in/exact")
    (tmp_path / "results.json").write_text(json.dumps({"heldout": dict.fromkeys(names, entry)}))
    one, both = (read_score(tmp_path / "results.json", f"eval/{n}") for n in (names[0], "overall"))
    assert (one.value, one.low, one.high) == pytest.approx((0.5, 0.4038, 0.5962), abs=1e-4)
    half = 0.0962 / math.sqrt(2)
    narrower = pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-4)
    assert (both.value, both.low, both.high) == narrower


def test_all_faults_at_once_before_the_first_trial(tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    parameters = {"lerning_rate": {"values": [1e-4]}, "baseline": {"values": ["adaptive", "mode"]}}
    write_sweep(path, parameters)
    done = agent("--config", str(path), "--output_dir", str(tmp_path / "out"), code=2)
    assert "parameters: unknown key 'lerning_rate'; did you mean learning_rate" in done.stderr
    assert "'mode'" in done.stderr and "command line" not in done.stderr
    assert done.stderr.count("lerning_rate") == 1, "each fault once, whatever the number of trials"
    assert not (tmp_path / "out").exists()
    for keys, said in (
        ({"program": "recipes/sft.py"}, "program: 'recipes/sft.py' cannot be swept"),
        ({"command": ["python", "${args}"]}, "command: ${program} is missing"),
    ):
        write_sweep(path, {"beta": {"values": [0.0]}}, **keys)
        assert said in agent("--config", str(path), code=2).stderr


def test_a_key_of_grpo_is_said_to_go_under_parameters(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["rookworld", "sweep", "--max_steps", "2"])
    monkeypatch.delattr(os, "execv")  # it would replace this process
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and not out
    assert "under parameters: --parameters '{max_steps: {value: ...}}'" in err


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": "gird"}, "did you mean grid"),
        ({"count": None}, "count: missing"),
        ({"metric": {"name": "eval/overal", "goal": "maximize"}}, "did you mean eval/overall"),
        ({"metric": {"name": "eval/overall"}}, "write {name: eval/overall, goal: maximize}"),
        ({"parameters": {}}, "parameters: must be a mapping"),
        ({"parameters": {"output_dir": {"value": "x"}}}, "every trial has its own"),
    ],
)
def test_faults_of_a_sweep_file(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sweep(**{"parameters": {"beta": {"value": 0}}, **keys})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "0.1",
        "{values: []}",
        "{values: [0.1], distribution: normal}",
        "{value: 0.1, distribution: uniform}",
        "{min: 0.0, max: 1.0, q: 0.1}",
        "{distribution: int_uniform, min: 0, max: 1.5}",
        "{distribution: log_uniform_values, min: 0, max: 1}",
        "{min: low, max: 1.0}",
    ],
)
def test_faults_of_a_distribution(spec: str) -> None:
    with pytest.raises(ConfigurationError, match=r"beta: .*give value, a list of values"):
        sweep({"beta": yaml.safe_load(spec)})


def test_the_ranking_goes_by_the_goal_and_scores_no_failure(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"trial": f"trial-00{at}", "parameters": {"seed": at, "max_steps": 4}, "minutes": 1.0}
        | {"score": score, "interval": [score - 0.05, score + 0.05]}
        for at, score in enumerate((0.2, 0.5, 0.3))
    ]
    records.append({"trial": "trial-003", "failure": "exit code 1, see x: boom"})
    parameters = {"seed": {"values": [0, 1, 2]}, "max_steps": {"value": 4}}

    def lines(goal: str) -> list[str]:
        metric = {"name": "eval/overall", "goal": goal}
        arguments = sweep(parameters, metric=metric, output_dir=str(tmp_path))
        return ranking(arguments, records).splitlines()

    best = lines("maximize")
    assert [line.split()[1] for line in best[1:4]] == ["trial-001", "trial-002", "trial-000"]
    assert best[4] == "failed: trial-003, exit code 1, see x: boom"
    assert best[5:] == [f"best model: {tmp_path / 'trial-001'}, 0.5000 [0.4500, 0.5500]"]
    assert lines("minimize")[1].split()[:3] == ["1", "trial-000", "0.2000"]
    assert "seed 1" in best[1] and "max_steps" not in best[1], "only what varies"


@pytest.mark.parametrize(
    ("edited", "edit"),
    [("mine.yaml", "seed: 9\n"), ("recipe_reward.py", "# new\n"), ("swept_reward.py", "# new\n")],
)
def test_an_edit_runs_a_trial_anew(
    edited: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe_text = 'rewards: ["recipe_reward.py:f"]\nmodel_name_or_path: rookworld-nano\n'
    Path("mine.yaml").write_text(f"{recipe_text}bf16: false\n")
    for name in ("recipe_reward.py", "swept_reward.py"):
        Path(name).write_text("def f(completions, **columns): return [0.0] * len(completions)\n")
    ran = []

    def run_child(command: list[str], log: Path) -> int:
        ran.append(command)
        log.with_suffix("").mkdir(exist_ok=True)
        entry = {"after": 0.5, "interval_after": [0.4038, 0.5962], "n": 100}
        results = json.dumps({"heldout": {"environment/exact": entry}})
        (log.with_suffix("") / "results.json").write_text(results)
        return 0

    monkeypatch.setattr(sweeps, "run_child", run_child)
    command = ["${program}", "--config", "mine.yaml", "${args}"]
    rewards = ["swept_reward.py:f"] if edited == "swept_reward.py" else ["recipe_reward.py:f"]
    given = sweep({"rewards": {"value": rewards}}, command=command)
    counts = []
    for more in ("", "", edit, ""):
        Path(edited).write_text(Path(edited).read_text() + more)
        (resolved,) = recipe("sweep").check_trials(given, given.trials()[:1])
        run_trial(given, 0, given.trials()[0], resolved)
        counts.append(len(ran))
    assert counts == [1, 1, 2, 2]


@LINUX
@pytest.mark.slow
def test_real_trials_are_scored_and_go_on_after_a_kill(tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    models = ["rookworld-nano", "nobody/nothing"]  # found to be missing when it is loaded
    write_sweep(path, {"model_name_or_path": {"values": models}})
    argv = [f"--config={path}", f"--output_dir={out}"]
    process = killed.start("sweep.py", argv, tmp_path)
    wait_until(lambda: (out / "trial-001.log").is_file() and bool(_processes(out)))
    process.kill()  # and with it the trial, by the system
    process.join()
    wait_until(lambda: not _processes(out))

    table = agent(*argv).stdout.splitlines()[-3:]
    folder = out / "trial-000"
    assert yaml.safe_load((folder / "resolved_config.yaml").read_text())["max_steps"] == 1
    heldout = json.loads((folder / "results.json").read_text())["heldout"]
    parts = (heldout[name]["after"] for name in ("environment/exact", "policy/expected_score"))
    by_hand = sum(parts) / 2
    assert table[0].split()[:3] == ["1", "trial-000", f"{by_hand:.4f}"]
    assert table[1].startswith("failed: trial-001, exit code 2") and "nobody/nothing" in table[1]
    assert table[2].startswith(f"best model: {folder}, {by_hand:.4f} [")

    began = (out / "trial-000.log").stat().st_mtime
    assert agent(*argv).stdout.splitlines()[-3:] == table
    assert (out / "trial-000.log").stat().st_mtime == began, "it is not run again"


@LINUX
@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGKILL])
def test_a_trial_ends_with_its_agent(word: int, tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    sleeping = ["${env}", "${interpreter}", "-c", "import time; time.sleep(600)", "${program}"]
    words = ["--bf16=false", "${args}"]
    write_sweep(path, {"max_steps": {"value": 9}}, command=[*sleeping, *words])
    process = killed.start("sweep.py", [f"--config={path}", f"--output_dir={out}"], tmp_path)
    wait_until(lambda: (out / "trial-000.log").is_file() and bool(_processes(out)))
    assert process.pid is not None
    os.kill(process.pid, word)
    process.join(60)
    assert process.exitcode == (143 if word == signal.SIGTERM else -9)
    wait_until(lambda: not _processes(out))
    assert not (out / "trial-000.json").exists(), "to be run again"


def _processes(folder: Path) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has gone
            commands.append(path.read_text())
    return [command for command in commands if f"--output_dir={folder}/trial-" in command]


def test_its_first_line_names_the_folder_of_the_trials(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("name: mine\n")
    given = {"config": [str(tmp_path / "ours.yaml")]}
    assert first_line(RECIPES / "sweep.py", given).endswith("output in runs/mine")
