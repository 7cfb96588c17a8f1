"""A run's folder as one record, with a sentence for each thing that is missing."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...common.errors import RookWorldError
from ...common.files import read_json_lines
from ...common.stats import Paired
from ...evaluation.pass_at_k import RightCounts, read_counts
from ...tasks.metrics import Results
from ...tasks.registry import TASKS
from ...training import results as files
from ...training.health import HEALTH_FILE
from ...training.resuming import checkpoints

RUN_REPORT = Path(__file__).with_name("run_report.yaml")  # what a report shows
_STATE = "trainer_state.json"
_OPTIONAL = (files.EVALUATION, files.HELDOUT_PASS)  # what only some runs write
Logs = Mapping[str, Any]
AnswerRecord = Mapping[str, Any]  # the keys that `run_folder.write_answers` gives


class AnswerPair(NamedTuple):
    """A held-out row that was answered before and after training."""

    before: AnswerRecord
    after: AnswerRecord


@dataclass(slots=True)
class RunRecord:
    """What a run's folder holds; a field is empty or None if the folder lacks it.

    Args:
        name: Unique among the runs of a report.
        config: The resolved configuration.
        sessions: Of ``provenance.json``, the oldest first.
        history: The trainer's logs in their order, each with its ``step``.
        before: Held-out results before the first step.
        after: Held-out results of the model that the run ended with.
        results: The rest of ``results.json``.
        answers: Held-out rows with both answers.
        health: Findings; None if the run was not watched.
        evaluation: ``evaluation.json``.
        right: Counts for pass@k, ``before`` and ``after`` training, by task; empty if not measured.
        missing: What is missing, one sentence each.
        changes: How held-out metrics changed row by row.
    """

    name: str
    config: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]] = ()
    history: Sequence[Logs] = ()
    before: Results = field(default_factory=dict)
    after: Results = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    answers: Sequence[AnswerPair] = ()
    health: Sequence[Mapping[str, Any]] | None = None
    evaluation: Mapping[str, Any] | None = None
    right: Mapping[str, Mapping[str, RightCounts]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    changes: Mapping[str, Paired] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run finished."""
        return bool(self.results)

    @property
    def best_step(self) -> int | None:
        """The optimiser step of the saved weights; None if the folder does not say."""
        return self.results.get("best_step")

    @property
    def rows(self) -> Mapping[str, int]:
        """Held-out rows by metric."""
        return {name: result.n for name, result in {**self.before, **self.after}.items()}

    def points(self, name: str) -> list[tuple[float, float]]:
        """Step and value of a metric, wherever it was logged as a finite number.

        A step that was measured twice, as in a resumed run, has its last value.
        """
        values = {
            float(logs["step"]): float(logs[name])
            for logs in self.history
            if isinstance(logs.get(name), int | float) and math.isfinite(logs[name])
        }
        return list(values.items())


def read_runs(folders: Sequence[str]) -> list[RunRecord]:
    """Read folders, each under a name of its own.

    Raises:
        RookWorldError: One of them is not a run.
    """
    paths = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    names = [path.name for path in paths]
    return [
        read_run(path, path.name if names.count(path.name) == 1 else "/".join(path.parts[-2:]))
        for path in paths
    ]


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a run's folder, finished or not.

    Raises:
        RookWorldError: It is not a run of `recipes/grpo.py`.
    """
    missing: list[str] = []

    def read(file: str, nothing: Any, reader: Callable[[Path], Any] | None = None) -> Any:
        """A file's content; `nothing`, and a sentence, if it is absent or broken."""
        path = folder / file
        try:
            found = reader(path) if reader else json.loads(path.read_text(encoding="utf-8"))
            if isinstance(nothing, dict | list) and not isinstance(found, type(nothing)):
                raise TypeError("it is empty, or not of the form that a run writes")
            return found
        except FileNotFoundError:
            missing.extend([] if file in _OPTIONAL else [f"There is no {file}."])
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            missing.append(f"{file} could not be read ({' '.join(str(error).split())}).")
        return nothing

    config = read(files.RESOLVED_CONFIG, {}, lambda path: yaml.safe_load(path.read_text("utf-8")))
    if "num_generations" not in config:
        raise RookWorldError(
            f"run: {str(folder)!r} is not a run of rookworld grpo; give the output_dir of one (what "
            f"other commands have measured is in their {files.CARD}). {' '.join(missing)}".strip()
        )
    if unknown := [task for task in config.get("tasks", ()) if task not in TASKS]:
        raise RookWorldError(
            f"run: {name} has the task {unknown[0]}, which is your own; add --tasks_from "
            f"{' '.join(config.get('tasks_from', ['path/to/file.py:Class']))}"
        )
    saved = [f"{path.name}/{_STATE}" for path in checkpoints(folder)[-1:]]
    state = saved[0] if saved and not (folder / _STATE).is_file() else _STATE
    results = read(files.RESULTS, {})
    before = read(files.ANSWERS_BEFORE, [], read_json_lines)
    after = read(files.ANSWERS_AFTER, [], read_json_lines)
    answers = _pairs(before, after)
    if before and after and not answers:
        missing.append("The answers before and after belong to different rows.")
    run = RunRecord(
        name,
        config,
        sessions=read(files.PROVENANCE, {}).get("sessions", ()),
        history=read(state, {}).get("log_history", ()),
        before=files.heldout_results(results or read(files.HELDOUT_BEFORE, {}), "before"),
        after=files.heldout_results(results, "after"),
        results={key: value for key, value in results.items() if key != "heldout"},
        answers=answers,
        health=read(HEALTH_FILE, None, read_json_lines),
        evaluation=read(files.EVALUATION, None),
        right=read(files.HELDOUT_PASS, ({}, {}), read_counts)[1],
        missing=missing,
        changes=files.compared(folder) if answers else {},
    )
    if not run.finished:
        missing.append(f"The run did not finish; its curves are those of {state}.")
    return run


def _pairs(before: Sequence[AnswerRecord], after: Sequence[AnswerRecord]) -> list[AnswerPair]:
    """The answers to each row; empty if they are not of the same rows."""
    if [answer["prompt"] for answer in before] != [answer["prompt"] for answer in after]:
        return []
    return [AnswerPair(*pair) for pair in zip(before, after, strict=True)]


# --------------------------------------------------------------------------------------------------
# Answers before and after training
# --------------------------------------------------------------------------------------------------
class Errors(NamedTuple):
    """Errors of one task's held-out answers; an answer may have several kinds."""

    task: str
    rows: int  # that have a score
    kinds: dict[str, list[int]]  # kind → rows before, and after; the most frequent first


class AnswerGroup(NamedTuple):
    """Answers of one kind, the clearest example first."""

    task: str
    title: str
    pairs: Sequence[AnswerPair]


def scored(pairs: Sequence[AnswerPair], task: str) -> list[AnswerPair]:
    """A task's pairs with two scores."""
    return [
        pair
        for pair in pairs
        if pair.after["task"] == task and None not in (pair.before["score"], pair.after["score"])
    ]


def errors(pairs: Sequence[AnswerPair]) -> list[Errors]:
    """Errors by task and kind, see `Task.errors`."""
    found = []
    for name, task in TASKS.items():
        kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        of_task = scored(pairs, name)
        for side, answer in (each for pair in of_task for each in enumerate(pair)):
            for kind in task.errors(answer["prompt"], answer["completion"], answer["values"]):
                kinds[kind][side] += 1
        order = sorted(kinds.items(), key=lambda item: (-max(item[1]), item[0]))
        if of_task:
            found.append(Errors(name, len(of_task), dict(order)))
    return found


def choose(pairs: Sequence[AnswerPair], count: int) -> list[AnswerGroup]:
    """The answers to show, no row twice: most gained, most lost, worst, best.

    Rows of equal quality keep their order; a row that was not scored is left out.

    Args:
        pairs: Of all tasks.
        count: Of each kind.
    """
    choices = []
    for task in TASKS:
        left = scored(pairs, task)
        orders: dict[str, Callable[[AnswerPair], float]] = {
            "most gained": lambda pair: -max(0.0, change(pair)),
            "most lost": lambda pair: min(0.0, change(pair)),
            "worst": lambda pair: quality(pair.after),
            "best": lambda pair: -quality(pair.after),
        }
        for title, order in orders.items():
            chosen = sorted(left, key=order)[:count]
            if title.startswith("most"):
                chosen = [pair for pair in chosen if order(pair)]
            left = [pair for pair in left if pair not in chosen]
            choices += [AnswerGroup(task, title, chosen)] if chosen else []
    return choices


def quality(answer: AnswerRecord) -> float:
    """How good an answer is, in [0, 1], see `Task.quality`."""
    return TASKS[answer["task"]].quality(answer["score"])


def change(pair: AnswerPair) -> float:
    """How much better training has made an answer, in [-1, 1]."""
    return quality(pair.after) - quality(pair.before)
