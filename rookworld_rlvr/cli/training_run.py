"""What the scripts that train a model have in common: from the recipe to the card.

A script builds a `TrainingRun` and calls its methods in this order; its own work stands between them:
`load_data`, `open_folder`, `train`, `record` and `push`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import ModelConfig

from ..common.extras import extra
from ..common.terminal import keep_log, wrapped
from ..data.loading import DataArguments, LoadedData, load_data
from ..engine.truth import PolicyTruth
from ..training.callbacks import StopOnInterrupt, print_short_lines
from ..training.config import RunArguments
from ..training.model_card import Run
from ..training.run_folder import (
    goes_on,
    open_folder,
    open_provenance,
    quarantine_path,
    resume_point,
)
from .parser import DEFAULTS, StrictParser


class TrainingRun:
    """A run of a script: what it was given, its folder, its checkpoint, how it stops.

    Args:
        command: The command that runs it: ``grpo``, ``sft`` or ``judge``.
        argv: The command line.
        groups: The dataclasses of its keys; among them `RunArguments`, `DataArguments`, `ModelConfig`
            and the trainer's.
        recipe: The recipe that is used without ``--config``.
        check: Faults that show only when several dataclasses are compared.

    Attributes:
        arguments: The dataclasses, in the order of `groups`.
        is_dry: Whether to look only; then nothing is written, resumed or pushed.
        checkpoint: The checkpoint to resume from; None to start anew.
        goes_on: Whether it continues the run in its own folder, and not one from elsewhere.
        boards: W&B's boards, a module; None if the run does not log there.
        repository: The repository on the Hub that it is pushed to, None if none.

    Raises:
        ConfigurationError: With all faults of the command line and the recipe.
        RookWorldError: See `resume_point` and `create_repository`.
    """

    def __init__(
        self,
        command: str,
        argv: Sequence[str],
        groups: Sequence[type],
        recipe: Path,
        check: Callable[..., list[str]],
    ) -> None:
        self.command, self.started = command, time.perf_counter()
        self.parser = StrictParser(groups, recipe)
        self.arguments = self.parser.parse_strictly(argv, check)
        self.is_dry = self._of(RunArguments).dry_run
        self.data_args = self._of(DataArguments)
        self.model_args = self._of(ModelConfig)
        self.args = self._of(TrainingArguments)
        self.output_dir = Path(self.args.output_dir)
        self.resolved = self.parser.resolved(*self.arguments)
        self.state = PartialState()
        wish = None if self.is_dry else self.args.resume_from_checkpoint
        self.checkpoint = resume_point(wish, self.output_dir, self.resolved)
        self.goes_on = goes_on(self.output_dir, self.checkpoint)
        self.repository: str | None = None
        if self.args.push_to_hub and self.is_main and not self.is_dry:
            from ..training.hub import create_repository

            self.repository = create_repository(self.args)
        self.boards = extra("workspace.boards") if "wandb" in self.args.report_to else None
        self._quarantine = quarantine_path(self.output_dir)
        self._interrupt = StopOnInterrupt()
        self._changed: list[str] = []

    def _of(self, kind: type) -> Any:
        return next(one for one in self.arguments if isinstance(one, kind))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return bool(self.state.is_main_process)

    def load_data(self, **options: Any) -> LoadedData:
        """Load the rows, on the main process first, which keeps those that cannot be read.

        Args:
            options: See `data.loading.load_data`.
        """
        quarantine = self._quarantine if self.is_main and not self.is_dry else None
        with self.state.main_process_first():
            return load_data(self.data_args, quarantine, **options)

    def end_dry_run(
        self, data: LoadedData, rows: int, tokens: int | None, has_warnings: bool = False
    ) -> None:
        """Print the keys that were given, and last whether this recipe can run here.

        Args:
            data: The rows.
            rows: Those to train on.
            tokens: The most of an answer, None for a model without answers.
            has_warnings: Whether there are warnings to read first.
        """
        from .dry_run import verdict

        self.state.print(f"\n{self.resolved.partition(DEFAULTS)[0]}")
        steps, epochs = self.args.max_steps, self.args.num_train_epochs
        count, unit = (steps, "step") if steps > 0 else (epochs, "epoch")
        length = f"{count:g} {unit}{'' if count == 1 else 's'}"
        repeated = ", some of them repeated" if rows > sum(data.report.train.values()) else ""
        work = f"{length} on {rows:,} rows{repeated}"
        on_gpu = self.args.device.type == "cuda"
        found = verdict(self.model_args, data.prompts(), tokens, work, has_warnings, on_gpu)
        self.state.print(wrapped(found.sentence, 0))
        if found.is_refused:
            raise SystemExit(2)

    def open_folder(
        self, data: LoadedData, truth: PolicyTruth | None = None, carried: Sequence[str] = ()
    ) -> None:
        """Make the run's folder and write down what it starts with; the other processes wait for it.

        Args:
            data: The rows.
            truth: Where the values of moves come from; None if none are needed.
            carried: Files that a run which goes on elsewhere takes from its checkpoint's run.
        """
        if self.is_main:
            open_folder(self.output_dir, self.goes_on, self.resolved, self._quarantine)
            for name in carried:
                if self.checkpoint and not self.goes_on:
                    earlier = self.checkpoint.parent / name
                    if earlier.is_file():
                        shutil.copy(earlier, self.output_dir)
            keep_log(self.output_dir)
            at = self.state.num_processes, self.checkpoint
            self._changed = open_provenance(self.output_dir, self.resolved, data, truth, *at)
            if self.boards:
                base = self.model_args.model_name_or_path
                tasks = self.data_args.tasks
                given = self.goes_on, tasks, base, self.parser.recipe
                print(self.boards.configure_wandb(self.output_dir, *given))
        self.state.wait_for_everyone()

    def callbacks(self) -> list[TrainerCallback]:
        """The callbacks of every run: W&B's configuration, and Ctrl-C."""
        if not self.boards:
            return [self._interrupt]
        return [self.boards.RunConfigCallback(self.parser.values, self._changed), self._interrupt]

    def train(self, trainer: Trainer) -> None:
        """Train to the end, from the checkpoint if there is one.

        Raises:
            SystemExit: The run was stopped; a checkpoint is written.
        """
        print_short_lines(trainer)
        trainer.train(resume_from_checkpoint=self.checkpoint and str(self.checkpoint))
        self._interrupt.leave_if_stopped(self.output_dir)

    def record(self, data: LoadedData, parameters: int) -> Run:
        """What the model card needs.

        Args:
            data: The rows.
            parameters: The number of the model's parameters.
        """
        return Run(
            command=self.command,
            folder=self.output_dir,
            recipe=self.parser.values,
            base=self.model_args.model_name_or_path,
            data=data,
            dataset=self.data_args.dataset_name,
            parameters=parameters,
            seconds=time.perf_counter() - self.started,
            processes=self.state.num_processes,
            resumed=self.checkpoint is not None,
            changed=self._changed,
            repository=self.repository,
        )

    def push(self) -> None:
        """Upload the finished run, if it was asked for, and print where it is."""
        if self.repository is not None:
            from ..training.hub import push

            print(push(self.repository, self.output_dir, self.args))
