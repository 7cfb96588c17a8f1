"""W&B's sweep files, run without its server: trials drawn, run one after the other, ranked.

A sweep file is W&B's (https://docs.wandb.ai/guides/sweeps/define-sweep-configuration), so that `wandb
sweep` takes the same one. Of its methods `grid` and `random` are here; `bayes` needs the server. W&B's
own package for this, `sweeps` 0.3.0, asks for numpy below 2, which this package cannot have.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..common.errors import ConfigurationError, RookWorldError, close_matches, json_value
from ..tasks.metrics import TRAINING_METRICS, headline
from ..training.results import heldout_results
from ..training.run_folder import RESULTS

METHODS = ("grid", "random")


DISTRIBUTIONS = ("constant", "categorical", "uniform", "int_uniform", "log_uniform_values")


TRIALS_FILE = "trials.jsonl"


_PREFIX = "eval/"


_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")  # W&B's own default


_ALWAYS = {"output_dir": "every trial has its own"}


Values = Mapping[str, Any]


@dataclass
class SweepArguments:
    """The keys of a sweep file, and those of the agent.

    Args:
        program: The script, from the folder that the agent is started in.
        method: `grid`, every combination, or `random`.
        metric: ``{name: eval/overall, goal: maximize}``; a held-out metric, of the best checkpoint.
        parameters: Recipe key → ``{value: …}``, ``{values: […]}``, or ``{min: …, max: …}`` with a
            `distribution`: uniform, int_uniform, log_uniform_values.
        command: As W&B has it, with ``${env}``, ``${interpreter}``, ``${program}`` and ``${args}``.
        name: Of the sweep.
        description: For a dashboard.
        project: For W&B's server.
        entity: For W&B's server.
        count: Trials in all, those of earlier starts among them; a grid may leave it out.
        seed: Of the random draws; trial `n` is the same whatever the count.
        output_dir: Folder of the trials; ``runs/<name>`` where it is not given.
    """

    program: str = "recipes/grpo.py"
    method: str = "random"
    metric: dict[str, Any] | str | None = None
    parameters: dict[str, Any] | str | None = None
    command: list[str] | None = None
    name: str = "sweep"
    description: str | None = None
    project: str | None = None
    entity: str | None = None
    count: int | None = None
    seed: int = 0
    output_dir: str | None = None

    def __post_init__(self) -> None:
        faults = self._method_faults()
        for key in ("metric", "parameters"):
            try:
                setattr(self, key, json_value(key, getattr(self, key)))
            except ConfigurationError as error:
                faults += error.faults
        faults += _metric_faults(self.metric)
        if not isinstance(self.parameters, Mapping) or not self.parameters:
            faults.append("parameters: missing or no mapping of recipe keys to their values")
        else:
            for key, spec in self.parameters.items():
                faults += _parameter_faults(str(key), spec, self.method)
        if "${program}" not in (self.command or _COMMAND):
            faults.append("command: no ${program} in it; write it where the script's name stands")
        if faults:
            raise ConfigurationError(faults)

    def _method_faults(self) -> list[str]:
        faults = []
        if self.method == "bayes":
            faults.append(
                "method: 'bayes' is drawn by W&B's server: `wandb sweep FILE`, then `wandb agent`; "
                "without it there are grid and random"
            )
        elif self.method not in METHODS:
            faults.append(f"method: {self.method!r} is none{close_matches(self.method, METHODS)}")
        if self.count is not None and self.count < 1:
            faults.append(f"count: {self.count} is not above 0")
        if self.method == "random" and self.count is None:
            faults.append("count: missing; a random sweep has no end of its own")
        return faults

    @property
    def folder(self) -> Path:
        """Where the trials go."""
        return Path(self.output_dir or f"runs/{self.name}")

    def trials(self) -> list[dict[str, Any]]:
        """The parameters of every trial, in order."""
        specs: Any = self.parameters
        if self.method == "grid":
            every = itertools.product(*(_choices(spec) for spec in specs.values()))
            drawn = [dict(zip(specs, values, strict=True)) for values in every]
            return drawn[: self.count]
        return [self._draw(specs, number) for number in range(self.count or 0)]

    def _draw(self, specs: Mapping[str, Any], number: int) -> dict[str, Any]:
        source = random.Random(f"{self.seed}:{number}")
        return {key: _draw(spec, source) for key, spec in specs.items()}

    def words(self, values: Values) -> list[str]:
        """The command of a trial, as `wandb agent` writes it."""
        meanings = {
            "${env}": ["/usr/bin/env"],
            "${interpreter}": [sys.executable],
            "${program}": [self.program],
            "${args}": [f"--{key}={value}" for key, value in values.items()],
        }
        return [
            word
            for part in self.command or _COMMAND
            for word in meanings.get(str(part), [str(part)])
        ]

    def arguments(self, values: Values, folder: Path) -> list[str]:
        """What of a trial's command the script sees."""
        words = self.command_of(values, folder)
        return words[words.index(self.program) + 1 :]

    def command_of(self, values: Values, folder: Path) -> list[str]:
        """A trial's command, with a folder of its own."""
        return [*self.words(values), f"--output_dir={folder}"]


# --------------------------------------------------------------------------------------------------
# Parameters
# --------------------------------------------------------------------------------------------------
def _metric_faults(metric: Any) -> list[str]:
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        return ["metric: missing or no mapping; write {name: eval/overall, goal: maximize}"]
    faults = []
    known = [_PREFIX + name for name in TRAINING_METRICS]
    if metric["name"] not in known:
        close = close_matches(metric["name"], known)
        faults.append(f"metric: no held-out metric {metric['name']!r}{close}")
    goals = ("maximize", "minimize")
    if metric.get("goal") not in goals:
        faults.append(f"metric: goal is {metric.get('goal')!r}, none of {', '.join(goals)}")
    return faults


def _distribution(spec: Mapping[str, Any]) -> str:
    """The one that is named, or the one that W&B takes for the keys that are there."""
    if "distribution" in spec:
        return str(spec["distribution"])
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical"
    whole = all(isinstance(spec.get(key), int) for key in ("min", "max"))
    return "int_uniform" if whole else "uniform"


def _parameter_faults(key: str, spec: Any, method: str) -> list[str]:
    name = f"parameters: {key}"
    if key in _ALWAYS:
        return [f"{name}: {_ALWAYS[key]}; leave it out"]
    if not isinstance(spec, Mapping):
        return [f"{name}: {spec!r} is no mapping; write {{value: {spec!r}}}"]
    kind = _distribution(spec)
    if kind not in DISTRIBUTIONS:
        return [f"{name}: no distribution {kind!r} here{close_matches(kind, DISTRIBUTIONS)}"]
    if kind == "constant":
        return [] if "value" in spec else [f"{name}: no value"]
    if kind == "categorical":
        values = spec.get("values")
        return [] if isinstance(values, list) and values else [f"{name}: no list of values"]
    if method == "grid":
        return [f"{name}: a grid has no {kind}; give values"]
    return _range_faults(name, spec, kind)


def _range_faults(name: str, spec: Mapping[str, Any], kind: str) -> list[str]:
    low, high = spec.get("min"), spec.get("max")
    wanted: Any = int if kind == "int_uniform" else (int, float)
    if not all(isinstance(bound, wanted) and not isinstance(bound, bool) for bound in (low, high)):
        return [f"{name}: min {low!r} and max {high!r} are no two numbers (1e-6 is written 1.0e-6)"]
    if not low < high:  # type: ignore[operator]
        return [f"{name}: min {low!r} is not below max {high!r}"]
    if kind == "log_uniform_values" and not low > 0:  # type: ignore[operator]
        return [f"{name}: min {low!r} is not above 0, so it has no logarithm"]
    return []


def _choices(spec: Mapping[str, Any]) -> Sequence[Any]:
    return [spec["value"]] if "value" in spec else list(spec["values"])


def _draw(spec: Mapping[str, Any], source: random.Random) -> Any:
    kind = _distribution(spec)
    if kind in ("constant", "categorical"):
        return source.choice(_choices(spec))
    low, high = spec["min"], spec["max"]
    if kind == "int_uniform":
        return source.randint(low, high)
    if kind == "uniform":
        return source.uniform(low, high)
    return math.exp(source.uniform(math.log(low), math.log(high)))


# --------------------------------------------------------------------------------------------------
# Trials
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a trial."""

    number: int
    parameters: dict[str, Any]
    score: float | None  # the sweep's metric; None where the trial failed
    seconds: float
    failure: str | None  # one sentence


class TrialTable:
    """The trials that are done, a line of JSON each; written as soon as one is, so a kill loses none.

    Args:
        sweep: Whose trials they are.

    Raises:
        RookWorldError: The folder holds the trials of another sweep.
    """

    def __init__(self, sweep: SweepArguments) -> None:
        self.path = sweep.folder / TRIALS_FILE
        self.trials: list[Trial] = []
        identity = {
            key: getattr(sweep, key)
            for key in ("program", "method", "metric", "parameters", "command", "seed")
        }
        lines = self._lines()
        if not lines:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"sweep": identity}) + "\n", encoding="utf-8")
            return
        if json.loads(lines[0]) != {"sweep": identity}:
            raise RookWorldError(
                f"{self.path} holds the trials of a sweep with other keys or another seed; give "
                "another --output_dir"
            )
        self.trials = [Trial(**json.loads(line)) for line in lines[1:]]

    def _lines(self) -> list[str]:
        """Whole lines; what a kill left of the last one is cut off."""
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return whole.splitlines()

    def add(self, trial: Trial) -> None:
        """Keep one more."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(trial)) + "\n")
        self.trials.append(trial)


def run_trial(sweep: SweepArguments, number: int, values: Values) -> Trial:
    """Run a trial as a process of its own; its output goes into a file beside its folder."""
    folder = sweep.folder / f"trial-{number:03}"
    log = folder.with_suffix(".log")
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            sweep.command_of(values, folder), stdout=output, stderr=subprocess.STDOUT, check=False
        )
    score, failure = None, None
    if done.returncode:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        failure = f"exit code {done.returncode}, see {log}: {lines[-1] if lines else 'no output'}"
    else:
        metric: Any = sweep.metric
        try:
            score = read_score(folder / RESULTS, metric["name"])
        except (OSError, KeyError, ValueError) as error:
            failure = f"no {metric['name']} in {folder / RESULTS} ({error!r})"
    return Trial(number, dict(values), score, time.monotonic() - started, failure)


def read_score(path: Path, metric: str) -> float:
    """A held-out metric of a run's final model, from its ``results.json``.

    Raises:
        KeyError: The run has no such metric.
    """
    after = heldout_results(json.loads(path.read_text(encoding="utf-8")), "after")
    name = metric.removeprefix(_PREFIX)
    return headline(after) if name == "overall" else after[name].value


def ranking(trials: Iterable[Trial], metric: str, goal: str) -> str:
    """A table, the best trial first; those that failed below, with the reason."""
    trials = list(trials)
    scored = [trial for trial in trials if trial.score is not None]
    scored.sort(key=lambda trial: trial.score or 0.0, reverse=goal == "maximize")
    lines = [f"{'rank':>4}{'trial':>7}{metric:>20}{'minutes':>9}   parameters"]
    lines += [
        f"{rank:>4}{trial.number:>7}{trial.score:>20.4f}{trial.seconds / 60:>9.1f}   "
        f"{describe(trial.parameters)}"
        for rank, trial in enumerate(scored, 1)
    ]
    failed = [trial for trial in trials if trial.score is None]
    if failed:
        lines += ["", f"failed, not scored: {len(failed)}"]
        lines += [f"{trial.number:>11}   {trial.failure}" for trial in failed]
    return "\n".join(lines)


def describe(values: Values) -> str:
    """Parameters in one line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )
