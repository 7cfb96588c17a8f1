"""Held-out evaluation during training: rows are answered greedily, and suites are run."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from datasets import Dataset, IterableDataset
from transformers import Trainer
from transformers.trainer_utils import IntervalStrategy

from ..common.progress import quiet
from ..common.stats import Estimate, estimate
from ..models.decoding import shared
from ..tasks.metrics import Results, evaluate_completions, headline
from ..tasks.registry import asked, row_task
from .results import ANSWERS_BEFORE, HELDOUT_BEFORE, OWN_REWARDS, write_results
from .run_folder import write_answers
from .sampling import decode

if TYPE_CHECKING:
    from ..evaluation.pass_at_k import RightCounts
    from ..evaluation.results import SuiteResult
    from ..evaluation.suite import Suite
    from .trainer import RookWorldGRPOTrainer
    from .weights import Averaging, Guard


def without_evaluation(args: Any) -> Any:
    """A copy of a trainer's arguments for a run without held-out rows; its last weights are kept."""
    args = copy.copy(args)
    args.eval_on_start, args.eval_strategy = False, IntervalStrategy.NO
    args.load_best_model_at_end = False
    return args


def heldout_faults(args: Any, rows: Any) -> list[str]:
    """What held-out rows lack, one sentence each.

    Args:
        args: The trainer's arguments.
        rows: What `evaluate` takes: a data set, a dictionary of several, or None.
    """
    if rows is None:
        return [
            f"{key}: {value!r} is measured on held-out rows; give the trainer an eval_dataset"
            for key in ("guard", "pass_samples")
            if (value := getattr(args, key, None))
        ]
    named = rows.items() if isinstance(rows, Mapping) else [("", rows)]
    return [
        f"eval_dataset{name and f' {name!r}'}: rows of the task {task} need the column fen"
        for name, part in named
        if (task := task_among(part)) and "fen" not in next(iter(part))
    ]


def task_among(rows: Any) -> str | None:
    """The task of the first row that has one; an iterable data set is judged by its first row."""
    if isinstance(rows, IterableDataset):
        rows = rows.take(1)
    return next((task for row in rows if (task := row_task(row)) is not None), None)


def with_task(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its task, None if it has none, and its prompt as text, for what scores answers."""
    return {**row, "task": row_task(row), "prompt": asked(row)}


class HeldoutEvaluation:
    """Measures a trainer's policy on held-out rows and suites; keeps the first and the latest results.

    Args:
        trainer: The `RookWorldGRPOTrainer`.

    Attributes:
        results: Results of the latest evaluation, by metric; ``rewards/<name>`` is the mean of a reward
            of the user's own.
        completions: The answers of the latest evaluation, one per row.
        before: Results of the evaluation before training.
        suites: Suites to run with every evaluation.
        suite_results: The suites' results in the latest evaluation.
        suites_before: The suites' results before training.
        resumed_at: The optimiser step at which training was resumed; None if it was not.
        right: Counts of right samples for pass@k, ``before`` and ``after`` training, by task.
    """

    def __init__(self, trainer: RookWorldGRPOTrainer) -> None:
        self.trainer = trainer
        self.folder = str(trainer.args.output_dir)
        self.results: Results = {}
        self.completions: Sequence[str] = ()
        self.before: Results | None = None
        self.suites: Sequence[Suite] = ()
        self.suite_results: Mapping[str, SuiteResult] = {}
        self.suites_before: Mapping[str, SuiteResult] | None = None
        self.right: dict[str, Mapping[str, RightCounts]] = {}
        self.resumed_at: int | None = None
        self._measured: dict[int, Any] = {}  # step → results, completions and suites' results

    def evaluate(self, rows: Any, prefix: str) -> dict[str, float]:
        """Evaluate, log the metrics and tell the callbacks; see `run`.

        A run that goes on from a checkpoint was evaluated before its first step, so the evaluation at
        its start is left out.
        """
        trainer = self.trainer
        at_start = trainer.is_in_train and trainer.state.global_step == self.resumed_at
        if at_start and self.before is not None and rows is trainer.eval_dataset:
            return {}
        metrics = self.run(rows, prefix)
        # TRL's own would add the metrics of the steps since the last log.
        Trainer.log(trainer, {**metrics, **trainer.clock.elapsed()})
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
        return metrics

    def run(self, rows: Any, prefix: str) -> dict[str, float]:
        """Evaluate on held-out rows; every process answers its share of them.

        Args:
            rows: `N` rows, at least one of them of a task, with the columns that `data` documents.
            prefix: Goes before each metric's name, with an underscore.

        Returns:
            Metrics in [0, 1] by name, with ``<prefix>_overall``, own rewards and the suites' metrics in
            their own units, and ``<prefix>_runtime`` in seconds.
        """
        started = time.perf_counter()
        is_quiet = bool(self.trainer.args.disable_tqdm)
        answer = partial(decode, self.trainer)
        items = [*rows]
        with quiet(is_quiet):
            self.completions = shared([row["prompt"] for row in items], answer, "held-out rows")
            rewards = self._user_rewards(items)
        judged = [with_task(row) for row in items]
        self.results = {**evaluate_completions(judged, self.completions), **rewards}
        is_first = (
            self.trainer.is_in_train and self.before is None and rows is self.trainer.eval_dataset
        )
        if is_first:
            self.before = self.results
            if self.trainer.accelerator.is_main_process:
                write_results(Path(self.folder) / HELDOUT_BEFORE, {"before": self.results})
                write_answers(Path(self.folder) / ANSWERS_BEFORE, judged, self.completions)
        metrics = {name: result.value for name, result in self.results.items()}
        metrics["overall"] = headline(self.results)
        with quiet(is_quiet):
            metrics |= self._run_suites()
        if self.trainer.is_in_train and rows is self.trainer.eval_dataset:
            found = (self.results, self.completions, self.suite_results)
            self._measured[self.trainer.state.global_step] = found
        metrics["runtime"] = time.perf_counter() - started
        if is_first:
            self.suites_before = self.suite_results
            metrics |= self._sample(rows, "before")
        return {f"{prefix}_{name}": value for name, value in metrics.items()}

    def run_final(self) -> int:
        """The results of the final weights: those of the best checkpoint, or of the last step.

        What this process measured in training is used again. A resumed run evaluates a step of an
        earlier process. The results are logged only if that step has none yet, so that every number is
        logged for its own step.

        Returns:
            The optimiser step of the weights.
        """
        state = self.trainer.state
        best = state.best_model_checkpoint if self.trainer.args.load_best_model_at_end else None
        step: int = state.global_step if best is None else int(Path(best).name.split("-")[-1])
        if step in self._measured:
            self.results, self.completions, self.suite_results = self._measured[step]
        elif any("eval_overall" in log and log["step"] == step for log in state.log_history):
            self.run(self.trainer.eval_dataset, "eval")
        else:
            self.trainer.evaluate()
        if sampled := self._sample(self.trainer.eval_dataset, "after"):
            Trainer.log(self.trainer, {f"eval_{name}": value for name, value in sampled.items()})
        return step

    def _sample(self, rows: Dataset, when: str) -> dict[str, float]:
        """pass@k of the weights that answered last; nothing if `pass_samples` is 0."""
        if not getattr(self.trainer.args, "pass_samples", 0):
            return {}
        from .measurements import measure_pass

        return measure_pass(self.trainer, rows, when)

    def _user_rewards(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Estimate]:
        """Means of the user's own rewards over the rows that they give a number for.

        Raises:
            RookWorldError: On all processes, if one failed on too many rows, see `RewardGuard`.
        """
        found: dict[str, Estimate] = {}
        if not (own := self.trainer.reward_guard.own):
            return found
        from ..rewards.trial import score

        answered = list(zip(rows, self.completions, strict=True))
        for name, func in own.items():
            numbers = shared(answered, partial(score, self.trainer, func), f"held-out rows: {name}")
            self.trainer.reward_guard.failures(len(numbers))
            if values := [number for number in numbers if number is not None]:
                found[f"{OWN_REWARDS}{name}"] = estimate("amount", values)
        return found

    def _run_suites(self) -> dict[str, float]:
        """Run the suites; gives their metrics, except those of groups of items."""
        if not self.suites:
            return {}
        from ..evaluation.models import LanguageModel

        policy = LanguageModel(self.folder, partial(decode, self.trainer))
        self.suite_results = {suite.name: suite.run(policy) for suite in self.suites}
        return {
            f"suites/{suite}/{metric}": found.value
            for suite, result in self.suite_results.items()
            for metric, found in result.metrics().items()
            if "/" not in metric
        }


class HeldoutTrainer(Trainer):
    """Mixin for TRL's trainer: it is evaluated by held-out answers, and keeps the best by them."""

    averaging: Averaging | None
    guard: Guard | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heldout = HeldoutEvaluation(self)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Answer held-out rows greedily instead of taking TRL's loss on them.

        Rows of no task are evaluated as TRL does: sampled, and measured by the run's own rewards. Of
        several data sets in a dictionary, each has metrics of its own, and ``overall`` is the mean of
        theirs.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        rows = self.eval_dataset[rows] if isinstance(rows, str) else rows  # of several data sets
        averaging = self.averaging if self.is_in_train else None
        with nullcontext() if averaging is None else averaging.evaluating():
            return self._evaluated(rows, ignore_keys, metric_key_prefix)

    def _evaluated(self, rows: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
        """The metrics of one data set, or of each in a dictionary."""
        if isinstance(rows, Mapping):
            metrics: dict[str, float] = {}
            for name, part in rows.items():
                metrics |= self._evaluated(part, ignore_keys, f"{prefix}_{name}")
            overall = fmean(metrics[f"{prefix}_{name}_overall"] for name in rows)
            return {**metrics, f"{prefix}_overall": overall}
        if task_among(rows) is not None:
            return self.heldout.evaluate(rows, prefix)
        metrics = super().evaluate(rows, ignore_keys, prefix)
        rewards = {
            f"{prefix}_{name.removeprefix('eval_')}": value
            for name, value in self.state.log_history[-1].items()
            if name.startswith(("eval_reward", "eval_rewards/"))
        }
        return {**metrics, **rewards, f"{prefix}_overall": rewards[f"{prefix}_reward"]}

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Never the best is a step that loses more than its guard allows, or that is not saved."""
        keeps = self.guard is None or self.guard.keeps(metrics)
        if not (keeps and self._is_saved()):
            return False
        return bool(super()._determine_best_metric(metrics=metrics, trial=trial))

    def _is_saved(self) -> bool:
        """Whether this step gets a checkpoint: by `save_steps`, the last step always."""
        state = self.state
        is_due = state.global_step >= state.max_steps or not state.global_step % state.save_steps
        return self.args.save_strategy != "steps" or is_due
