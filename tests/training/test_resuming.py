"""A run that goes on takes another value of a key or refuses it by name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.cli.parser import _OF_A_CALL, StrictParser
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.training.checkpoints import seal
from rookworld_rlvr.training.resuming import FREE, changed_keys, differences

from ..support import recipe


def other(value: Any) -> Any:
    """Another value, of the same kind if it can be."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"not {value}"


def test_every_key_is_free_or_refused_by_name(tmp_path: Path) -> None:
    parser = StrictParser(recipe("grpo").GROUPS, recipe("grpo").RECIPE)
    groups = parser.parse_strictly(["--use_cpu", "--report_to", "none"])
    before, keys = parser.resolved(*groups), set()
    for group in groups:
        for item in dataclasses.fields(group):
            if item.init and item.name not in _OF_A_CALL:
                parser.values[item.name] = other(getattr(group, item.name))
                setattr(group, item.name, parser.values[item.name])
                keys.add(item.name)
    now = parser.resolved(*groups)
    assert len(keys) > 250 and keys >= FREE, "a misspelt key"
    assert set(differences(before, now)) == keys - {"output_dir"}
    assert differences(before, before) == {}
    with pytest.raises(RookWorldError, match="resume_from_checkpoint") as refused:
        changed_keys(write(tmp_path / "run", before), now)
    told = {line.split(":")[0].removeprefix("  - ") for line in str(refused.value).splitlines()}
    assert told & keys == keys - FREE


def write(run: Path, text: str, *, step: int = 4) -> Path:
    """A run's folder with its configuration and one checkpoint."""
    checkpoint = run / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (run / "resolved_config.yaml").write_text(text)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (checkpoint / "config.json").write_text("{}")
    seal(checkpoint)
    return checkpoint


def test_a_refusal_says_how_to_start_from_the_weights(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "run", "seed: 0\nlearning_rate: 0.1\n")
    with pytest.raises(RookWorldError) as refused:
        changed_keys(checkpoint, "seed: 1\nlearning_rate: 0.2\n")
    head, line, remedy = str(refused.value).splitlines()
    assert str(checkpoint) in head and line == "  - seed: was 0, is 1"
    assert f"--model_name_or_path {checkpoint} --output_dir {tmp_path}/run-2" in remedy
    (checkpoint / "config.json").unlink()  # adapters alone are no model to start from
    with pytest.raises(RookWorldError, match=r"adapters alone, .* the merged model"):
        changed_keys(checkpoint, "seed: 1\n")


def test_a_checkpoint_from_before_a_change_has_its_own_keys(tmp_path: Path) -> None:
    """Such as after the last checkpoint was found damaged: the steps after it are made anew."""
    checkpoint = write(tmp_path / "run", "learning_rate: 0.2\n", step=2)
    sessions = [{}, {"from_step": 4, "changed": {"learning_rate": [0.1, 0.2]}}]
    (tmp_path / "run" / "provenance.json").write_text(json.dumps({"sessions": sessions}))
    assert changed_keys(checkpoint, "learning_rate: 0.2\n") == {"learning_rate": [0.1, 0.2]}
    as_many = "learning_rate: 0.1\nmax_steps: 2\n"  # steps as were made
    assert changed_keys(checkpoint, as_many) == {"max_steps": [None, 2]}


PLATEAU = "lr_scheduler_type: reduce_lr_on_plateau\nlearning_rate: "  # it remembers its rate


@pytest.mark.parametrize(
    ("before", "now", "fault"),
    [
        ("seed: [\n", "seed: 1\n", r"resolved_config.yaml .* could not be read"),
        (f"{PLATEAU}0.1\n", f"{PLATEAU}0.2\n", r"learning_rate: was 0\.1, is 0\.2"),
        ("max_steps: 6\n", "max_steps: 3\n", "has made 4 steps already; give more"),
        # A key that no step would be made with is not recorded.
        (
            "max_steps: 6\n",
            "max_steps: 4\nlearning_rate: 0.1\n",
            r"4 steps already.*leave learning_rate as before",
        ),
    ],
)
def test_what_is_refused(before: str, now: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(RookWorldError, match=fault):
        changed_keys(write(tmp_path / "run", before), now)


DERIVED = "seed: 0\n# What follows from the above.\n# steps_per_generation: 1\n"
OWN = "seed: 0\n# sha256 of mine.py: "


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ("seed: 0\n", "seed: 0\n# The defaults.\nlabels: stored\n", {}),  # of a newer version
        ("seed: 0\n", "seed: 0\nlabels: stored\n", {"labels": [None, "stored"]}),
        ("report_to: wandb\n", "report_to: [wandb]\n", {}),  # from a recipe, from the command line
        (DERIVED, "seed: 0\nsteps_per_generation: 1\n", {}),
        (f"{OWN}ab\n", f"{OWN}cd\n", {"sha256 of mine.py": ["ab", "cd"]}),
    ],
)
def test_what_counts_as_a_change(before: str, now: str, changed: dict[str, Any]) -> None:
    assert differences(before, now) == changed
