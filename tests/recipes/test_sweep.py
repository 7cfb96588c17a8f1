"""Sweeps: draws, commands as W&B's agent writes them, and the agent of the project on real trials."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import FrozenTrial, TrialState
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args, load_sweep_config

from rookworld_rlvr.cli.main import recipes
from rookworld_rlvr.cli.sweep import (
    STUDY_FILE,
    SweepArguments,
    ended,
    open_study,
    ranking,
    read_score,
)
from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError

from .. import killed
from ..conftest import RECIPES, REPOSITORY, recipe, script
from ..recipes.test_recipes import SMALL

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="others let a trial outlive its agent")
METRIC = {"name": "eval/overall", "goal": "maximize"}


def sweep(parameters: dict[str, Any], method: str = "random", **keys: Any) -> SweepArguments:
    keys = {"metric": METRIC, "count": None if method == "grid" else 5, **keys}
    return SweepArguments(method=method, parameters=parameters, **keys)


def agent(*argv: str) -> subprocess.CompletedProcess[str]:
    """The agent in this process; its trials are processes."""
    return script("sweep.py", *argv, cwd=REPOSITORY)


def write_sweep(path: Path, parameters: dict[str, Any], **keys: Any) -> None:
    """A grid over the recipe run small; `parameters` in place of, or beside, its options."""
    words = [word for word in SMALL if word != "--use_cpu"]
    fixed = dict(zip(words[::2], words[1::2], strict=True))
    fixed |= {"--max_steps": "1", "--heldout_rows": "4", "--use_cpu": "true"}
    command = ["${env}", "${interpreter}", "${program}", "--config", "recipes/grpo_nano.yaml"]
    command += [word for option in fixed.items() for word in option] + ["${args}"]
    content = {
        "program": "recipes/grpo.py",
        "method": "grid",
        "metric": METRIC,
        "command": command,
        "parameters": parameters,
        **keys,
    }
    path.write_text(yaml.safe_dump(content))


# --------------------------------------------------------------------------------------------------
# Draws
# --------------------------------------------------------------------------------------------------
def test_a_grid_is_every_combination() -> None:
    drawn = sweep({"beta": {"values": [0, 0.1]}, "seed": {"values": [1, 2]}}, "grid").trials()
    pairs = [(values["beta"], values["seed"]) for values in drawn]
    assert sorted(pairs) == [(0, 1), (0, 2), (0.1, 1), (0.1, 2)]
    assert len(sweep({"seed": {"values": [1, 2, 3]}}, "grid", count=2).trials()) == 2


def test_a_trial_is_the_same_whatever_the_count() -> None:
    parameters = {"beta": {"min": 0.0, "max": 1.0}, "seed": {"values": [1, 2, 3]}}
    assert sweep(parameters, count=9).trials()[:4] == sweep(parameters, count=4).trials()
    assert sweep(parameters, count=4, seed=1).trials() != sweep(parameters, count=4).trials()


def test_distributions() -> None:
    parameters = {
        "learning_rate": {"distribution": "log_uniform_values", "min": 1e-7, "max": 1e-3},
        "temperature": {"min": 0.5, "max": 1.5},
        "num_generations": {"min": 4, "max": 6},
        "beta": {"value": 0.02},
        "tasks": {"value": ["environment"]},
    }
    drawn = sweep(parameters, count=2000).trials()
    exponents = [math.log10(values["learning_rate"]) for values in drawn]
    assert -7 <= min(exponents) < -6.9 and -3.1 < max(exponents) <= -3
    assert sum(exponents) / len(drawn) == pytest.approx(-5, abs=0.1)
    temperatures = [values["temperature"] for values in drawn]
    assert sum(temperatures) / len(drawn) == pytest.approx(1, abs=0.03)
    assert {values["num_generations"] for values in drawn} == {4, 5, 6}
    assert {values["beta"] for values in drawn} == {0.02}
    assert {values["tasks"] for values in drawn} == {'["environment"]'}


def test_the_command_is_the_one_of_wandb_s_agent() -> None:
    values = {"learning_rate": 3.2e-07, "zero_variance": "skip", "bf16": False, "seed": 8}
    words = sweep({"beta": {"value": 0}}, name="s").command_of(values, Path("runs/s/trial-000"))
    theirs = create_sweep_command_args({"args": {key: {"value": v} for key, v in values.items()}})
    assert words[:3] == ["/usr/bin/env", sys.executable, "recipes/grpo.py"]
    assert words[3:] == [*theirs["args"], "--output_dir=runs/s/trial-000"]


# --------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [path.stem for path in RECIPES.glob("sweep_*.yaml")])
def test_a_copied_sweep_is_wandb_s_format_and_its_trials_parse_outside_of_the_clone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    entry = {"before": 0.0, "after": 0.5, "n": 100}
    names = ("environment/exact", "fill_in/exact")
    (tmp_path / "results.json").write_text(json.dumps({"heldout": dict.fromkeys(names, entry)}))
    one, both = (read_score(tmp_path / "results.json", f"eval/{n}") for n in (names[0], "overall"))
    assert (one.value, one.low, one.high) == pytest.approx((0.5, 0.4038, 0.5962), abs=1e-4)
    half = 0.0962 / math.sqrt(2)
    assert (both.value, both.low, both.high) == pytest.approx(
        (0.5, 0.5 - half, 0.5 + half), abs=1e-4
    )


def test_all_faults_at_once_before_the_first_trial(tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    parameters = {"lerning_rate": {"values": [1e-4]}, "baseline": {"values": ["adaptive", "mode"]}}
    write_sweep(path, parameters)
    done = agent("--config", str(path), "--output_dir", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "parameters: unknown key 'lerning_rate'; did you mean learning_rate" in done.stderr
    assert "'mode'" in done.stderr and "command line" not in done.stderr
    assert done.stderr.count("lerning_rate") == 1, "each fault once, whatever the number of trials"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": "bayes", "count": None}, "a bayes sweep needs a number"),
        ({"method": "gird"}, "did you mean grid"),
        ({"count": None}, "count: missing"),
        ({"count": 0}, "not above 0"),
        ({"metric": {"name": "eval/overal", "goal": "maximize"}}, "did you mean eval/overall"),
        ({"metric": {"name": "eval/overall"}}, "write {name: eval/overall, goal: maximize}"),
        ({"metric": {**METRIC, "target": 0.9}}, "'target': 0.9} is not supported"),
        ({"metric": None}, "metric: None is not supported"),
        ({"parameters": {}}, "parameters: must be a mapping"),
        ({"parameters": {"output_dir": {"value": "x"}}}, "every trial has its own"),
    ],
)
def test_faults_of_a_sweep_file(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sweep(**{"parameters": {"beta": {"value": 0}}, **keys})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("0.1", "write {value: 0.1}"),
        ("{values: '0.1'}", "give value, a list of values"),
        ("{min: 0.0, max: 1.0, q: 0.1}", "'q': 0.1} is not supported"),
        ("{distribution: normal}", "'normal'} is not supported"),
        ("{min: '1e-6', max: 1.0}", "write 1e-6 as 1.0e-6"),
        ("{min: 2.0, max: 1.0}", "`low <= high` must hold"),  # Optuna's
    ],
)
def test_faults_of_a_distribution(spec: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sweep({"beta": yaml.safe_load(spec)})
    assert "beta" in str(caught.value) and reason in str(caught.value)


def test_without_optuna_one_message_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # an import of it fails
    done = agent()
    assert done.returncode == 2
    assert "Optuna is not installed; pip install" in done.stderr


# --------------------------------------------------------------------------------------------------
# Trials
# --------------------------------------------------------------------------------------------------
def test_a_study_goes_on_and_belongs_to_one_sweep(tmp_path: Path) -> None:
    parameters, out = {"beta": {"min": 0.0, "max": 1.0}}, str(tmp_path / "s")
    arguments = sweep(parameters, output_dir=out)
    study = open_study(arguments)
    for number in range(2):  # the second is interrupted
        study.sampler = arguments.sampler(number)
        trial = study.ask(arguments.space)
        if number == 0:
            study.tell(trial, 0.5)
    study = open_study(arguments)
    assert [trial.number for trial in ended(study)] == [0]
    drawn = [study.trials[0].params["beta"]]
    for number in range(1, arguments.total):
        study.sampler = arguments.sampler(number)
        trial = study.ask(arguments.space)
        drawn.append(trial.params["beta"])
        study.tell(trial, 0.1)
    assert drawn == [values["beta"] for values in arguments.trials()], "as without the interruption"
    assert [trial.number for trial in ended(study)] == [0, 2, 3, 4, 5]
    for other, seed in ((parameters, 1), ({"beta": {"min": 0.0, "max": 2.0}}, 0)):
        with pytest.raises(RookWorldError, match="another --output_dir"):
            open_study(sweep(other, output_dir=out, seed=seed))


@pytest.mark.parametrize("interrupted", [0, 3])
def test_an_interrupted_grid_has_every_combination_once(tmp_path: Path, interrupted: int) -> None:
    parameters = {"beta": {"values": [0, 0.1]}, "seed": {"values": [1, 2]}, "bf16": {"value": True}}
    arguments = sweep(parameters, "grid", output_dir=str(tmp_path / "s"))
    study = open_study(arguments)
    while len(ended(study)) < arguments.total:
        study.sampler = arguments.sampler(len(ended(study)))
        trial = study.ask(arguments.space)
        if trial.number == interrupted:
            study = open_study(arguments)
        else:
            study.tell(trial, 0.5)
    found = [tuple(trial.params.items()) for trial in ended(study)]
    assert len(study.trials) == 5 and len(set(found)) == len(found) == 4


def test_bayes_draws_where_the_results_are_good() -> None:
    parameters = {"beta": {"min": 0.0, "max": 1.0}, "baseline": {"values": ["mode", "ema"]}}
    arguments = sweep(parameters, "bayes", count=40)
    study = optuna.create_study(direction="maximize")
    for number in range(arguments.total):
        study.sampler = arguments.sampler(number)
        trial = study.ask(arguments.space)
        study.tell(trial, -abs(trial.params["beta"] - 0.3) - (trial.params["baseline"] == "mode"))
    late = [trial.params for trial in study.trials[20:]]
    assert sum(abs(params["beta"] - 0.3) < 0.15 for params in late) > 12, "a third at random"
    assert sum(params["baseline"] == "ema" for params in late) > 12
    assert [trial.params for trial in study.trials[:10]] == arguments.trials()[:10]


def test_the_ranking_goes_by_the_goal_and_scores_no_failure(tmp_path: Path) -> None:
    def lines(goal: str) -> list[str]:
        metric = {"name": "eval/overall", "goal": goal}
        arguments = sweep({"seed": {"value": 1}}, metric=metric, output_dir=str(tmp_path / goal))
        study = open_study(arguments)
        for value in (0.2, 0.5, 0.3):
            trial = study.ask()
            trial.set_user_attr("interval", [value - 0.05, value + 0.05])
            study.tell(trial, value)
        trial = study.ask()
        trial.set_user_attr("failure", "exit code 1, see x: boom")
        study.tell(trial, state=TrialState.FAIL)
        study.tell(study.ask(), state=TrialState.FAIL)  # interrupted
        return ranking(arguments, study).splitlines()

    best = lines("maximize")
    assert [line.split()[1] for line in best[1:4]] == ["trial-001", "trial-002", "trial-000"]
    assert best[5] == "failed, not scored: 1"
    assert best[6].split() == ["trial-003", *"exit code 1, see x: boom".split()]
    model = tmp_path / "maximize" / "trial-001"
    assert best[8:] == [
        f"best model: {model}, eval/overall 0.5000 [0.4500, 0.5500], log {model}.log"
    ]
    assert lines("minimize")[1].split()[:3] == ["1", "trial-000", "0.2000"]


@LINUX
@pytest.mark.slow
def test_real_trials_are_scored_and_go_on_after_a_kill(tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    models = ["rookworld-nano", "nobody/nothing"]  # found to be missing when it is loaded
    write_sweep(path, {"model_name_or_path": {"values": models}})
    argv = [f"--config={path}", f"--output_dir={out}"]
    process = killed.start("sweep.py", argv, tmp_path)
    _wait_for(lambda: (out / "trial-001.log").is_file() and _processes(out))
    process.kill()  # and with it the trial, by the system
    process.join()
    _wait_for(lambda: not _processes(out))

    done = agent(*argv)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trial 1 of 2" not in done.stdout and "trial 2 of 2" in done.stdout
    first, stopped, again = trials_of(out)
    assert stopped.state is TrialState.FAIL and stopped.params == again.params != first.params
    right, failed = sorted((first, again), key=lambda trial: trial.state is TrialState.FAIL)

    assert again.user_attrs["folder"] == "trial-001", "it went on in the folder of the killed trial"
    folder = out / right.user_attrs.get("folder", "trial-000")
    assert yaml.safe_load((folder / "resolved_config.yaml").read_text())["max_steps"] == 1
    heldout = json.loads((folder / "results.json").read_text())["heldout"]
    by_hand = (heldout["environment/exact"]["after"] + heldout["policy/best_move"]["after"]) / 2
    assert right.value == pytest.approx(by_hand)
    assert read_score(folder / "results.json", "eval/policy/best_move").value == pytest.approx(
        heldout["policy/best_move"]["after"]
    )
    assert failed.state is TrialState.FAIL
    failure = failed.user_attrs["failure"]
    assert "exit code 2" in failure and "nobody/nothing" in failure

    ended_already = agent(*argv).stdout
    assert "of 2" not in ended_already, "both are done"
    table = ended_already.splitlines()
    assert table[1].split()[:3] == ["1", folder.name, f"{by_hand:.4f}"]
    assert table[2:4] == ["", "failed, not scored: 1"] and "nobody/nothing" in table[4]
    assert table[5] == "" and table[6].startswith("best model: ")


@LINUX
@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGKILL])
def test_a_trial_ends_with_its_agent(word: int, tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    sleeping = ["${env}", "${interpreter}", "-c", "import time; time.sleep(600)", "${program}"]
    words = ["--bf16=false", "${args}"]
    write_sweep(path, {"max_steps": {"value": 9}}, command=[*sleeping, *words])
    process = killed.start("sweep.py", [f"--config={path}", f"--output_dir={out}"], tmp_path)
    _wait_for(lambda: (out / "trial-000.log").is_file() and _processes(out))
    assert process.pid is not None
    os.kill(process.pid, word)
    process.join(60)
    assert process.exitcode == (143 if word == signal.SIGTERM else -9)
    _wait_for(lambda: not _processes(out))
    assert [trial.state for trial in trials_of(out)] == [TrialState.RUNNING], "to be run again"


def trials_of(folder: Path) -> list[FrozenTrial]:
    """What a sweep's study holds."""
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / STUDY_FILE}").trials


def _processes(folder: Path) -> list[str]:
    """Trials that run in a folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has gone
            commands.append(path.read_text())
    return [command for command in commands if f"--output_dir={folder}/trial-" in command]


def _wait_for(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited for five minutes")
