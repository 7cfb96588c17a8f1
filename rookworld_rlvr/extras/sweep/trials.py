"""Sweeps without W&B's server: the trials of a W&B sweep file, one after the other.

A sweep file has W&B's format (https://docs.wandb.ai/guides/sweeps/define-sweep-configuration), so
`wandb sweep` takes the same file. What a trial draws follows from its number, and its record is a file
beside its folder, so that an interrupted sweep goes on where it was.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...common.child import last_line, run_child
from ...common.files import replace_text, shipped
from ...common.settings import Checked, setting
from ...common.stats import Estimate
from ...common.terminal import cells, printable
from ...tasks.metrics import headlines, training_metrics, unknown_metric
from ...training.results import RESULTS, heldout_results

_PREFIX = "eval/"


_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")  # W&B's own default


_RANGES: dict[str, Callable[[random.Random, Any, Any], float]] = {
    "uniform": random.Random.uniform,
    "int_uniform": random.Random.randint,
    "log_uniform_values": lambda rng, *ends: math.exp(rng.uniform(*map(math.log, ends))),
}


TrialKeys = Mapping[str, Any]


def _metric_faults(metric: Mapping[str, Any], where: str) -> list[str]:
    if metric.keys() != {"name", "goal"} or metric["goal"] not in ("maximize", "minimize"):
        remedy = "write {name: eval/overall, goal: maximize}"
        return [f"{where}: {metric!r} is not supported; {remedy}"]
    known = [_PREFIX + name for name in training_metrics()]
    name = metric["name"]
    return [] if name in known else [f"{where}: {unknown_metric(name, known, _PREFIX)}"]


@dataclass
class SweepArguments(Checked):
    """The keys of a sweep file, and of the command."""

    program: str = setting(
        "recipes/grpo.py",
        "The script, relative to the folder that you start in; the packaged one if it is not there.",
    )
    method: Literal["grid", "random"] = setting(
        "random", "How parameters are drawn: `grid` tries every combination of `values`."
    )
    metric: dict[str, Any] | str = setting(
        lambda: {"name": "eval/overall", "goal": "maximize"},
        "A held-out metric of the best checkpoint, and whether to `maximize` or to `minimize` it.",
        check=_metric_faults,
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
    seed: int = setting(0, "The seed of the draws.")
    output_dir: str | None = setting(None, "The folder of the trials; by default `runs/<name>`.")

    def faults(self) -> list[str]:
        """What no key shows alone, one sentence each."""
        faults = []
        if self.method == "random" and self.count is None:
            faults.append("count: missing; a random sweep needs a number of trials")
        if not isinstance(self.parameters, Mapping) or not self.parameters:
            return [*faults, "parameters: must be a mapping of recipe keys to their values"]
        if "output_dir" in self.parameters:
            faults.append("parameters: output_dir: every trial has its own folder; leave it out")
        return faults + [
            f"parameters: {key}: {spec!r} is not supported; give value, a list of values, or, unless "
            f"method is grid, the numbers min and max with distribution {', '.join(_RANGES)}"
            for key, spec in self.parameters.items()
            if not _is_supported(spec, self.method)
        ]

    @property
    def script(self) -> str:
        """`program`, or the packaged script of its name if there is no such file here."""
        packaged = shipped("recipes") / Path(self.program).name
        is_elsewhere = not Path(self.program).is_file() and packaged.is_file()
        return str(packaged) if is_elsewhere else self.program

    def trial_folder(self, number: int) -> Path:
        """A trial's folder; its log has the same name with ``.log``."""
        return Path(self.output_dir or f"runs/{self.name}") / f"trial-{number:03}"

    def trials(self) -> list[dict[str, Any]]:
        """The parameters of all trials in order; those of a number are the same whatever the count."""
        parameters: Any = self.parameters
        if self.method == "grid":
            combinations = itertools.product(*map(_choices, parameters.values()))
            every = [dict(zip(parameters, values, strict=True)) for values in combinations]
            return every[: self.count]
        seeds = (f"{self.seed}:{number}" for number in range(self.count or 0))
        return [
            {key: _draw(spec, random.Random(f"{seed}:{key}")) for key, spec in parameters.items()}
            for seed in seeds
        ]

    def command_of(self, values: TrialKeys, folder: Path) -> list[str]:
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
# W&B's format
# --------------------------------------------------------------------------------------------------
def _is_supported(spec: Any, method: str) -> bool:
    keys = spec.keys() if isinstance(spec, Mapping) else set()
    if keys - {"distribution"} == {"min", "max"} and method != "grid":
        kind, ends = spec.get("distribution", "uniform"), [spec["min"], spec["max"]]
        types = {int} if kind == "int_uniform" else {int, float}
        are_numbers = set(map(type, ends)) <= types and ends == sorted(ends)
        return kind in _RANGES and are_numbers and (ends[0] > 0 or not kind.startswith("log"))
    is_list = keys == {"values"} and isinstance(spec["values"], list) and bool(spec["values"])
    return is_list or keys == {"value"}


def _choices(spec: TrialKeys) -> list[Any]:
    """A parameter's values, lists and mappings as JSON, which the command line takes too."""
    values = spec["values"] if "values" in spec else [spec["value"]]
    return [json.dumps(value) if isinstance(value, list | dict) else value for value in values]


def _draw(spec: TrialKeys, rng: random.Random) -> Any:
    if "min" not in spec:
        return rng.choice(_choices(spec))
    low, high = spec["min"], spec["max"]
    usual = "int_uniform" if isinstance(low + high, int) else "uniform"
    return _RANGES[spec.get("distribution", usual)](rng, low, high)


# --------------------------------------------------------------------------------------------------
# Trials
# --------------------------------------------------------------------------------------------------
def run_trial(sweep: SweepArguments, number: int, values: TrialKeys, recipe: str) -> dict[str, Any]:
    """Run a trial as its own process, from its last checkpoint if it was interrupted; its record.

    Its output goes to a file beside its folder, as does its record once it has a score. A trial with a
    record is not run again, unless its command changed, or its resolved recipe, which has the checksums
    of the user's files.
    """
    metric: Any = sweep.metric
    folder = sweep.trial_folder(number)
    log, file = folder.with_suffix(".log"), folder.with_suffix(".json")
    made_of = {"command": sweep.command_of(values, folder), "recipe": recipe}
    record: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if {key: record.get(key) for key in made_of} == made_of:
        return record
    folder.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    code = run_child([*made_of["command"], "--resume_from_checkpoint=auto"], log)
    record = {"trial": folder.name, "parameters": dict(values), **made_of}
    record["minutes"] = (time.monotonic() - started) / 60
    try:
        if code:
            raise ValueError(f"exit code {code}, see {log}: {last_line(log)}")
        score = read_score(folder / RESULTS, metric["name"])
    except (OSError, KeyError, ValueError) as error:
        return {**record, "failure": str(error) if code else f"no {metric['name']} ({error!r})"}
    record |= {"score": score.value, "interval": [score.low, score.high]}
    replace_text(file, json.dumps(record, indent=2) + "\n")
    return record


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
def ranking(sweep: SweepArguments, records: Sequence[Mapping[str, Any]]) -> str:
    """A table with the best trial first, the failed trials with the reason, and the best model."""
    metric: Any = sweep.metric
    fixed = {key for key, spec in (sweep.parameters or {}).items() if "value" in spec}  # type: ignore
    scored = [record for record in records if "score" in record]
    scored.sort(key=lambda record: record["score"], reverse=metric["goal"] == "maximize")
    wide = max(20, len(metric["name"]) + 2)
    lines = [f"{'rank':>4}{'trial':>11}{metric['name']:>{wide}}{'minutes':>9}   parameters"]
    for rank, record in enumerate(scored, 1):
        head = f"{rank:>4}{record['trial']:>11}{record['score']:>{wide}.4f}"
        head += f"{record['minutes']:>9.1f}   "
        varied = {key: value for key, value in record["parameters"].items() if key not in fixed}
        lines += cells(head, describe(varied or record["parameters"]))
    lines += [f"failed: {r['trial']}, {outcome(r)}" for r in records if "failure" in r]
    if scored:
        best = sweep.trial_folder(0).with_name(scored[0]["trial"])
        lines.append(f"best model: {best}, {outcome(scored[0])}")
    return "\n".join(lines)


def outcome(record: Mapping[str, Any]) -> str:
    """The result of a trial, in one sentence."""
    if "failure" in record:
        return printable(record["failure"])
    low, high = record["interval"]
    return f"{record['score']:.4f} [{low:.4f}, {high:.4f}]"


def describe(values: TrialKeys) -> list[str]:
    """Parameters with their values."""
    return [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    ]
