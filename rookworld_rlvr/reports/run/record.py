"""A run's folder as one record, with a sentence for each thing that is missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...common.errors import RookWorldError
from ...common.stats import Paired
from ...evaluation.pass_at_k import RightCounts, read_counts
from ...tasks.metrics import Results, compare
from ...tasks.registry import TASKS
from ...training.checkpoints import checkpoints
from ...training.health.monitor import HEALTH_FILE
from ...training.results import (
    ANSWERS_AFTER,
    ANSWERS_BEFORE,
    CARD,
    EVALUATION,
    HELDOUT_BEFORE,
    HELDOUT_PASS,
    PROVENANCE,
    RESOLVED_CONFIG,
    RESULTS,
    heldout_results,
    read_proportions,
)

LEDGER = "ledger.jsonl"  # of `rookworld evolve`
_STATE = "trainer_state.json"
_OTHERS = {
    "new_model": "sft",
    "completion_only_loss": "sft",
    "train_pairs": "judge",
}  # a key of theirs → the command
Logs = Mapping[str, Any]
Answer = Mapping[str, Any]  # the keys that `run_folder.write_answers` gives


class AnswerPair(NamedTuple):
    """A held-out row that was answered before and after training."""

    before: Answer
    after: Answer


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
        """Step and value of a metric, wherever it was logged as a number.

        A step that was measured twice, as in a resumed run, has its last value.
        """
        values = {
            float(logs["step"]): float(logs[name])
            for logs in self.history
            if isinstance(logs.get(name), int | float)
        }
        return list(values.items())


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The entries of a folder's ledger; empty without one."""
    path = folder / LEDGER
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def read_runs(folders: Sequence[str]) -> list[RunRecord]:
    """Read folders, each under a name of its own.

    Raises:
        RookWorldError: One of them is not a run, or is given twice.
    """
    paths = [Path(folder) for folder in folders]
    resolved = [path.resolve() for path in paths]
    for path, place in zip(paths, resolved, strict=True):
        if resolved.count(place) > 1:
            raise RookWorldError(f"run: {str(path)!r} is given twice; give each folder once")
    names = [place.name for place in resolved]
    return [
        read_run(path, place.name if names.count(place.name) == 1 else "/".join(place.parts[-2:]))
        for path, place in zip(paths, resolved, strict=True)
    ]


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a run's folder, finished or not.

    Raises:
        RookWorldError: It is not a run of `recipes/grpo.py`.
    """
    config = folder / RESOLVED_CONFIG
    if not config.is_file():
        kind = f"has no {RESOLVED_CONFIG}" if folder.is_dir() else "is not a folder"
        raise RookWorldError(
            f"run: {str(folder)!r} {kind}; give the output_dir of a run of rookworld grpo"
        )
    try:
        values = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RookWorldError(f"run: {str(config)!r} could not be read ({reason})") from error
    values = values if isinstance(values, dict) else {}
    for key, command in _OTHERS.items():
        if key in values:
            raise RookWorldError(
                f"run: {str(folder)!r} is of rookworld {command}, whose results are in its {CARD}; give "
                "the output_dir of a run of rookworld grpo"
            )
    run = RunRecord(name, values)
    unknown = f"There is no {PROVENANCE}: versions, machine, command and duration are not known."
    run.sessions = _read(run, folder / PROVENANCE, {}, unknown).get("sessions", ())
    _read_history(run, folder)
    _read_results(run, folder)
    _read_answers(run, folder)
    unwatched = f"There is no {HEALTH_FILE}: the run's health was not watched."
    run.health = _read(run, folder / HEALTH_FILE, None, unwatched, _json_lines)
    run.evaluation = _read(run, folder / EVALUATION, None)
    _, run.right = _read(run, folder / HELDOUT_PASS, ({}, {}), read=read_counts)
    return run


# --------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------
def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _read(
    run: RunRecord,
    path: Path,
    nothing: Any,
    absent: str = "",
    read: Callable[[Path], Any] = _json,
) -> Any:
    """A file's content; `nothing`, and a sentence in `missing`, if it is absent or broken."""
    if not path.is_file():
        run.missing += [absent] if absent else []
        return nothing
    try:
        return read(path)
    except (OSError, ValueError, TypeError) as error:
        run.missing.append(f"{path.name} could not be read ({error}).")
        return nothing


def _read_history(run: RunRecord, folder: Path) -> None:
    """Read the log at the run's root, or for a run that was killed, that of its last checkpoint."""
    path = folder / _STATE
    if not path.is_file():
        saved = [state for last in checkpoints(folder)[-1:] for state in last.glob(_STATE)]
        if not saved:
            run.missing.append("There is no checkpoint and no log, so there are no curves.")
            return
        path = saved[0]
        run.missing.append(f"The curves end with {path.parent.name}, the last one saved.")
    run.history = _read(run, path, {}).get("log_history", ())


def _read_results(run: RunRecord, folder: Path) -> None:
    uncounted = f"There is no {HELDOUT_BEFORE}: held-out rows were not counted."
    run.before = _read(run, folder / HELDOUT_BEFORE, {}, uncounted, read_proportions)
    if not (folder / RESULTS).is_file():
        run.missing.append(f"There is no {RESULTS}: the run did not finish.")
        return
    results = {"heldout": {}, **_read(run, folder / RESULTS, {})}
    run.before, run.after = (heldout_results(results, when) for when in ("before", "after"))
    run.results = {key: value for key, value in results.items() if key != "heldout"}


def _read_answers(run: RunRecord, folder: Path) -> None:
    paths = folder / ANSWERS_BEFORE, folder / ANSWERS_AFTER
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        run.missing.append(
            f"There is no {' and no '.join(absent)}, so answers before and after are not compared."
        )
        return
    before, after = (_read(run, path, [], read=_json_lines) for path in paths)
    if [answer["prompt"] for answer in before] != [answer["prompt"] for answer in after]:
        run.missing.append("The answers before and after belong to different rows.")
        return
    run.answers = [AnswerPair(*pair) for pair in zip(before, after, strict=True)]


# --------------------------------------------------------------------------------------------------
# Answers before and after training
# --------------------------------------------------------------------------------------------------
class Errors(NamedTuple):
    """Errors of one task's held-out answers; an answer may have several kinds."""

    task: str
    rows: int  # that have a score
    kinds: dict[str, tuple[int, int]]  # kind → rows before, and after; the most frequent first


class Choice(NamedTuple):
    """Answers of one kind, the clearest example first."""

    task: str
    title: str
    pairs: Sequence[AnswerPair]


def changes(pairs: Sequence[AnswerPair]) -> dict[str, Paired]:
    """Metric → how its answers changed row by row; both need a score."""
    sides = _sides(_scored(pairs))
    return compare(sides[1], *([answer["score"] for answer in side] for side in sides))


def errors(pairs: Sequence[AnswerPair]) -> list[Errors]:
    """Errors by task and kind, see `Task.errors`."""
    found = []
    for name, task in TASKS.items():
        mine = [pair for pair in _scored(pairs) if pair.after["task"] == name]
        before, after = (
            Counter(
                kind
                for answer in side
                for kind in task.errors(answer["prompt"], answer["completion"], answer["values"])
            )
            for side in _sides(mine)
        )
        order = sorted(before | after, key=lambda kind: (-max(before[kind], after[kind]), kind))
        if mine:
            found.append(
                Errors(name, len(mine), {kind: (before[kind], after[kind]) for kind in order})
            )
    return found


def _scored(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """The pairs with two scores, of known tasks."""
    return [
        pair
        for pair in pairs
        if pair.after["task"] in TASKS and None not in (pair.before["score"], pair.after["score"])
    ]


def _sides(pairs: Sequence[AnswerPair]) -> tuple[list[Answer], list[Answer]]:
    return [before for before, _ in pairs], [after for _, after in pairs]


def choose(pairs: Sequence[AnswerPair], count: int) -> list[Choice]:
    """The answers to show, no row twice: most gained, most lost, worst, best.

    Rows of equal quality keep their order; a row that was not scored is left out.

    Args:
        pairs: Of all tasks.
        count: Of each kind.
    """
    choices = []
    for task in TASKS:
        mine = [p for p in pairs if p.after["task"] == task and p.after["score"] is not None]
        orders = {
            "most gained": sorted((p for p in mine if change(p) > 0), key=change, reverse=True),
            "most lost": sorted((p for p in mine if change(p) < 0), key=change),
            "worst": sorted(mine, key=lambda pair: quality(pair.after)),
            "best": sorted(mine, key=lambda pair: quality(pair.after), reverse=True),
        }
        seen: list[AnswerPair] = []
        for title, order in orders.items():
            chosen = [pair for pair in order if pair not in seen][:count]
            seen += chosen
            if chosen:
                choices.append(Choice(task, title, chosen))
    return choices


def quality(answer: Answer) -> float:
    """How good an answer is, in [0, 1], see `Task.quality`."""
    return TASKS[answer["task"]].quality(answer["score"])


def change(pair: AnswerPair) -> float:
    """How much better training has made an answer, in [-1, 1]."""
    return quality(pair.after) - quality(pair.before)
