"""What a run shows and where it logs: a short progress line, W&B with or without a key."""

from __future__ import annotations

import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

_SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "grad_norm", "loss")
_RUN_ID_FILE = "wandb_run_id.txt"


class ShortProgressCallback(ProgressCallback):
    """Transformers' progress bar with one readable line a log instead of forty numbers."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        names = [name for name in logs if name.startswith("eval_") and name != "eval_runtime"]
        names = names or list(_SHOWN)
        parts = [
            f"{name.removeprefix('eval_')} {float(logs[name]):.4g}"
            for name in names
            if logs.get(name) is not None
        ]
        if parts:
            kind = "held-out  " if names[0].startswith("eval_") else ""
            line = f"step {state.global_step:>5}  {kind}{'  '.join(parts)}"
            print(line) if self.training_bar is None else self.training_bar.write(line)


class RunConfigCallback(TrainerCallback):
    """Adds the recipe to the W&B run's configuration, which knows the trainer's arguments only."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = dict(recipe)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or "wandb" not in args.report_to:
            return
        import wandb

        if wandb.run is not None:
            wandb.config.update({"recipe": self.recipe}, allow_val_change=True)


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
    if not _has_wandb_key():
        os.environ.setdefault("WANDB_MODE", "offline")
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


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    base = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return base.split("://")[-1].split("/")[0] in hosts


def _run_id(id_file: Path, resume: bool) -> str:
    if resume and id_file.is_file():
        return id_file.read_text().strip()
    return uuid.uuid4().hex[:8]  # the form of W&B's own ids
