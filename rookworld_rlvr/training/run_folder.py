"""The folder of a run: where to resume, what is there already, and what a report needs."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, Trainer

from ..common.errors import RookWorldError
from ..common.files import open_to_others, replace_text
from ..common.machine import machine
from ..common.terminal import is_in_use
from ..data.loading import EVAL_QUARANTINE, LoadedData
from ..engine.truth import PolicyTruth
from ..tasks.metrics import scores
from ..tasks.types import values_by_move
from .results import ADAPTER, CARD, PROVENANCE, RESOLVED_CONFIG


def resume_point(wish: str | None, output_dir: Path, resolved: str) -> Path | None:
    """The checkpoint to resume from; None to start anew. All processes get the main process's answer.

    Args:
        wish: None or ``false`` to start anew, ``true`` for the last whole checkpoint in `output_dir`,
            ``auto`` for that one or a new start if there is none, or a checkpoint's folder.
        output_dir: The run's folder.
        resolved: The resolved configuration.

    Raises:
        RookWorldError: There is no checkpoint where one was asked for, or none that is whole, or it
            could run code (`resuming.refuse_foreign_shards`), or it was trained with other values of
            keys that cannot change (`resuming.FREE`).
        SystemExit: For ``auto``, the very run that is asked for is finished.
    """
    if not wish or wish.lower() in ("false", "none"):
        return None
    from .resuming import find

    found: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            found = [find(wish, output_dir, resolved)]
        except (RookWorldError, SystemExit) as error:
            found = [error]
    (point,) = broadcast_object_list(found)
    if isinstance(point, BaseException):
        raise point
    return point  # type: ignore[no-any-return]


def goes_on(output_dir: Path, checkpoint: Path | None) -> bool:
    """Whether a run continues the one in its own folder, and not one from elsewhere."""
    return checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()


def foreign_faults(output_dir: Path) -> list[str]:
    """A fault if the folder holds files that are not a run's."""
    if not output_dir.is_dir() or _is_empty(output_dir) or (output_dir / RESOLVED_CONFIG).is_file():
        return []
    return [f"output_dir: {str(output_dir)!r} holds files that are not from a run; give another"]


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but what a kill may have left of its first file."""
    return all(path.name.startswith(f"{RESOLVED_CONFIG}.") for path in folder.iterdir())


def open_folder(output_dir: Path, keep: bool, resolved: str, quarantine: Path) -> None:
    """Create the run's folder, and write the files that are known before training.

    An earlier run in that folder is moved to the next free name beside it.

    Args:
        output_dir: The run's folder.
        keep: Whether the run continues in the folder as it is.
        resolved: The resolved configuration; that of a run that continues is kept, see
            `open_provenance`.
        quarantine: See `quarantine_path`; it is moved into the folder, as is that of
            `eval_dataset_name`.

    Raises:
        RookWorldError: The folder holds something that is not a run, or a run that another process is
            writing.
    """
    if is_in_use(output_dir):
        raise RookWorldError(
            f"output_dir: another run is writing to {output_dir}; wait for its end, or give another"
        )
    if faults := foreign_faults(output_dir):
        raise RookWorldError(*faults)
    if output_dir.is_dir() and not _is_empty(output_dir) and not keep:
        folder, number = output_dir.resolve(), 1
        while (old := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(old)
        print(f"the earlier run in {output_dir} is now {output_dir}.{number}")
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / CARD).unlink(missing_ok=True)  # the run is not finished any more
    if not keep:
        replace_text(output_dir / RESOLVED_CONFIG, resolved)
    for file in (quarantine, quarantine.with_suffix(EVAL_QUARANTINE)):
        if file.is_file():
            file.replace(output_dir / file.name.removeprefix(f"{output_dir.name}."))


def quarantine_path(output_dir: Path) -> Path:
    """The file of malformed rows: beside the run's folder, which unusable data thus leave alone."""
    return output_dir.parent / f"{output_dir.name}.quarantine.jsonl"


# --------------------------------------------------------------------------------------------------
# Kept for a report
# --------------------------------------------------------------------------------------------------
def write_answers(
    path: Path, rows: Iterable[Mapping[str, Any]], completions: Sequence[str]
) -> None:
    """Write a model's answers with their scores, one JSON object per row.

    Args:
        path: The file; an earlier one is replaced.
        rows: `N` rows with the columns that `data` documents.
        completions: `N` texts, one per row.
    """
    with path.open("w", encoding="utf-8") as file:
        for row, completion in zip(rows, completions, strict=True):
            values = values_by_move(row.get("action_values"))
            (score,) = scores([row], [completion])
            answer = {
                **{name: row.get(name) for name in ("task", "prompt", "fen", "action")},
                "completion": completion,
                "score": None if score is None else dict(score),
                "values": values,
            }
            file.write(json.dumps(answer) + "\n")


def open_provenance(
    output_dir: Path,
    resolved: str,
    data: LoadedData,
    truth: PolicyTruth | None,
    processes: int,
    resumed_from: Path | None = None,
) -> list[str]:
    """Write down what a run starts with; a resumed run adds a session to the earlier ones.

    Args:
        output_dir: The run's folder.
        resolved: The resolved configuration. It is written after the session, with a comment for each
            step from which on it was another: a kill in between hides no change.
        data: The data that were loaded.
        truth: Where the values of moves come from; None if none are needed.
        processes: The number of processes that train together.
        resumed_from: The checkpoint that the run is resumed from.

    Returns:
        What changed in the run's configuration, see `resuming.stretches`.
    """
    source = truth.labeller.source if truth is not None and truth.labeller is not None else None
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "processes": processes,
        "resumed_from": str(resumed_from) if resumed_from is not None else None,
        "from_step": 0,
        "changed": {},
        "data": {item.name: getattr(data.report, item.name) for item in fields(data.report)},
        "engine": None if source is None else asdict(source),
        **machine(),
    }
    sessions, history = [session], []
    if resumed_from is not None:
        from .resuming import sessions_to, stretches

        sessions = sessions_to(resumed_from, resolved, session)
        history = stretches(sessions)
    content = {"schema_version": 1, "sessions": sessions}
    replace_text(output_dir / PROVENANCE, json.dumps(content, indent=2) + "\n")
    comments = "".join(f"# {line}\n" for line in history)
    replace_text(output_dir / RESOLVED_CONFIG, comments + resolved)
    return history


def close_provenance(output_dir: Path, started: float, parameters: int) -> None:
    """Add to the last session what is known at its end; a session that was killed lacks it.

    Args:
        output_dir: The run's folder.
        started: When the script started, in seconds of `time.perf_counter`.
        parameters: The number of the model's parameters.
    """
    path = output_dir / PROVENANCE
    content = json.loads(path.read_text())
    seconds = round(time.perf_counter() - started, 1)
    content["sessions"][-1].update(seconds=seconds, parameters=parameters)
    replace_text(path, json.dumps(content, indent=2) + "\n")


def save_final(trainer: Trainer, folder: Path) -> None:
    """Save a model that plain `AutoModelForCausalLM.from_pretrained` loads.

    Adapters are merged into the model, on every process, and also saved by themselves in the subfolder
    `ADAPTER`. The trainer can answer and sample afterwards, but not train them any more.
    """
    network = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(network, "peft_config"):
        trainer.save_model(str(folder))
        return
    if trainer.accelerator.is_main_process:
        from ..models.adapters import save_adapter

        save_adapter(network, folder / ADAPTER)
        (folder / ADAPTER / CARD).unlink(missing_ok=True)  # PEFT's draft
    merged: PreTrainedModel = network.merge_and_unload()
    if trainer.accelerator.is_main_process:
        merged.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        open_weights(folder)
    trainer.accelerator.wait_for_everyone()


def open_weights(folder: Path) -> None:
    """Apply the user's umask to the weight files in a folder."""
    for path in folder.rglob("*.safetensors"):
        open_to_others(path)
