"""W&B: this package's sections and boards, and how it is set up."""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb
from requests.utils import get_netrc_auth
from transformers import TrainerCallback
from transformers.integrations import WandbCallback

from ...common.machine import machine
from ...common.stats import Paired
from ...engine.truth import PolicyTruth, policy_values
from ...tasks.metrics import Results, headlines
from ...tasks.registry import TASKS, asked, row_task
from ...tasks.text import shown_text
from ...training.callbacks import TableInterval
from ...training.glossary import STEP, dashboard_key, overview

if TYPE_CHECKING:
    from ...training.trainer import RookWorldGRPOTrainer

# The hosts that `wandb login` writes to the netrc file: of version 0.31, and of earlier ones.
_WANDB_URLS = ("https://api.forge.coreweave.com", "https://api.wandb.ai")


_RUN_ID_FILE = "wandb_run_id.txt"


class RunConfigCallback(TrainerCallback):
    """Adds recipe and commit to W&B's configuration, and prints the address of the run.

    Args:
        recipe: The keys that were given; by itself, W&B knows only the trainer's arguments.
        changed: What changed when the run was resumed, see `resuming.stretches`.
    """

    def __init__(self, recipe: Mapping[str, Any], changed: Sequence[str] = ()) -> None:
        self._added = {"recipe": dict(recipe), "changed": list(changed)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and wandb.run is not None:
            added = {**self._added, "commit": machine()["commit"]}
            wandb.run.config.update(added, allow_val_change=True)
            folder = shlex.quote(str(Path(wandb.run.dir).parent))
            offline = f"to upload this run: wandb sync {folder}"
            print(f"W&B: {wandb.run.url or offline}")  # there is no address offline


class Curves:
    """Which numbers are curves: those that have had more than one value.

    A number that has one value all the time stands in the run's summary. When it first changes, the line
    before that is logged too, by its two ends. Held-out results, and what the overview shows, are curves
    from their first value on.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[Any, int]] = {}  # value, and the step it was first seen at
        self._last: dict[str, int] = {}  # the step it was last seen at
        self._changing: set[str] = set()
        self._shown = [entry.pattern for _, entries in overview() for entry in entries]

    def take(
        self, numbers: Mapping[str, Any], step: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The rows to log for the numbers of a step, its own row last, and what goes into the summary.

        Args:
            numbers: By the dashboard's keys.
            step: The optimiser step.
        """
        rows: dict[int, dict[str, Any]] = {}  # by step: the ends of lines that were flat so far
        constant: dict[str, Any] = {}
        row: dict[str, Any] = {STEP: step}
        for key, number in numbers.items():
            if not self._is_curve(key):
                value, begun = self._first.setdefault(key, (number, step))
                # Two that are no numbers are unequal to each other.
                if number == value or (number != number and value != value):
                    self._last[key] = step
                    constant[key] = number
                    continue
                self._changing.add(key)
                for end in {begun, self._last[key]}:
                    rows.setdefault(end, {STEP: end})[key] = value
            row[key] = number
        return [*(rows[end] for end in sorted(rows)), row], constant

    def _is_curve(self, key: str) -> bool:
        if key not in self._changing and (
            key.startswith("eval/") or any(re.match(shown, key) for shown in self._shown)
        ):
            self._changing.add(key)
        return key in self._changing


BOARD_ROWS = 8  # in a table; a picture takes about 20 KB


class WandbDashboard(WandbCallback):
    """Logs to W&B under this package's sections, with a table of boards beside TRL's.

    TRL's table `completions` holds the whole batch as text. `boards` shows only a few of its
    completions, with a picture each, because W&B keeps every picture in a file of its own.

    Args:
        trainer: The `RookWorldGRPOTrainer` with the completions to draw.
        truth: Where the engine's best move comes from.
    """

    def __init__(self, trainer: RookWorldGRPOTrainer, truth: PolicyTruth) -> None:
        super().__init__()
        self.trainer = trainer
        self.truth = truth
        self.tables = TableInterval()
        self.curves = Curves()
        self.is_new = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or wandb.run is None:
            return
        named: dict[str, Any] = {dashboard_key(name): value for name, value in logs.items()}
        if "time/train" in named:  # numbers of the whole training, not of a step
            wandb.run.summary.update(named)
            named = {}
        self._take_earlier(state.log_history)
        rows, constant = self.curves.take(named, state.global_step)
        wandb.run.summary.update(constant)
        for row in rows[:-1]:
            wandb.log(row)
        if self.tables.due(self.trainer, logs):
            rows[-1]["boards"] = self._boards()
        if rows[-1].keys() - {STEP}:
            wandb.log(rows[-1])

    def _take_earlier(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Once, take what a resumed run has logged before: its curves go on, its flat lines as well.

        Args:
            history: The trainer's log; its last entry is the one that is logged now.
        """
        if self.is_new:
            self.is_new = False
            for entry in history[:-1]:
                names = entry.keys() - {"step"}
                named = {dashboard_key(name): entry[name] for name in names}
                if "time/train" not in named:
                    self.curves.take(named, entry["step"])

    def _boards(self) -> wandb.Table:
        """A table with a row for each completion: prompt, completion, each reward, advantage, board.

        They are spread over this process's completions: the truth of the others' rows is not here.
        """
        trainer, names = self.trainer, self.trainer.reward_func_names
        log = {key: list(column) for key, column in trainer.completion_log().items()}
        prompts = [shown_text(prompt) for prompt in log["prompt", ""]]
        texts = [shown_text(completion) for completion in log["completion", ""]]
        mine = [
            place
            for place, prompt in enumerate(prompts)
            if row_task(trainer.sampled.get(prompt, {})) is not None
        ]
        mine = mine[:: max(1, math.ceil(len(mine) / BOARD_ROWS))]
        rows = [trainer.sampled[prompts[place]] for place in mine]
        column = [row.get("action_values") for row in rows]
        values = policy_values(self.truth, [asked(row) for row in rows], column)
        data = []
        for place, row, by_move in zip(mine, rows, values, strict=True):
            rewards = [log["rewards", name][place] for name in names]
            shown = [None if math.isnan(reward) else reward for reward in rewards]
            task = str(row_task(row))
            picture = TASKS[task].board({**row, "prompt": asked(row)}, texts[place], by_move)
            drawn = wandb.Html(picture, inject=False, data_is_not_path=True)
            written = task, asked(row), texts[place]
            numbers = *shown, log["advantages", ""][place]
            data.append([trainer.state.global_step, *written, *numbers, drawn])
        columns = ["step", "task", "prompt", "completion", *names, "advantage", "board"]
        return wandb.Table(columns=columns, data=data)


def summarize(before: Results, after: Results, pairs: Mapping[str, Paired], step: int) -> None:
    """Put a run's result into W&B's summary: each headline before and after, and the kept step.

    Args:
        before: Held-out results before training.
        after: Those of the kept weights.
        pairs: The comparison row by row.
        step: The optimiser step of the kept weights.
    """
    if wandb.run is None:
        return
    found: dict[str, Any] = {"train/kept_step": step}
    for name in headlines().values():
        if name in before and name in after:
            sides = {"before": before[name].value, "after": after[name].value}
            if pair := pairs.get(name):
                sides["difference"] = pair.difference
                if not math.isnan(pair.low):  # too few rows
                    sides |= {"low": pair.low, "high": pair.high}
            found |= {f"eval/change/{name}/{side}": value for side, value in sides.items()}
    wandb.run.summary.update(found)


def use_dashboard(trainer: RookWorldGRPOTrainer, truth: PolicyTruth) -> None:
    """Replace transformers' W&B callback by ours, if the run logs there.

    Ours takes the same place in the list, so that later callbacks still find W&B's run open.
    """
    handler = trainer.callback_handler
    handler.callbacks = [
        WandbDashboard(trainer, truth) if type(callback) is WandbCallback else callback
        for callback in handler.callbacks
    ]


def configure_wandb(
    output_dir: Path, resume: bool, tasks: Sequence[str], model: str | None, group: str | None
) -> str:
    """Set W&B up by its environment variables, so that it never asks, never fails and resumes a run.

    Variables that are already set are left alone.

    Args:
        output_dir: Where the run's files and its id are written.
        resume: Use the id of the earlier run, if there is one.
        tasks: The run's tasks; they are its tags.
        model: Its starting model, another tag; None is a new model.
        group: The name of a group of runs: the recipe.

    Returns:
        A sentence that says where the run is logged.
    """
    os.environ.setdefault("WANDB_PROJECT", "rookworld-rlvr")
    os.environ.setdefault("WANDB_DIR", str(output_dir))
    os.environ.setdefault("WANDB_SILENT", "true")
    tags = [*tasks, Path(model or "new").name]
    os.environ.setdefault("WANDB_TAGS", ",".join(tag.replace(",", " ")[:64] for tag in tags if tag))
    if group:
        os.environ.setdefault("WANDB_RUN_GROUP", group)
    if not has_wandb_key():
        os.environ.setdefault("WANDB_MODE", "offline")
    if os.environ.get("WANDB_MODE") == "offline":
        # Else the tables' pictures are in the home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(output_dir.absolute() / "wandb"))
    id_file = output_dir / _RUN_ID_FILE
    if "WANDB_RUN_ID" not in os.environ:
        goes_on = resume and id_file.is_file()
        run_id = id_file.read_text().strip() if goes_on else secrets.token_hex(4)
        os.environ["WANDB_RUN_ID"] = run_id
        os.environ.setdefault("WANDB_RESUME", "allow")
    id_file.write_text(os.environ["WANDB_RUN_ID"])
    mode = os.environ.get("WANDB_MODE", "online")
    if mode == "offline":
        folder = Path(os.environ["WANDB_DIR"]) / "wandb"
        return f"W&B runs offline; its files are in {folder}"
    return f"W&B runs in mode {mode!r}, project {os.environ['WANDB_PROJECT']!r}"


def has_wandb_key() -> bool:
    """Whether W&B can log in without asking, with a key from the environment or a netrc file.

    `wandb.login` does not fit here, even with ``prompt=False``: it raises for a malformed key, prints,
    and freezes W&B's settings, so that later changes of the mode and the run's id would be ignored.
    """
    if os.environ.get("WANDB_API_KEY"):
        return True
    given = os.environ.get("WANDB_BASE_URL")
    return any(get_netrc_auth(url) for url in ([given] if given else _WANDB_URLS))
