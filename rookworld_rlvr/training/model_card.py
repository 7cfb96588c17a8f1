"""The model card that every run writes beside its model."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME

from .. import __version__
from ..common.files import is_hub_id, render
from ..common.machine import machine
from ..data.loading import LoadedData
from ..data.sources import PACKAGED_DATA, dataset_file
from ..models.loading import PACKAGED_MODEL, PACKAGED_MODELS, resolve_model_path
from ..rewards.registry import tasks_of
from ..tasks.registry import TASKS
from .results import CARD, compared, interval_text, value_text, verdicts
from .run_folder import open_weights


class OwnCard(Trainer):
    """Mixin for TRL's trainers: what they write beside the weights, and who may read it.

    They draft no cards and push nothing to the Hub: a run writes its own card at its end, and `hub.push`
    pushes it. And they leave no pickled arguments.
    """

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card, because the run writes its own; TRL drafts one with every checkpoint."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Create no repository, because `hub.create_repository` has already done it."""

    def push_to_hub(self, *args: Any, **kwargs: Any) -> None:
        """Push nothing, because `hub.push` does it after the run; transformers would push too early."""

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save weights under the user's umask, and not transformers' `training_args.bin`.

        That file is a pickle, which nobody should load and nothing reads.
        """
        super().save_model(output_dir, *args, **kwargs)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            open_weights(folder)


@dataclass(frozen=True, slots=True)
class Run:
    """What the cards of all kinds of runs need.

    Args:
        command: The command that ran it: ``grpo``, ``sft`` or ``judge``.
        folder: The run's folder, where the card is written.
        recipe: The keys that were given, from the YAML file and the command line.
        base: The starting model.
        data: The data that the model was trained and measured on.
        dataset: The data set's name, as `check_dataset_name` takes it.
        parameters: The number of the model's parameters.
        seconds: How long it took, counted from the last resume.
        processes: The number of processes that trained together.
        resumed: Whether it was resumed from a checkpoint.
        changed: What changed when it was resumed, see `resuming.stretches`.
        repository: The repository on the Hub that it is pushed to; None if it is not pushed.
    """

    command: str
    folder: Path
    recipe: Mapping[str, Any]
    base: str
    data: LoadedData
    dataset: str
    parameters: int
    seconds: float
    processes: int = 1
    resumed: bool = False
    changed: Sequence[str] = ()
    repository: str | None = None

    @property
    def name(self) -> str:
        """The model's name: that of the repository, or of the folder if there is no repository."""
        return (self.repository or self.folder.resolve().name).split("/")[-1]


# --------------------------------------------------------------------------------------------------
# The card
# --------------------------------------------------------------------------------------------------
def write_card(
    run: Run,
    shares: Mapping[str, float],
    tags: Sequence[str],
    kind: str = "text-generation",
    adapters: bool = False,
    **values: Any,
) -> None:
    """Write the card of a run. What is not on the Hub is named in its text only.

    Args:
        run: The run.
        shares: Held-out results of the saved model, for the header.
        tags: For the Hub.
        kind: The Hub's name for what the model does.
        adapters: Whether adapters were trained.
        values: What else the kind's template names, such as `before` and `after`, the held-out results.
    """
    measured = run.recipe.get("eval_dataset_name") or ""
    name = public(measured or run.dataset) or "synthetic rows"
    data = ModelCardData(
        **_licence(run),
        base_model=run.base if _is_on_hub(run.base) else None,
        datasets=[run.dataset] if _is_hub_dataset(run.dataset) else None,
        library_name="peft" if adapters and run.repository else "transformers",
        pipeline_tag=kind,
        tags=["chess", "rookworld", *tags, "trl"],
        model_name=run.name,
        eval_results=[
            EvalResult(kind, name, name, metric, value, dataset_split="held-out")
            for metric, value in shares.items()
        ],
    )
    report = run.data.report
    playing_first = sorted(TASKS.values(), key=lambda task: not task.needs_values)
    trained = [task for task in playing_first if report.train[task.name]]
    if "before" in values:
        values["verdicts"] = verdicts(values["before"], values["after"], compared(run.folder))
    body = render(
        f"{run.command}_card.md",
        run=run,
        licence=data.license,
        version=__version__,
        interval_text=interval_text,
        value_text=value_text,
        adapters=adapters,
        report=report,
        abilities=" and ".join(task.ability for task in trained),
        has_values=any(task.needs_values for task in trained),
        base=_origin(run.base, "https://huggingface.co"),
        is_packaged=run.base == PACKAGED_MODEL,
        dataset=_origin(run.dataset, "https://huggingface.co/datasets"),
        measured=measured and _origin(measured, "https://huggingface.co/datasets"),
        moves=_moves(run.data.heldout),
        examples=_examples(run.data.heldout),
        model_id=run.repository or public(str(run.folder)),
        here=machine(),
        public=public,
        recipe=yaml.safe_dump(public(dict(run.recipe)), sort_keys=False, width=1000).strip(),
        **values,
    )
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n").save(run.folder / CARD)


def _is_on_hub(name: str) -> bool:
    """Whether a name is an id on the Hub; a run's folder, ``runs/sft_nano``, has the same form."""
    return is_hub_id(name) and not Path(name).exists()


def _is_hub_dataset(name: str) -> bool:
    return dataset_file(name) is None and _is_on_hub(name)


def _licence(run: Run) -> dict[str, Any]:
    """The licence, as a base model in a folder says in its own card; nothing if it is not known."""
    card = Path(resolve_model_path(run.base)) / CARD
    if not card.is_file():
        return {}
    said = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    return {key: said[key] for key in ("license", "license_name", "license_link") if key in said}


# --------------------------------------------------------------------------------------------------
# Text
# --------------------------------------------------------------------------------------------------
def _origin(name: str, hub: str) -> str:
    """Where a model or a data set comes from."""
    if name in (*PACKAGED_MODELS, *PACKAGED_DATA):
        return f"`{name}`, which comes with rookworld-rlvr"
    if _is_hub_dataset(name):
        return f"[{name}]({hub}/{name})"
    return f"`{Path(name).name}`" if name else "no data set"


def _moves(heldout: Dataset) -> tuple[int, float, int]:
    """The lowest, median and highest move number of the held-out positions."""
    numbers = [int(fen.split()[5]) for fen in heldout["fen"]]
    return min(numbers), statistics.median(numbers), max(numbers)


def _examples(heldout: Dataset) -> list[tuple[str, str]]:
    """A prompt of each task with the right answer, both as Python literals."""
    firsts = {row["task"]: row for row in reversed(heldout.to_list())}
    return [
        (repr(firsts[name]["prompt"]), repr(task.reference(firsts[name])))
        for name, task in TASKS.items()
        if name in firsts
    ]


def trained_rewards(
    specs: Sequence[Mapping[str, Any]], data: LoadedData
) -> list[tuple[str, float, str]]:
    """Name, weight and options of the rewards of tasks that have rows."""
    tasks = {task for task, rows in data.report.train.items() if rows}
    return [
        (
            public(spec["name"]),
            float(spec.get("weight", 1.0)),
            ", ".join(f"{k} {public(v)}" for k, v in spec.items() if k not in ("name", "weight")),
        )
        for spec in specs
        if tasks_of([spec]) & tasks
    ]


def public(value: Any) -> Any:
    """A value with absolute paths shortened to file names, so that a card shows nobody's folders.

    A text that is a list or mapping is shortened value by value, as are several paths with colons.

    >>> public({"rewards": ["/home/ann lee/short.py:short"], "path": "/home/ann/a:/home/ann/b"})
    {'rewards': ['short.py:short'], 'path': 'a:b'}
    >>> public("from step 4: engine_path /opt/a/fish -> https://a.b/c/")
    'from step 4: engine_path fish -> https://a.b/c/'
    """
    if isinstance(value, Mapping):
        return {key: public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    if not isinstance(value, str):
        return value
    if Path(value).is_absolute():
        return ":".join(Path(part).name for part in re.split(":(?=/)", value))
    if value.startswith(("[", "{")):
        with suppress(yaml.YAMLError, ValueError):
            found = yaml.safe_load(value)
            return value if public(found) == found else json.dumps(public(found))
    return re.sub(r"(?<![\w:/.~])/(?!/)\S*/", "", value)
