"""Checkpoints that survive a kill: written beside, sealed with checksums, renamed when whole.

Besides `trainer.py`, this is the only file that uses private names of transformers and TRL.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from accelerate.utils.constants import OPTIMIZER_NAME as FSDP_OPTIMIZER
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    get_last_checkpoint,
    rotate_checkpoints,
)

from ..common.errors import ConfigurationError
from ..common.machine import use_threads

MANIFEST = "manifest.json"


SAVING = "_saving"  # the folder in a run's folder in which a checkpoint is written


STATE = "trainer_state.json"


# --------------------------------------------------------------------------------------------------
# On the disk
# --------------------------------------------------------------------------------------------------
def seal(folder: Path) -> None:
    """Write a checkpoint's manifest, when everything else is on the disk to stay."""
    manifest = folder / MANIFEST
    files = {
        path.relative_to(folder).as_posix(): entry(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != manifest
    }
    manifest.write_text(json.dumps({"schema_version": 1, "files": files}, indent=2) + "\n")
    for path in (manifest, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _to_disk(path)


def publish(written: Path, final: Path) -> None:
    """Give a sealed checkpoint its name; an earlier one of that name is replaced."""
    replaced = written.with_name(f"replaced-{final.name}")
    if final.exists():
        final.rename(replaced)
    written.rename(final)
    _to_disk(final.parent)
    shutil.rmtree(written.parent)


def entry(path: Path) -> dict[str, Any]:
    """What the manifest says of a file, which is flushed to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def step_of(checkpoint: Path) -> int:
    """The optimiser steps that a checkpoint has made."""
    return int(json.loads((checkpoint / STATE).read_text())["global_step"])


def best_beside(checkpoint: Path) -> Path | None:
    """The best checkpoint so far, beside the one that a run goes on from; None if there is none.

    It is recorded with the folder that the run had then. The run may have been renamed since, and a
    later run may have taken its name.
    """
    recorded = json.loads((checkpoint / STATE).read_text()).get("best_model_checkpoint")
    best = checkpoint.with_name(Path(recorded).name) if recorded else None
    return best if best is not None and best.is_dir() else None


# --------------------------------------------------------------------------------------------------
# The trainers
# --------------------------------------------------------------------------------------------------
# What transformers and TRL keep between two steps, but not in a checkpoint: sums since the last log, and
# the batch that was sampled for several steps.
BETWEEN = ("_tr_loss", "_globalstep_last_logged", "_total_train_tokens", "_step", "sampled")


_FILLED = ("_metrics", "_logs")  # containers that others hold, too


class WholeCheckpoints(Trainer):
    """Mixin for transformers' trainers whose checkpoints are whole or not there, and resume exactly."""

    resumed_from: Path | None = None
    _goes_on: TrainerCallback | None = None
    _rates: list[float]  # by parameter group, as the arguments give them

    def save_more(self, folder: Path) -> None:
        """Add files to a checkpoint before it is sealed; called on every process."""

    def load_more(self, folder: Path | None) -> None:
        """Load them when training begins; None if it does not go on from a checkpoint."""

    def _get_output_dir(self, trial: Any) -> str:
        """Where transformers makes a checkpoint, and at the end looks for one to remove.

        It is never where whole ones are: with `save_total_limit` 1 transformers would remove the last,
        from which a run goes on, and keep only the best.
        """
        return os.path.join(super()._get_output_dir(trial), SAVING)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint beside the others, and rename it when it is whole; then remove old ones."""
        beside = self._get_output_dir(trial)
        run, name = os.path.dirname(beside), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        written, final = os.path.join(beside, name), os.path.join(run, name)
        if self.args.should_save:
            shutil.rmtree(beside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            self._save_between(Path(written))
            self.save_more(Path(written))
            self.accelerator.wait_for_everyone()
            if self.state.best_model_checkpoint == written:
                self.state.best_model_checkpoint = final
            if self.args.should_save:
                self.state.save_to_json(os.path.join(written, STATE))
                seal(Path(written))
                publish(Path(written), Path(final))
        except Exception:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            # A run may have begun under another spelling of its folder, which would not protect it.
            best = best and os.path.join(run, os.path.basename(best))
            rotate_checkpoints(run, self.args.save_total_limit, best, use_mtime=True)
        self.accelerator.wait_for_everyone()

    def save_start(self) -> None:
        """Save the starting model as a checkpoint, which is the best until another one is."""
        run = os.path.dirname(self._get_output_dir(None))
        self.state.best_model_checkpoint = os.path.join(run, f"{PREFIX_CHECKPOINT_DIR}-0")
        self._save_checkpoint(self.model, None)

    # --------------------------------------------------------------------------------------------
    # Going on from a checkpoint
    # --------------------------------------------------------------------------------------------
    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Go on from a checkpoint as if training had never been interrupted.

        Raises:
            ConfigurationError: The way of sharding is another than the checkpoint's.
        """
        given = resume_from_checkpoint
        folder = get_last_checkpoint(self.args.output_dir) if given is True else given
        self.resumed_from = Path(folder) if folder else None
        if folder:
            check_layout(self, folder)
        if self._goes_on is None:  # after the other callbacks
            self._goes_on = _GoingOn(self)
            self.add_callback(self._goes_on)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def set_initial_training_values(self, *args: Any) -> Any:
        """Train no further after the last step: a run may be killed while it ends."""
        epochs, *others, max_steps = super().set_initial_training_values(*args)
        folder = self.resumed_from
        if folder is not None and not (folder / STATE).is_file():
            folder = None  # weights alone
        is_over = folder is not None and step_of(folder) >= max_steps
        return (0 if is_over else epochs, *others, max_steps)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Remember the learning rates of the arguments, before a checkpoint's replace them."""
        made = super().create_scheduler(num_training_steps, optimizer)
        groups = (optimizer or self.optimizer).param_groups
        self._rates = [group.get("initial_lr", group["lr"]) for group in groups]
        return made

    def take_arguments(self) -> None:
        """Take learning rate and schedule from the arguments, not from the checkpoint."""
        schedule = self.lr_scheduler
        if isinstance(schedule, LambdaLR):  # others remember their rate
            schedule.base_lrs = list(self._rates)
            schedule.last_epoch -= 1
            schedule.step()  # sets the rate of the next step

    # --------------------------------------------------------------------------------------------
    # Between two steps
    # --------------------------------------------------------------------------------------------
    def _batches(self) -> dict[str, int]:
        """The sizes on which it depends which rows of a batch come with which step."""
        names = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
        of_sampling = ("steps_per_generation", "num_iterations", "num_generations")
        sizes = {name: getattr(self.args, name, 0) for name in (*names, *of_sampling)}
        return {name: int(size or 0) for name, size in sizes.items()}

    def _between_file(self, folder: Path) -> Path:
        return folder / f"between_steps_{self.args.process_index}.pt"

    def _save_between(self, folder: Path) -> None:
        """Save what this process keeps between two steps."""
        names = [name for name in (*BETWEEN, *_FILLED) if hasattr(self, name)]
        kept = {name: _plain(getattr(self, name)) for name in names}
        sizes = self._batches()
        window = sizes["steps_per_generation"] * sizes["num_iterations"]
        if window and kept["_step"] % window:
            kept["_buffered_inputs"] = self._buffered_inputs
        folder.mkdir(parents=True, exist_ok=True)
        saved = {"batches": sizes, "threads": torch.get_num_threads(), "kept": kept}
        saved["carried"] = self.accelerator.reduce(self._tr_loss.detach().clone(), "mean").item()
        torch.save(saved, self._between_file(folder))

    def load_between(self, folder: Path) -> None:
        """Restore what `_save_between` saved, unless the sizes of batches have changed since.

        Raises:
            ConfigurationError: An earlier version has saved a batch that is not used up.
        """
        path = self._between_file(folder)
        if not path.is_file():
            return
        saved = torch.load(path, map_location=self.args.device.type, weights_only=True)
        use_threads(saved.get("threads", torch.get_num_threads()))
        now, before = self._batches(), saved["batches"]
        if now != before:
            text = "so results will differ from those of a run without a stop"
            self.accelerator.print(f"batch sizes changed ({before} -> {now}), {text}")
            return
        if (batches := saved["kept"].get("_buffered_inputs")) and "row" not in batches[0]:
            raise ConfigurationError(
                [
                    f"resume_from_checkpoint: an earlier version saved {folder} within a "
                    "generation, whose batches this one cannot read; go on from another checkpoint, or "
                    "start a new run from its weights by model_name_or_path"
                ]
            )
        for name, value in saved["kept"].items():
            if name in _FILLED:
                _fill(getattr(self, name), value)
            else:
                setattr(self, name, value)
        self._total_loss_scalar = -saved.get("carried", 0.0)  # of steps before the restart


class _GoingOn(TrainerCallback):
    """Restores, when training begins, what transformers does not.

    Args:
        trainer: One with `WholeCheckpoints`.
    """

    def __init__(self, trainer: WholeCheckpoints) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, folder = self._trainer, self._trainer.resumed_from
        trainer.load_more(folder)
        # Log, evaluate and save as often as the arguments say, not as often as the checkpoint does.
        state.compute_steps(args, state.max_steps)
        if folder is not None and state.global_step:
            best = best_beside(folder)
            state.best_model_checkpoint = best and str(best)
        if folder is not None:
            trainer.take_arguments()
            trainer.load_between(folder)


def _plain(value: Any) -> Any:
    """A value as `torch.load` restores it without pickle; what a reward logs may be of any kind."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    is_plain = isinstance(value, torch.Tensor) or type(value) in (str, int, float, bool, NoneType)
    return value if is_plain else str(value)


def _fill(container: Any, value: Any) -> None:
    """Give a container the content of another, in place."""
    if isinstance(container, list | deque):
        container.clear()
        container.extend(value)
        return
    if isinstance(container, defaultdict):
        container.clear()
    for key, item in value.items():
        _fill(container[key], item)


_OPTIMISERS = {
    "plainly": [OPTIMIZER_NAME],
    "with FSDP": [f"{FSDP_OPTIMIZER}.bin", f"{FSDP_OPTIMIZER}_*"],
    "with DeepSpeed": ["global_step*"],
}
"""How a run keeps its weights → where its checkpoints have the optimiser's state."""


def check_layout(trainer: WholeCheckpoints, checkpoint: str) -> None:
    """Refuse a checkpoint whose optimiser state this layout cannot read; it would begin anew, unsaid.

    Args:
        trainer: The trainer.
        checkpoint: The folder to resume from.

    Raises:
        ConfigurationError: A run with another way of sharding has written it.
    """
    sharded = "with FSDP" if trainer.is_fsdp_enabled else "with DeepSpeed"
    ours = sharded if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled else "plainly"
    found = [
        layout
        for layout, files in _OPTIMISERS.items()
        if any(path for name in files for path in Path(checkpoint).glob(name))
    ]
    if found and ours not in found:
        said = f"{checkpoint} was written {found[0]} and cannot be read {ours}; resume it with the "
        said += "--accelerate_config that it began with, or start a new run from its weights by "
        raise ConfigurationError([f"resume_from_checkpoint: {said}model_name_or_path"])
