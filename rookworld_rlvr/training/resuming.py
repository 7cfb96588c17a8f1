"""Going on with a run: from which checkpoint, whether it may, and what changes from that step on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from datasets import Dataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from ..common.errors import RookWorldError
from ..tasks.metrics import Results, evaluate_completions
from .checkpoints import MANIFEST, SAVING, best_beside, entry, step_of
from .results import (
    CARD,
    HELDOUT_BEFORE,
    OWN_REWARDS,
    PROVENANCE,
    RESOLVED_CONFIG,
    heldout_results,
)

Changes = Mapping[str, Sequence[Any]]
"""Key → its value before, its value now; None if there is none."""


FREE = {
    # how long, how fast, and how often it is looked at
    *"max_steps num_train_epochs learning_rate logging_steps eval_steps save_steps".split(),
    *"eval_strategy do_eval save_strategy save_total_limit load_best_model_at_end".split(),
    # where it logs and is pushed
    *"output_dir run_name project report_to log_completions log_phases health".split(),
    *"push_to_hub hub_model_id hub_private_repo hub_revision".split(),
    # what it fits into
    *"per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps".split(),
    *"gradient_checkpointing max_completion_length attn_implementation bf16 use_cpu".split(),
    *"dataloader_num_workers torch_compile use_vllm vllm_mode".split(),
    *"vllm_gpu_memory_utilization preflight max_quarantined_share".split(),
}
"""The keys that may change when a run is resumed. All others say what is trained and measured."""


# Shards of weights and optimiser that torch and DeepSpeed read with the whole of pickle.
_PICKLED_SHARDS = ("*/.metadata", "global_step*")


# --------------------------------------------------------------------------------------------------
# Which checkpoint
# --------------------------------------------------------------------------------------------------
def find(wish: str, output_dir: Path, resolved: str) -> Path | None:
    """The checkpoint to go on from; see `run_folder.resume_point`, which all processes call."""
    is_auto = wish.lower() == "auto"
    # A run's card is written last, and removed when the run is resumed.
    if is_auto and all((output_dir / name).is_file() for name in (RESOLVED_CONFIG, CARD)):
        _end_if_the_same(output_dir, resolved)
        return None
    if is_auto or wish.lower() == "true":
        if found := checkpoints(output_dir):
            changed_keys(found[-1], resolved)  # may refuse, before anything is touched
        folder = last_whole(output_dir)
        if folder is None and is_auto:
            print(f"no checkpoint in {output_dir} yet: the run starts at step 0")
            return None
        if folder is None:
            raise RookWorldError(
                f"resume_from_checkpoint: no checkpoint in {output_dir}; give auto to start a new run "
                "where there is none, or a folder checkpoint-N"
            )
    else:
        folder = Path(wish)
        if fault := damage(folder):
            raise RookWorldError(
                f"resume_from_checkpoint: {wish!r} is damaged or no checkpoint ({fault}); give a folder "
                f"checkpoint-N, or true for the last whole checkpoint in {output_dir}"
            )
        changed_keys(folder, resolved)  # may refuse
    refuse_foreign_shards(folder, output_dir)
    return folder


def _end_if_the_same(output_dir: Path, resolved: str) -> None:
    """End the command if the finished run in a folder is the one that is asked for."""
    before = (output_dir / RESOLVED_CONFIG).read_text(encoding="utf-8")
    if other := differences(before, resolved):
        print(
            f"the run in {output_dir} is finished, and had other keys ({changed_words(other)}): a new "
            "run starts; to train that one on, give --resume_from_checkpoint true"
        )
        return
    print(
        f"the run in {output_dir} is finished; see its {CARD}. To run it once more, give "
        "--resume_from_checkpoint false, which keeps this one under another name; to train on, give "
        "--resume_from_checkpoint true and a larger max_steps: the learning rate goes on where a "
        "schedule over so many steps has it"
    )
    raise SystemExit(0)


def refuse_foreign_shards(checkpoint: Path, output_dir: Path) -> None:
    """Refuse a sharded checkpoint from elsewhere, which could run code when a run is resumed from it.

    All other files transformers reads with ``weights_only=True``, which runs nothing.

    Raises:
        RookWorldError: It is sharded and not from the run's own folder.
    """
    shards = [path for pattern in _PICKLED_SHARDS for path in checkpoint.glob(pattern)]
    if shards and checkpoint.resolve().parent != output_dir.resolve():
        raise RookWorldError(
            f"resume_from_checkpoint: {str(checkpoint)!r} is sharded, and its shards are pickles, which "
            f"can run code; if it is your own, move it into {str(output_dir)!r}, or save with "
            "fsdp_state_dict_type: FULL_STATE_DICT"
        )


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as a phrase that names the file; None if it is whole."""
    if not (folder / MANIFEST).is_file():
        return f"{MANIFEST} is missing"
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, known in files.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if entry(folder / name) != known:
                return f"{name} does not have its size and checksum"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return None


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints in a run's folder, by step."""
    name = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-\d+")  # not a copy beside it, checkpoint-4.bak
    return [path for path in map(Path, sort_checkpoints(str(run))) if name.fullmatch(path.name)]


def last_whole(run: Path) -> Path | None:
    """The last whole checkpoint in a run's folder; None if it has no checkpoint at all.

    What was being written when the run ended is removed. Damaged checkpoints are set aside, under
    another name, so that they do not count for `save_total_limit`. Both are printed.

    Raises:
        RookWorldError: There are checkpoints, but none is whole.
    """
    unfinished = run / SAVING
    if unfinished.is_dir():
        names = ", ".join(sorted(path.name for path in unfinished.iterdir()))
        print(f"{unfinished}: {names} was being written when the run ended; it is removed")
        shutil.rmtree(unfinished)
    damaged: dict[Path, str] = {}
    for folder in reversed(checkpoints(run)):
        if (fault := damage(folder)) is None:
            _set_aside(damaged)
            _check_best(folder)
            print(f"going on from {folder}")
            return folder
        damaged[folder] = fault
    if damaged:
        told = "; ".join(f"{folder.name}: {fault}" for folder, fault in damaged.items())
        raise RookWorldError(
            f"resume_from_checkpoint: every checkpoint in {run} is damaged ({told}); restore one from "
            f"a copy, or start anew with --resume_from_checkpoint false, which keeps {run} under "
            "another name"
        )
    return None


def _set_aside(damaged: Mapping[Path, str]) -> None:
    for folder, fault in damaged.items():
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"{folder} is damaged ({fault}) and left out; it is now {aside}")


def _check_best(folder: Path) -> None:
    """Set the best checkpoint so far aside if it is damaged; it would be loaded at the end."""
    best = best_beside(folder)
    if best is not None and best != folder and (fault := damage(best)) is not None:
        print(
            f"{best} was the best so far: unless a later one is better, the run ends with the weights "
            "of its last step"
        )
        _set_aside({best: fault})


# --------------------------------------------------------------------------------------------------
# Keys that have changed
# --------------------------------------------------------------------------------------------------
def differences(before: str, now: str) -> dict[str, list[Any]]:
    """The keys that two resolved configurations do not share, but for the run's folder.

    Args:
        before: The text of ``resolved_config.yaml``.
        now: Another one. Defaults that the first does not know are new in this version.

    Raises:
        RookWorldError: The first is not valid YAML.
    """
    try:
        listed, known = _keys(before)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise RookWorldError(
            f"the {RESOLVED_CONFIG} of the run that is resumed could not be read ({said}); restore it, "
            "or start a new run in another output_dir"
        ) from error
    listed_now, known_now = _keys(now)
    new = _mapping(now.partition("# The defaults.")[2]).keys() - known.keys()
    return {
        key: [known.get(key), known_now.get(key)]
        for key in sorted((listed.keys() | listed_now.keys()) - new - {"output_dir"})
        if _bare(known.get(key)) != _bare(known_now.get(key))
    }


def _bare(value: Any) -> Any:
    """A value without the list around it, if it is the only item: `report_to` may be either."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _keys(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that a resolved configuration lists, and these with those that follow from them."""
    head, _, derived = text.partition("# What follows from the above.")
    digests = re.findall(r"^# (sha256 of .+): (\w+)$", head, re.MULTILINE)
    listed = {**_mapping(head), **dict(digests)}
    return listed, {**_mapping(re.sub("^# ", "", derived, flags=re.MULTILINE)), **listed}


def _mapping(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text)
    return found if isinstance(found, dict) else {}


def changed_keys(checkpoint: Path, resolved: str) -> dict[str, list[Any]]:
    """The keys whose values differ from those that a checkpoint was trained with.

    Args:
        checkpoint: A checkpoint in a run's folder; of another folder nothing is known.
        resolved: The resolved configuration of the run that goes on from it.

    Raises:
        RookWorldError: Some of them are not `FREE`; it names them all.
    """
    run = checkpoint.parent
    if not (run / RESOLVED_CONFIG).is_file():
        return {}
    found = differences((run / RESOLVED_CONFIG).read_text(encoding="utf-8"), resolved)
    known = _keys(resolved)[1]
    for session in reversed(sessions_of(run)):  # those whose steps are made anew
        if session.get("from_step", 0) < step_of(checkpoint):
            break
        found |= {
            key: [was, known.get(key)] for key, (was, _) in session.get("changed", {}).items()
        }
    found = {key: [was, now] for key, (was, now) in found.items() if _bare(was) != _bare(now)}
    schedule = known.get("lr_scheduler_type")
    fixed = {"learning_rate"} if schedule in ("reduce_lr_on_plateau", "greedy") else set()
    if refused := found.keys() - (FREE - fixed):
        raise RookWorldError(_refusal(checkpoint, {key: found[key] for key in sorted(refused)}))
    done, steps = step_of(checkpoint), known.get("max_steps")
    # No step is left for them.
    unused = sorted(found.keys() - {"max_steps"}) if steps == done else []
    if isinstance(steps, int) and (0 < steps < done or unused):
        earlier = f", or leave {', '.join(unused)} as before" if unused else ""
        raise RookWorldError(
            f"max_steps: {steps}: {checkpoint} has made {done} steps already; give more than that"
            f"{earlier}"
        )
    return found


def _refusal(checkpoint: Path, refused: Changes) -> str:
    run = checkpoint.parent
    lines = [f"  - {key}: was {words(was)}, is {words(now)}" for key, (was, now) in refused.items()]
    how = f"; the checkpoint holds adapters alone, {run} the merged model of a finished run"
    if (checkpoint / "config.json").is_file():
        how = (
            " from its weights, by adding to your command: "
            f"--config {quote(str(run / RESOLVED_CONFIG))} --resume_from_checkpoint false "
            f"--model_name_or_path {quote(str(checkpoint))} --output_dir {quote(f'{run}-2')}"
        )
    return (
        f"resume_from_checkpoint: {checkpoint} was trained with other values of keys that must stay "
        "while a run goes on:\n"
        + "\n".join([*lines, f"give these keys their earlier values, or start a new run{how}"])
    )


def sessions_to(checkpoint: Path, resolved: str, session: dict[str, Any]) -> list[dict[str, Any]]:
    """A run's sessions, the last of which goes on from a checkpoint; what changed is printed.

    Args:
        checkpoint: The folder that it goes on from.
        resolved: Its resolved configuration.
        session: What else is known of its start; the step and what changed are added.
    """
    session["from_step"] = step_of(checkpoint)
    session["changed"] = changed_keys(checkpoint, resolved)
    for line in stretches([session]):
        print(line)
    return [*sessions_of(checkpoint.parent), session]


def sessions_of(run: Path) -> list[dict[str, Any]]:
    """The starts of a run, from its ``provenance.json``; none if there is no such file."""
    path = run / PROVENANCE
    return json.loads(path.read_text(encoding="utf-8"))["sessions"] if path.is_file() else []


def starting_point(checkpoint: Path, heldout: Dataset) -> Results | None:
    """The held-out results from before the first step of a checkpoint's run; None if it has none.

    Raises:
        RookWorldError: They were measured on other held-out rows, or by an earlier version.
    """
    if not (path := checkpoint.parent / HELDOUT_BEFORE).is_file():
        return None
    before = heldout_results(json.loads(path.read_text()), "before")
    counted = {name: found.n for name, found in before.items() if not name.startswith(OWN_REWARDS)}
    now: dict[str, Any] = evaluate_completions(heldout, [""] * len(heldout))
    if counted != {name: now[name].n for name in now}:
        raise RookWorldError(
            f"the run in {path.parent} began with other held-out rows than this configuration gives; "
            f"resume it with its own data settings, or start from its weights (--model_name_or_path "
            f"{checkpoint}) in another output_dir"
        )
    return before


# --------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------
def stretches(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What changed in a run's configuration, a line for each step from which on something did.

    >>> first, second = {}, {"from_step": 4, "changed": {"max_steps": [6, 9]}}
    >>> stretches([first, second])
    ['from step 4: max_steps 6 -> 9']

    A session that begins earlier than the one before makes its steps anew:

    >>> stretches([first, second, {"from_step": 2, "changed": {"max_steps": [6, 8]}}])
    ['from step 2: max_steps 6 -> 8']
    """
    valid: list[Mapping[str, Any]] = []
    for session in sessions:
        step = session.get("from_step", 0)
        valid = [*(earlier for earlier in valid if earlier.get("from_step", 0) < step), session]
    return [
        f"from step {session['from_step']}: {changed_words(session['changed'])}"
        for session in valid
        if session.get("changed")
    ]


def changed_words(changed: Changes) -> str:
    """Keys with their values before and now, in one line."""
    return "; ".join(f"{key} {words(was)} -> {words(now)}" for key, (was, now) in changed.items())


def words(value: Any) -> str:
    """A key's value, in short.

    >>> words(5e-5), words(None), words([{"name": "graduated", "weight": 0.5}, "other"])
    ('5e-05', 'none', 'graduated x 0.5, other')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, Mapping) and "name" in value:
        options = {key: value[key] for key in value if key not in ("name", "weight")}
        more = "".join(f" {key} {words(option)}" for key, option in options.items())
        return f"{value['name']} x {words(value.get('weight', 1))}{more}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(item)}" for key, item in value.items()) or "none"
    return "none" if value is None else str(value)
