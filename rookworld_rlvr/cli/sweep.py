"""Sweeps without W&B's server: Optuna runs a W&B sweep file, one trial after the other.

A sweep file has W&B's format (https://docs.wandb.ai/guides/sweeps/define-sweep-configuration), so
`wandb sweep` takes the same file. Optuna draws the parameters and keeps the
study in a SQLite file, from which an interrupted sweep continues.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from ..common.children import last_line, run_child
from ..common.errors import RookWorldError
from ..common.settings import Checked, key_faults, setting
from ..common.shipped import shipped
from ..common.stats import Estimate
from ..common.terminal import cells, printable
from ..tasks.metrics import headlines, training_metrics, unknown_metric
from ..training.results import RESULTS, heldout_results

STUDY_FILE = "study.db"


_PREFIX = "eval/"


_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")  # W&B's own default


_FAILURE = "failure"  # why a trial failed; an interrupted trial has no reason and goes on


_INTERVAL = "interval"  # of a trial's score, 95%


_FOLDER = "folder"  # of an interrupted trial, which another trial continues


Values = Mapping[str, Any]


@dataclass
class SweepArguments(Checked):
    """The keys of a sweep file, and of the command."""

    program: str = setting(
        "recipes/grpo.py",
        "The script, relative to the folder that you start in; the packaged one if it is not there.",
    )
    method: Literal["grid", "random", "bayes"] = setting(
        "random",
        "How parameters are drawn: `grid` tries every combination, in shuffled order; `bayes` is "
        "Optuna's TPE.",
    )
    metric: dict[str, Any] | str | None = setting(
        None, "A held-out metric of the best checkpoint, `{name: eval/overall, goal: maximize}`."
    )
    parameters: dict[str, Any] | str | None = setting(
        None,
        "For each recipe key `{value: …}`, `{values: […]}`, or `{min: …, max: …}` with a "
        "`distribution`: uniform, int_uniform or log_uniform_values.",
    )
    command: list[str] | None = setting(
        None,
        "The command of a trial, in W&B's format, with `${env}`, `${interpreter}`, `${program}` and "
        "`${args}`.",
    )
    name: str = setting("sweep", "The sweep's name.")
    count: int | None = setting(
        None,
        "The number of trials, those of earlier starts included; a grid may leave it out.",
        above=0,
    )
    seed: int = setting(
        0, "The seed of the draws; an interrupted sweep continues with the same draws."
    )
    output_dir: str | None = setting(None, "The folder of the trials; by default `runs/<name>`.")
    space: dict[str, Any] = field(init=False, default_factory=dict)  # Optuna's distributions

    def faults(self) -> list[str]:
        """What no key shows alone, one sentence each; parameters are converted."""
        faults = [] if key_faults(self, "metric") else _metric_faults(self.metric)
        if self.method in ("random", "bayes") and self.count is None:
            faults.append(f"count: missing; a {self.method} sweep needs a number of trials")
        if not isinstance(self.parameters, Mapping) or not self.parameters:
            return [*faults, "parameters: must be a mapping of recipe keys to their values"]
        for key, spec in self.parameters.items():
            try:
                self.space[key] = distribution(key, spec, self.method)
            except ValueError as error:
                faults.append(f"parameters: {key}: {error}")
        return faults

    @property
    def script(self) -> str:
        """`program`, or the packaged script of its name if there is no such file here."""
        packaged = shipped("recipes") / Path(self.program).name
        is_elsewhere = not Path(self.program).is_file() and packaged.is_file()
        return str(packaged) if is_elsewhere else self.program

    @property
    def folder(self) -> Path:
        """The folder of the trials."""
        return Path(self.output_dir or f"runs/{self.name}")

    @property
    def total(self) -> int:
        """The number of trials."""
        if self.method != "grid":
            return self.count or 0
        size = math.prod(len(choice.choices) for choice in self.space.values())
        return min(self.count or size, size)

    def sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """The sampler for trial `number`, counted from 0.

        Each trial has its own seed. With one seed for all, a resumed sweep would draw its first trials
        again.
        """
        if self.method == "grid":
            return _Grid({key: choice.choices for key, choice in self.space.items()}, self.seed)
        seed = random.Random(f"{self.seed}:{number}").getrandbits(32)
        if self.method == "bayes":
            return optuna.samplers.TPESampler(seed=seed)
        return optuna.samplers.RandomSampler(seed)

    def trials(self) -> list[dict[str, Any]]:
        """The parameters of all trials in order; for `bayes`, those drawn before any result is known."""
        study, drawn = optuna.create_study(), []
        for number in range(self.total):
            study.sampler = self.sampler(number)
            drawn.append(study.ask(self.space).params)
        return drawn

    def command_of(self, values: Values, folder: Path) -> list[str]:
        """A trial's command, as `wandb agent` would write it, with the trial's own folder."""
        meanings = {
            "${env}": ["/usr/bin/env"],
            "${interpreter}": [sys.executable],
            "${program}": [self.script],
            "${args}": [f"--{key}={value}" for key, value in values.items()],
        }
        words = (meanings.get(part, [part]) for part in map(str, self.command or _COMMAND))
        return [*itertools.chain.from_iterable(words), f"--output_dir={folder}"]


# --------------------------------------------------------------------------------------------------
# From W&B's format to Optuna's objects
# --------------------------------------------------------------------------------------------------
class _Grid(optuna.samplers.GridSampler):
    """Optuna's grid sampler, without its attempt to stop a loop of Optuna's after the last trial."""

    def after_trial(self, *args: Any) -> None:
        """Do nothing, because the trials are counted elsewhere."""


def _metric_faults(metric: Any) -> list[str]:
    goals = ("maximize", "minimize")
    is_known = isinstance(metric, Mapping) and metric.keys() == {"name", "goal"}
    if not is_known or metric["goal"] not in goals:
        return [
            f"metric: {metric!r} is not supported; write {{name: eval/overall, goal: maximize}}"
        ]
    known = [_PREFIX + name for name in training_metrics()]
    name = metric["name"]
    return [] if name in known else [f"metric: {unknown_metric(name, known, _PREFIX)}"]


def distribution(key: str, spec: Any, method: str) -> optuna.distributions.BaseDistribution:
    """The distribution that a parameter is drawn from.

    Raises:
        ValueError: The distribution is not supported, or its numbers are not valid.
    """
    if key == "output_dir":
        raise ValueError("every trial has its own folder; leave it out")
    if not isinstance(spec, Mapping):
        raise ValueError(f"{spec!r} is not a mapping; write {{value: {spec!r}}}")
    kind = spec.get("distribution")
    keys = spec.keys() - {"distribution"}
    if keys == {"value"}:
        return CategoricalDistribution([_choice(spec["value"])])
    if keys == {"values"} and isinstance(spec["values"], list):
        return CategoricalDistribution([*map(_choice, spec["values"])])
    low: Any = spec.get("min")
    high: Any = spec.get("max")
    types = {type(low), type(high)}
    kinds = (None, "uniform", "int_uniform", "log_uniform_values")
    if keys != {"min", "max"} or method == "grid" or kind not in kinds or not types <= {int, float}:
        raise ValueError(
            f"{dict(spec)} is not supported; give value, a list of values, or, unless method is grid, "
            "the numbers min and max with distribution uniform, int_uniform or log_uniform_values "
            "(write 1e-6 as 1.0e-6)"
        )
    if kind == "int_uniform" or (kind is None and types == {int}):
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=kind == "log_uniform_values")


def _choice(value: Any) -> Any:
    """A value as Optuna keeps it: a list or mapping as JSON, which the command line takes too."""
    return json.dumps(value) if isinstance(value, list | dict) else value


# --------------------------------------------------------------------------------------------------
# Trials
# --------------------------------------------------------------------------------------------------
def open_study(sweep: SweepArguments) -> optuna.Study:
    """The study in the sweep's folder; a trial that was interrupted is queued again, with its folder.

    Raises:
        RookWorldError: The folder holds the trials of another sweep.
    """
    metric: Any = sweep.metric
    path = sweep.folder / STUDY_FILE
    sweep.folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name="sweep",
        direction=metric["goal"],
        load_if_exists=True,
    )
    keys = ("program", "method", "metric", "parameters", "command", "seed")
    now = {key: getattr(sweep, key) for key in keys}
    before = json.loads(study.user_attrs.get("sweep", "{}"))
    if changed := [key for key in before if before[key] != json.loads(json.dumps(now[key]))]:
        raise RookWorldError(
            f"{path} holds the trials of a sweep with other {', '.join(changed)}; give another "
            "--output_dir"
        )
    study.set_user_attr("sweep", json.dumps(now))
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        trial.state = TrialState.WAITING
        trial.user_attrs = {_FOLDER: name_of(trial)}
        study.add_trial(trial)  # the copy keeps its place in a grid
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def ended(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were scored or failed, without those that were interrupted."""
    return [
        trial
        for trial in study.trials
        if trial.state is TrialState.COMPLETE or _FAILURE in trial.user_attrs
    ]


def name_of(trial: optuna.Trial | FrozenTrial) -> str:
    """The name of a trial's folder: that of an interrupted trial which it continues, or its own."""
    return str(trial.user_attrs.get(_FOLDER, f"trial-{trial.number:03}"))


def log_of(folder: Path) -> Path:
    """The file beside a trial's folder that has what the trial printed."""
    return folder.with_suffix(".log")


def run_trial(sweep: SweepArguments, study: optuna.Study, trial: optuna.Trial) -> FrozenTrial:
    """Run a trial as its own process, from its last checkpoint if it was interrupted.

    Its output goes to a file beside its folder.
    """
    metric: Any = sweep.metric
    folder = sweep.folder / name_of(trial)
    log = log_of(folder)
    command = [*sweep.command_of(trial.params, folder), "--resume_from_checkpoint=auto"]
    code = run_child(command, log)
    try:
        if code:
            raise ValueError(f"exit code {code}, see {log}: {last_line(log)}")
        score = read_score(folder / RESULTS, metric["name"])
    except (OSError, KeyError, ValueError) as error:
        trial.set_user_attr(_FAILURE, str(error) if code else f"no {metric['name']} ({error!r})")
        return study.tell(trial, state=TrialState.FAIL)
    trial.set_user_attr(_INTERVAL, [score.low, score.high])
    return study.tell(trial, score.value)


def read_score(path: Path, metric: str) -> Estimate:
    """A held-out metric of a run's final model, from its ``results.json``, with its 95% interval.

    That of `overall`, a mean, follows from the intervals of its parts by Zou and Donner's square-and-add
    (Statistics in Medicine 27, 2008).

    Raises:
        KeyError: The run has no such metric.
    """
    after = heldout_results(json.loads(path.read_text(encoding="utf-8")), "after")
    name = metric.removeprefix(_PREFIX)
    averaged = [part for part in headlines().values() if part in after]
    parts = [after[part] for part in (averaged if name == "overall" else [name])]
    value = sum(part.value for part in parts) / len(parts)
    below = math.hypot(*(part.value - part.interval[0] for part in parts)) / len(parts)
    above = math.hypot(*(part.interval[1] - part.value for part in parts)) / len(parts)
    return Estimate(value, value - below, value + above, sum(part.n for part in parts))


# --------------------------------------------------------------------------------------------------
# Ranking
# --------------------------------------------------------------------------------------------------
def ranking(sweep: SweepArguments, study: optuna.Study) -> str:
    """A table with the best trial first, the failed trials with the reason, and the best model."""
    metric: Any = sweep.metric
    name, goal = metric["name"], metric["goal"]
    scored = study.get_trials(states=[TrialState.COMPLETE])
    scored.sort(key=lambda trial: trial.value or 0.0, reverse=goal == "maximize")
    wide = max(20, len(name) + 2)
    lines = [f"{'rank':>4}{'trial':>11}{name:>{wide}}{'minutes':>9}   parameters"]
    for rank, trial in enumerate(scored, 1):
        head = f"{rank:>4}{name_of(trial):>11}{trial.value:>{wide}.4f}{minutes(trial):>9.1f}   "
        lines += cells(head, describe(trial.params).split("  ")) or [head]
    failed = [trial for trial in ended(study) if trial.state is TrialState.FAIL]
    if failed:
        lines += ["", f"failed, not scored: {len(failed)}"]
        lines += [f"{name_of(trial):>15}   {outcome(trial, name)}" for trial in failed]
    if scored:
        folder = sweep.folder / name_of(scored[0])
        lines += ["", f"best model: {folder}, {outcome(scored[0], name)}, log {log_of(folder)}"]
    return "\n".join(lines)


def outcome(trial: FrozenTrial, metric: str) -> str:
    """The result of a trial, in one sentence."""
    if _FAILURE in trial.user_attrs:
        return printable(str(trial.user_attrs[_FAILURE]))
    low, high = trial.user_attrs[_INTERVAL]
    return f"{metric} {trial.value:.4f} [{low:.4f}, {high:.4f}]"


def minutes(trial: FrozenTrial) -> float:
    """How long a trial took."""
    return trial.duration.total_seconds() / 60 if trial.duration else 0.0


def describe(values: Values) -> str:
    """Parameters in one line, with two blanks between them."""
    shown = {
        k: f"{value:.4g}" if isinstance(value, float) else value for k, value in values.items()
    }
    return "  ".join(f"{key} {value}" for key, value in shown.items())
