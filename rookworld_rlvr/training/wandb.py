"""Where a run logs: W&B's sections and boards, and its set-up."""

from __future__ import annotations

import math
import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from transformers import TrainerCallback
from transformers.integrations import WandbCallback

from ..engine.truth import PolicyTruth
from ..tasks.registry import TASKS
from .glossary import STEP, dashboard_key

# What `wandb login` writes to the netrc file, of version 0.31 and of those before.
_WANDB_URLS = ("https://api.forge.coreweave.com", "https://api.wandb.ai")


_RUN_ID_FILE = "wandb_run_id.txt"


class RunConfigCallback(TrainerCallback):
    """Adds the recipe to the W&B run's configuration, which knows the trainer's arguments only."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = dict(recipe)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or "wandb" not in args.report_to:
            return
        if wandb.run is not None:
            wandb.config.update({"recipe": self.recipe}, allow_val_change=True)


class DashboardCallback(WandbCallback):
    """transformers' W&B callback with this package's sections, and a table of boards beside TRL's.

    TRL's table `completions` holds the whole batch as text; `boards` holds `rows` of it with a picture
    each, as W&B keeps every picture in a file of its own.

    Args:
        trainer: Whose completions are drawn; `RookWorldGRPOTrainer`.
        truth: Where the engine's best move comes from.
        rows: Boards a log; 0 for none.
    """

    def __init__(self, trainer: Any, truth: PolicyTruth, rows: int) -> None:
        super().__init__()
        self.trainer = trainer
        self.truth = truth
        self.rows = rows

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if wandb.run is None:
            self.setup(args, state, model)
        if not state.is_world_process_zero or not logs:
            return
        named = {dashboard_key(name): value for name, value in logs.items()}
        if "train_runtime" in logs:  # the numbers of the whole training, which no step has
            assert wandb.run is not None  # `setup` has opened it on this process
            wandb.run.summary.update(named)
            return
        if self.rows and "reward" in logs:
            named["boards"] = self._boards()
        wandb.log({**named, STEP: state.global_step})

    def _boards(self) -> Any:
        """A row a completion: prompt, completion, each reward, advantage, board."""
        sampled = sampled_rows(self.trainer, self.rows)
        tasks = [TASKS[row["task"]] for row in sampled]
        valued = [index for index, task in enumerate(tasks) if task.needs_values]
        found = self.truth.values(
            [sampled[index]["fen"] for index in valued],
            [sampled[index]["action_values"] for index in valued],
        )
        values = dict(zip(valued, found, strict=True))
        names = ("task", "prompt", "completion", *self.trainer.reward_func_names, "advantage")
        table = wandb.Table(columns=["step", *names, "board"])
        for index, row in enumerate(sampled):
            picture = tasks[index].board(row, row["completion"], values.get(index))
            table.add_data(
                self.trainer.state.global_step,
                *(row[name] for name in names),
                wandb.Html(picture, inject=False, data_is_not_path=True),
            )
        return table


def sampled_rows(trainer: Any, count: int) -> list[dict[str, Any]]:
    """Some of the completions that TRL's table of the last batch holds, with their data rows.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        count: How many, at most; they lie as far apart as there is room. Only this process's, as
            the truth columns of others are not here.

    Returns:
        The row's columns by name, `completion` (what was sampled), each reward (None where it does
        not apply) and `advantage`.
    """
    log = {key: list(column) for key, column in trainer.completion_log().items()}
    prompts = log["prompt", ""]
    mine = [place for place, prompt in enumerate(prompts) if prompt in trainer.sampled]
    rewards = {name: log["rewards", name] for name in trainer.reward_func_names}
    return [
        {
            **trainer.sampled[prompts[place]],
            "completion": log["completion", ""][place],
            **{
                name: None if math.isnan(column[place]) else column[place]
                for name, column in rewards.items()
            },
            "advantage": log["advantages", ""][place],
        }
        for place in mine[:: max(1, math.ceil(len(mine) / count))]
    ]


def use_dashboard(trainer: Any, truth: PolicyTruth, rows: int) -> None:
    """Put `DashboardCallback` in the place of transformers' own, where the run reports to W&B.

    In its place, so that callbacks after it find the W&B run open, as they would otherwise.
    """
    handler = trainer.callback_handler
    handler.callbacks = [
        DashboardCallback(trainer, truth, rows) if type(callback) is WandbCallback else callback
        for callback in handler.callbacks
    ]


def configure_wandb(output_dir: Path, resume: bool) -> str:
    """Set W&B up by its environment variables: never ask, never fail, continue a resumed run.

    Variables that are set already are left alone.

    Args:
        output_dir: Where the run's files and its id go.
        resume: Take the id of the run before, where there is one.

    Returns:
        A sentence on where the run is logged.
    """
    os.environ.setdefault("WANDB_PROJECT", "rookworld-rlvr")
    os.environ.setdefault("WANDB_DIR", str(output_dir))
    os.environ.setdefault("WANDB_SILENT", "true")
    if not has_wandb_key():
        os.environ.setdefault("WANDB_MODE", "offline")
    if os.environ.get("WANDB_MODE") == "offline":  # tables' pictures would wait in the home folder
        os.environ.setdefault("WANDB_DATA_DIR", str(output_dir.absolute() / "wandb"))
    id_file = output_dir / _RUN_ID_FILE
    if "WANDB_RUN_ID" not in os.environ:
        os.environ["WANDB_RUN_ID"] = _run_id(id_file, resume)
        os.environ.setdefault("WANDB_RESUME", "allow")
    id_file.write_text(os.environ["WANDB_RUN_ID"])
    mode = os.environ.get("WANDB_MODE", "online")
    if mode == "offline":
        folder = Path(os.environ["WANDB_DIR"]) / "wandb"
        return f"W&B runs offline; its files are in {folder} (send them with `wandb sync`)"
    return f"W&B runs in mode {mode!r}, project {os.environ['WANDB_PROJECT']!r}"


def has_wandb_key() -> bool:
    """Whether W&B would log in without asking: from the environment or a netrc file.

    Not `wandb.login`, even with ``prompt=False``: it raises for a key of the wrong form, prints, and
    fixes W&B's settings, so that the mode and the run's id would no longer be taken from here.
    """
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    given = os.environ.get("WANDB_BASE_URL")
    return any(_host(url) in hosts for url in ([given] if given else _WANDB_URLS))


def _host(url: str) -> str:
    return url.split("://")[-1].split("/")[0]


def _run_id(id_file: Path, resume: bool) -> str:
    if resume and id_file.is_file():
        return id_file.read_text().strip()
    return uuid.uuid4().hex[:8]  # the form of W&B's own ids
