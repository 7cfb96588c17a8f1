"""Sweeps: draws, commands as W&B's agent writes them, and the agent of the project on real trials."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args, load_sweep_config

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.sweep import SweepArguments, Trial, TrialTable, ranking, read_score
from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError

from ..conftest import RECIPES, REPOSITORY, script
from ..recipes.test_recipes import SMALL

METRIC = {"name": "eval/overall", "goal": "maximize"}
SHIPPED = sorted(RECIPES.glob("sweep_*.yaml"))


def sweep(parameters: dict[str, Any], method: str = "random", **keys: Any) -> SweepArguments:
    keys = {"metric": METRIC, "count": 5 if method == "random" else None, **keys}
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
def test_a_grid_is_every_combination_the_last_key_fastest() -> None:
    drawn = sweep({"beta": {"values": [0, 0.1]}, "seed": {"values": [1, 2]}}, "grid").trials()
    pairs = [(values["beta"], values["seed"]) for values in drawn]
    assert pairs == [(0, 1), (0, 2), (0.1, 1), (0.1, 2)]
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
    }
    drawn = sweep(parameters, count=2000).trials()
    exponents = [math.log10(values["learning_rate"]) for values in drawn]
    assert -7 <= min(exponents) < -6.9 and -3.1 < max(exponents) <= -3
    assert sum(exponents) / len(drawn) == pytest.approx(-5, abs=0.1)
    temperatures = [values["temperature"] for values in drawn]
    assert sum(temperatures) / len(drawn) == pytest.approx(1, abs=0.03)
    assert {values["num_generations"] for values in drawn} == {4, 5, 6}
    assert {values["beta"] for values in drawn} == {0.02}


def test_the_command_is_the_one_of_wandb_s_agent() -> None:
    values = {
        "learning_rate": 3.2e-07,
        "zero_variance": "skip",
        "bf16": False,
        "num_generations": 8,
    }
    words = sweep({"beta": {"value": 0}}, name="s").command_of(values, Path("runs/s/trial-000"))
    theirs = create_sweep_command_args({"args": {key: {"value": v} for key, v in values.items()}})
    assert words[:3] == ["/usr/bin/env", sys.executable, "recipes/grpo.py"]
    assert words[3:] == [*theirs["args"], "--output_dir=runs/s/trial-000"]


# --------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_sweep_is_wandb_s_format_and_its_trials_parse(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = load_sweep_config(str(path))
    assert content is not None
    content["parameters"] |= {"use_cpu": {"value": True}, "bf16": {"value": False}}
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.syspath_prepend(str(RECIPES))
    from sweep import check_trials  # a recipe, found as a script finds its neighbours

    arguments = SweepArguments(**content, count=30)
    trials = arguments.trials()
    check_trials(arguments, trials)
    for key, spec in content["parameters"].items():
        if "values" in spec:
            assert {trial[key] for trial in trials} == set(spec["values"])
    assert arguments.name == path.stem


def test_all_faults_at_once_before_the_first_trial(tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    parameters = {"lerning_rate": {"values": [1e-4]}, "baseline": {"values": ["ema", "mode"]}}
    write_sweep(path, parameters)
    done = agent("--config", str(path), "--output_dir", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "unknown option --lerning_rate; did you mean learning_rate" in done.stderr
    assert "'mode'" in done.stderr
    assert done.stderr.count("lerning_rate") == 1, "each fault once, whatever the number of trials"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "bayes"}, "W&B's server"),
        ({"method": "gird"}, "did you mean grid"),
        ({"count": None}, "count: missing"),
        ({"count": 0}, "not above 0"),
        ({"metric": {"name": "eval/overal", "goal": "maximize"}}, "did you mean eval/overall"),
        ({"metric": {"name": "eval/overall"}}, "goal is None"),
        ({"metric": None}, "metric: missing"),
        ({"parameters": {}}, "parameters: missing"),
        ({"parameters": {"beta": 0.1}}, "write {value: 0.1}"),
        ({"parameters": {"beta": {"values": []}}}, "no list of values"),
        ({"parameters": {"beta": {"min": 1}}}, "no two numbers"),
        ({"parameters": {"beta": {"min": "1e-6", "max": 1.0}}}, "1e-6 is written 1.0e-6"),
        ({"parameters": {"beta": {"min": 2.0, "max": 1.0}}}, "not below max"),
        ({"parameters": {"beta": {"distribution": "normal"}}}, "no distribution 'normal'"),
        (
            {"parameters": {"beta": {"distribution": "log_uniform_values", "min": 0, "max": 1}}},
            "no logarithm",
        ),
        ({"method": "grid", "parameters": {"beta": {"min": 0.0, "max": 1.0}}}, "a grid has no"),
        ({"parameters": {"output_dir": {"value": "x"}}}, "every trial has its own"),
        ({"command": ["python"]}, "no ${program}"),
    ],
)
def test_faults_of_a_sweep_file(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sweep(**{"parameters": {"beta": {"value": 0}}, **keys})
    assert words in str(caught.value)


def test_an_unknown_key_of_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    write_sweep(path, {"beta": {"value": 0}}, metod="grid")
    with pytest.raises(ConfigurationError, match="unknown key 'metod'; did you mean method"):
        StrictParser([SweepArguments]).parse_strictly(["--config", str(path)])


# --------------------------------------------------------------------------------------------------
# Trials
# --------------------------------------------------------------------------------------------------
def test_a_table_goes_on_after_a_kill_and_belongs_to_one_sweep(tmp_path: Path) -> None:
    arguments = sweep({"beta": {"values": [0, 1]}}, output_dir=str(tmp_path / "s"))
    table = TrialTable(arguments)
    table.add(Trial(0, {"beta": 0}, 0.5, 60.0, None))
    with table.path.open("a") as file:
        file.write('{"number": 1, "para')  # killed as it wrote
    again = TrialTable(arguments)
    again.add(Trial(1, {"beta": 1}, None, 60.0, "exit code 1"))
    assert [trial.score for trial in TrialTable(arguments).trials] == [0.5, None]
    other = sweep({"beta": {"values": [0, 2]}}, output_dir=str(tmp_path / "s"))
    with pytest.raises(RookWorldError, match="another --output_dir"):
        TrialTable(other)


def test_the_ranking_goes_by_the_goal_and_scores_no_failure() -> None:
    trials = [Trial(n, {"beta": n}, score, 90.0, None) for n, score in enumerate((0.2, 0.5, 0.3))]
    trials.append(Trial(3, {"beta": 3}, None, 1.0, "exit code 1, see x: boom"))
    text = ranking(trials, "eval/overall", "maximize")
    order = [line.split()[1] for line in text.splitlines()[1:4]]
    assert order == ["1", "2", "0"]
    assert text.splitlines()[-1].split() == ["3", *"exit code 1, see x: boom".split()]
    worst = ranking(trials, "eval/overall", "minimize").splitlines()[1]
    assert worst.split()[:3] == ["1", "0", "0.2000"]


def test_real_trials_are_scored_by_their_held_out_rows_and_a_failure_is_none(
    tmp_path: Path,
) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    models = ["rookworld-nano", "nobody/nothing"]  # found to be missing when it is loaded
    write_sweep(path, {"model_name_or_path": {"values": models}})
    done = agent("--config", str(path), "--output_dir", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
    heldout = json.loads((out / "trial-000" / "results.json").read_text())["heldout"]
    by_hand = (heldout["environment/exact"]["after"] + heldout["policy/best_move"]["after"]) / 2
    right, failed = (
        json.loads(line) for line in (out / "trials.jsonl").read_text().split("\n")[1:3]
    )
    assert right["score"] == pytest.approx(by_hand)
    assert read_score(out / "trial-000" / "results.json", "eval/policy/best_move") == pytest.approx(
        heldout["policy/best_move"]["after"]
    )
    assert failed["score"] is None
    assert "exit code 2" in failed["failure"] and "nobody/nothing" in failed["failure"]
    assert "failed, not scored: 1" in done.stdout
    again = agent("--config", str(path), "--output_dir", str(out))
    assert "trial 1 of 2" not in again.stdout, "both are done"
    assert f"{by_hand:.4f}" in again.stdout
    assert not (out / "trial-000.1").exists()


def test_a_trial_ends_with_its_agent(tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    write_sweep(path, {"max_steps": {"value": 100_000}})
    process = subprocess.Popen(
        [sys.executable, str(RECIPES / "sweep.py"), f"--config={path}", f"--output_dir={out}"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    _wait_for(lambda: (out / "trial-000.log").is_file() and _processes(out))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    _wait_for(lambda: not _processes(out))
    assert len((out / "trials.jsonl").read_text().splitlines()) == 1, "the sweep, and no trial"


def _processes(folder: Path) -> list[str]:
    """Trials that run in a folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_text())
        except OSError:  # gone
            continue
    return [command for command in commands if f"--output_dir={folder}/trial-" in command]


def _wait_for(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited for a minute")
