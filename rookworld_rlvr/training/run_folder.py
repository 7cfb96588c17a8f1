"""The folder of a run: where it goes on, what stands there already, what it began with, what of it
is kept for a report.
"""

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

from datasets import Dataset
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import get_last_checkpoint

from ..common.errors import RookWorldError
from ..common.files import unwritable
from ..common.machine import machine
from ..common.stats import Proportion
from ..data.loading import LoadedData
from ..engine.truth import PolicyTruth
from ..tasks.coverage import coverage, note, noted, widened
from ..tasks.metrics import evaluate_completions
from ..tasks.registry import score_row
from ..tasks.scoring import values_by_move
from .results import read_proportions

RESOLVED_CONFIG = "resolved_config.yaml"


HELDOUT_BEFORE = "heldout_before.json"


ANSWERS_BEFORE = "heldout_answers_before.jsonl"


ANSWERS_AFTER = "heldout_answers_after.jsonl"


PROVENANCE = "provenance.json"


RESULTS = "results.json"


EVALUATION = "evaluation.json"  # of the suites


CARD = "README.md"


REPORT = "report.html"


ADAPTER = "adapter"  # the folder of a run's adapters


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
    is_root = (folder / RESOLVED_CONFIG).is_file()  # of a run: its log is there too, no optimiser
    if is_root or not (folder / "trainer_state.json").is_file():
        raise RookWorldError(
            f"resume_from_checkpoint: no checkpoint in {wish!r}; give a folder checkpoint-N, or true "
            f"for the last one in {output_dir}"
        )
    return folder


def goes_on(output_dir: Path, checkpoint: Path | None) -> bool:
    """Whether a run continues the one in its folder, not one from elsewhere."""
    return checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()


def foreign_faults(output_dir: Path) -> list[str]:
    """Whether a folder holds what is no run."""
    is_free = not output_dir.is_dir() or not any(output_dir.iterdir()) or _is_run(output_dir)
    return [] if is_free else [_no_run(output_dir)]


def _is_run(folder: Path) -> bool:
    return (folder / RESOLVED_CONFIG).is_file()


def _no_run(folder: Path) -> str:
    return f"output_dir: {str(folder)!r} holds files that are no run of ours; give another folder"


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
        raise RookWorldError(unwritable("output_dir", output_dir, error)) from error


def _move_aside(output_dir: Path) -> None:
    if not _is_run(output_dir):
        raise RookWorldError(_no_run(output_dir))
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


# --------------------------------------------------------------------------------------------------
# Kept for a report
# --------------------------------------------------------------------------------------------------
def write_answers(
    path: Path, rows: Iterable[Mapping[str, Any]], completions: Sequence[str]
) -> None:
    """Keep what a model answered, scored, one JSON object a row.

    Args:
        path: The file; an earlier one is replaced.
        rows: `N` rows of the columns that `data` documents.
        completions: `N` texts, one a row.
    """
    with path.open("w", encoding="utf-8") as file:
        for row, completion in zip(rows, completions, strict=True):
            values = values_by_move(row["action_values"])
            score = score_row(row["prompt"], completion, values)
            answer = {
                **{name: row[name] for name in ("task", "prompt", "fen", "action")},
                "completion": completion,
                "score": None if score is None else dict(score),
                "values": values,
            }
            file.write(json.dumps(answer) + "\n")


def open_provenance(
    output_dir: Path,
    data: LoadedData,
    truth: PolicyTruth,
    processes: int,
    resumed_from: Path | None = None,
) -> None:
    """Write down what a run starts with; one that goes on adds a session to those before.

    Args:
        output_dir: The run's folder.
        data: What was loaded.
        truth: Where the values of moves come from.
        processes: That train together.
        resumed_from: The checkpoint that it goes on from.
    """
    source = truth.labeller.source if truth.labeller is not None else None
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "processes": processes,
        "resumed_from": str(resumed_from) if resumed_from is not None else None,
        "data": {item.name: getattr(data.report, item.name) for item in fields(data.report)},
        "labels": truth.labels,
        "engine": None if source is None else asdict(source),
        **machine(),
    }
    path = output_dir / PROVENANCE
    earlier = json.loads(path.read_text())["sessions"] if resumed_from and path.is_file() else []
    _write_json(path, {"schema_version": 1, "sessions": [*earlier, session]})


def close_provenance(output_dir: Path, started: float, parameters: int) -> None:
    """Add to the last session what is known at its end; one that was killed lacks it.

    Args:
        output_dir: The run's folder.
        started: When the script started, `time.perf_counter`'s seconds.
        parameters: How many the model has.
    """
    path = output_dir / PROVENANCE
    content = json.loads(path.read_text())
    seconds = round(time.perf_counter() - started, 1)
    content["sessions"][-1].update(seconds=seconds, parameters=parameters)
    _write_json(path, content)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A file that is there only when it is whole."""
    incomplete = path.with_name(f"{path.name}.incomplete")
    incomplete.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    incomplete.replace(path)


def note_coverage(model: PreTrainedModel, rows: Dataset, is_new: bool) -> None:
    """Note in a model's configuration which positions it is trained on, see `tasks.coverage`.

    To what it notes already it is added. One that was trained before and notes nothing is left
    without: its rows were more than these.

    Args:
        model: Before or after its training.
        rows: That it is trained on.
        is_new: Whether nothing else was.
    """
    earlier = noted(model.config)
    if is_new or earlier:
        note(model.config, widened(earlier, coverage(rows["task"], rows["fen"])))


def save_final(trainer: Trainer, folder: Path) -> None:
    """Save a model that plain `AutoModelForCausalLM.from_pretrained` loads.

    Adapters are merged into it, and kept by themselves in the folder `ADAPTER`.
    """
    network = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(network, "peft_config"):
        trainer.save_model(str(folder))
        return
    if trainer.accelerator.is_main_process:
        _save_adapter(network, folder / ADAPTER)
        merged: PreTrainedModel = network.merge_and_unload()
        merged.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
    trainer.accelerator.wait_for_everyone()


def _save_adapter(network: PeftModel, folder: Path) -> None:
    """The adapters alone; they name a base model that lies in a folder without its path."""
    network.save_pretrained(str(folder), selected_adapters=[network.active_adapter])
    (folder / CARD).unlink(missing_ok=True)  # PEFT's draft
    config = PeftConfig.from_pretrained(str(folder))
    base = Path(config.base_model_name_or_path or "")
    if base.name and base.is_dir():
        config.base_model_name_or_path = base.resolve().name
        config.save_pretrained(str(folder))
