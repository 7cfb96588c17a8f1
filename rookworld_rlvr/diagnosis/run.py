"""One optimiser step of the real trainer on a fixed seed, taken apart in ten parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..common.errors import ConfigurationError
from ..common.files import read_asset
from ..common.settings import Checked, setting
from ..tasks.registry import TASKS
from ..training.health.rules import HealthArguments
from . import sections
from .completions import completion_groups, completions_part
from .findings import find
from .trainer import DiagnosedTrainer

PARTS: Mapping[str, str] = {
    "setup": "Set-up",
    "heldout_before": "Held-out score before",
    "completions": "Completions",
    "rewards": "Rewards by component",
    "advantages": "Groups and advantages",
    "loss_terms": "Policy-gradient and KL terms",
    "shares": "Shares of loss and gradient",
    "gradients": "Gradients by layer",
    "heldout_after": "Held-out score after",
    "findings": "Findings",
}
"""Key in the JSON file → title, in the order of the report."""


RESULT_JSON = "diagnosis.json"


RESULT_HTML = "diagnosis.html"


VERSION = 1  # of the JSON file's form


_OVERRIDES = read_asset("diagnosis_overrides.yaml")


def _compare_faults(recipes: Sequence[str], name: str) -> list[str]:
    return [] if len(recipes) == 2 else [f"{name}: {len(recipes)} recipes given; give two"]


@dataclass
class DiagnoseArguments(Checked):
    """What to diagnose, beside the recipe."""

    overfit_single_batch: int = setting(
        0,
        "Take this many steps on the prompts of the first batch, with new completions in each; 0 takes "
        "a single step.",
        least=0,
    )
    compare: list[str] | None = setting(
        None,
        "Two recipes to diagnose one after the other, in place of --config.",
        check=_compare_faults,
    )
    diagnose_heldout_rows: int = setting(
        200,
        "Held-out rows to evaluate before and after the step, spread evenly over the tasks.",
        least=1,
    )

    def overrides(self) -> dict[str, tuple[str, str]]:
        """Keys of the recipe that a diagnosis sets: key → its value, and the reason."""
        steps = str(max(1, self.overfit_single_batch))
        return {"max_steps": (steps, "as many as are diagnosed"), **_OVERRIDES}

    def words(self) -> list[str]:
        """The overrides as words of a command line, to append to the user's."""
        pairs = self.overrides().items()
        return [word for key, (value, _) in pairs for word in (f"--{key}", value)]


def split_compare(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The recipes after ``--compare``, and the rest of the command line.

    >>> split_compare(["--compare", "a.yaml", "b.yaml", "--seed", "1"])
    (['a.yaml', 'b.yaml'], ['--seed', '1'])

    Raises:
        ConfigurationError: Not two recipes, or ``--config`` beside them.
    """
    if "--compare" not in argv:
        return [], list(argv)
    start = list(argv).index("--compare") + 1
    end = next((i for i in range(start, len(argv)) if argv[i].startswith("--")), len(argv))
    paths, rest = list(argv[start:end]), [*argv[: start - 1], *argv[end:]]
    faults = []
    if len(paths) != 2:
        faults.append(f"--compare: {len(paths)} recipes given; give two")
    if any(word.split("=")[0] == "--config" for word in rest):
        faults.append(
            "--config: --compare already names the recipes; give only one of these options"
        )
    if faults:
        raise ConfigurationError(faults)
    return paths, rest


def choose_heldout(rows: Dataset, most: int) -> Dataset:
    """At most so many held-out rows, spread evenly over tasks and over each task's rows."""
    by_task = {
        task: [index for index, mine in enumerate(rows["task"]) if mine == task] for task in TASKS
    }
    present = [indices for indices in by_task.values() if indices]
    chosen: list[int] = []
    for turn, indices in enumerate(sorted(present, key=len)):
        share = (most - len(chosen)) // (len(present) - turn)
        count = min(len(indices), max(1, share))
        chosen += [indices[place * len(indices) // count] for place in range(count)]
    return rows.select(sorted(chosen))


@dataclass(frozen=True)
class Diagnosis:
    """A step taken apart.

    Attributes:
        recipe: Its name.
        parts: By the keys of `PARTS`.
        phases: What each cost: ``{memory, rows}``.
        repetitions: A row for each step, if one batch was repeated.
    """

    recipe: str
    parts: Mapping[str, Any]
    phases: Mapping[str, Any]
    repetitions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_stop(self) -> bool:
        """Whether a finding says that the run should not start."""
        return any(found["severity"] == "stop" for found in self.parts["findings"]["findings"])

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return {
            "version": VERSION,
            "recipe": self.recipe,
            **{key: self.parts[key] for key in PARTS},
            "phases": self.phases,
            "repetitions": self.repetitions,
        }


def run_diagnosis(
    trainer: DiagnosedTrainer,
    recipe: str,
    extra_setup: Mapping[str, Any] | None = None,
    health: HealthArguments | None = None,
) -> Diagnosis:
    """Train for as many steps as the trainer's arguments say, evaluate, and take the first step apart.

    Every process has to call it. All get the same result, but each has its own phases.

    Args:
        trainer: A new one; its arguments are those of a recipe with `DiagnoseArguments.overrides`.
        recipe: Name for the report.
        extra_setup: More for the first part: data, engine, overrides.
        health: Severities and bounds of the health rules; None takes the defaults.
    """
    trainer.train()
    with trainer.meter.phase("diagnosis"):
        set_up = {**sections.setup_part(trainer), **(extra_setup or {})}
    trainer.evaluate()
    before, after = trainer.heldouts[0], trainer.heldouts[-1]
    record = trainer.steps[0]
    groups = completion_groups(trainer, record)
    parts: dict[str, Any] = {
        "setup": set_up,
        "heldout_before": sections.heldout_part(trainer, before),
        "completions": completions_part(groups),
        "rewards": sections.rewards_part(trainer, groups),
        "advantages": sections.advantages_part(trainer, groups),
        "loss_terms": sections.loss_terms_part(trainer, record, groups),
        "shares": sections.shares_part(trainer, record),
        "gradients": sections.gradients_part(record),
        "heldout_after": sections.heldout_after_part(trainer, before, after),
    }
    logs = trainer.state.log_history
    repeated = sections.repetitions(logs) if len(trainer.steps) > 1 else []
    parts["findings"] = find(parts, logs, health, repeated)
    phases = {"memory": trainer.meter.memory_kind, "rows": trainer.meter.rows()}
    return Diagnosis(
        recipe, sections.clean(parts), sections.clean(phases), sections.clean(repeated)
    )


def output_folder(argv: Sequence[str], recipe: str) -> Path:
    """Where the report goes: ``--output_dir`` if it is given, never the recipe's own folder.

    >>> output_folder(["--seed", "1"], "grpo_nano").as_posix()
    'runs/diagnosis-grpo_nano'
    """
    words = [part for word in argv for part in word.split("=", 1)]
    if "--output_dir" in words[:-1]:
        return Path(words[words.index("--output_dir") + 1])
    return Path("runs") / f"diagnosis-{recipe}"
