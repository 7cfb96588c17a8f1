"""The folder of a run: where it goes on, what stands there already, what it began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint

from .evaluation import evaluate_completions
from .records import Proportion, RookWorldError
from .report import read_proportions

RESOLVED_CONFIG = "resolved_config.yaml"
HELDOUT_BEFORE = "heldout_before.json"
_NO = ("false", "no", "none")
_LAST = ("true", "yes", "last")


def resume_point(wish: str | None, output_dir: Path) -> Path | None:
    """The checkpoint to go on from.

    Args:
        wish: None or ``false`` for none, ``true`` for the last one in `output_dir` (none where there
            is none yet), or a checkpoint's folder.
        output_dir: The run's folder.

    Raises:
        RookWorldError: The folder named holds no checkpoint.
    """
    if wish is None or wish.lower() in _NO:
        return None
    if wish.lower() in _LAST:
        last = get_last_checkpoint(str(output_dir)) if output_dir.is_dir() else None
        if last is None:
            print(f"no checkpoint in {output_dir} yet: the run starts anew")
        return None if last is None else Path(last)
    folder = Path(wish)
    if not (folder / "trainer_state.json").is_file():
        raise RookWorldError(
            f"resume_from_checkpoint: no checkpoint in {wish!r}; give a folder checkpoint-N, or true "
            f"for the last one in {output_dir}"
        )
    return folder


def goes_on(output_dir: Path, checkpoint: Path | None) -> bool:
    """Whether a run continues the one in its folder, not one from elsewhere."""
    return checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()


def open_folder(output_dir: Path, keep: bool, resolved: str, quarantine: Path) -> None:
    """Make the run's folder, and put what is known before training there.

    An earlier run is kept under the next free name beside it.

    Args:
        output_dir: The run's folder.
        keep: The run goes on in the folder as it is.
        resolved: The resolved configuration.
        quarantine: Where loading has put malformed rows, if it found some.

    Raises:
        RookWorldError: The folder cannot be made, or holds something that is no run.
    """
    try:
        if output_dir.is_dir() and any(output_dir.iterdir()) and not keep:
            _move_aside(output_dir)
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / RESOLVED_CONFIG).write_text(resolved, encoding="utf-8")
        if quarantine.is_file():
            quarantine.replace(output_dir / "quarantine.jsonl")
    except OSError as error:
        raise RookWorldError(
            f"output_dir: cannot write to {str(output_dir)!r} ({error.strerror or error}); give "
            "another folder"
        ) from error


def _move_aside(output_dir: Path) -> None:
    if not (output_dir / RESOLVED_CONFIG).is_file():
        raise RookWorldError(
            f"output_dir: {str(output_dir)!r} holds files that are no run of ours; give another folder"
        )
    folder = output_dir.resolve()
    number = 1
    while (old := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(old)
    print(f"the earlier run in {output_dir} is now {output_dir}.{number}")


def quarantine_path(output_dir: Path) -> Path:
    """Beside the run's folder, so that data that cannot be used leave the folder alone."""
    return output_dir.parent / f"{output_dir.name}.quarantine.jsonl"


def starting_point(
    output_dir: Path, checkpoint: Path | None, heldout: Dataset
) -> Mapping[str, Proportion] | None:
    """What the run that goes on measured before its first step; None for a new run.

    Raises:
        RookWorldError: It measured on other held-out rows.
    """
    path = output_dir / HELDOUT_BEFORE
    if not goes_on(output_dir, checkpoint) or not path.is_file():
        return None
    before = read_proportions(path)
    now: dict[str, Any] = evaluate_completions(heldout, [""] * len(heldout))
    if {name: before[name].n for name in before} != {name: now[name].n for name in now}:
        raise RookWorldError(
            f"the run in {output_dir} began with other held-out rows than this configuration gives; "
            "resume it with its own data settings, or start in another output_dir"
        )
    return before
