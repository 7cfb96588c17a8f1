"""A run that goes on takes another value of a key or refuses it by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOTrainer

from rookworld_rlvr.cli.parser import _OF_A_CALL, StrictParser
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.training.changes import FREE, changed_keys, differences
from rookworld_rlvr.training.checkpoints import seal

from ..conftest import NOT_KEPT, recipe

MakeTrainer = Callable[..., GRPOTrainer]
SIMPLE = (bool, int, float, str, type(None))


# --------------------------------------------------------------------------------------------------
# What is recorded or refused
# --------------------------------------------------------------------------------------------------
def other(value: Any) -> Any:
    """Another value, of the same kind if it can be."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"not {value}"


@pytest.fixture(scope="module")
def resolved() -> tuple[str, str, set[str]]:
    """The packaged recipe's configuration, the same with every key changed, and the keys."""
    grpo = recipe("grpo")
    parser = StrictParser(grpo.GROUPS, grpo.RECIPE)
    groups = parser.parse_strictly(["--use_cpu", "--report_to", "none"])
    before = parser.resolved(*groups)
    keys = set()
    for group in groups:
        for item in dataclasses.fields(group):
            if item.init and item.name not in _OF_A_CALL:
                parser.values[item.name] = other(getattr(group, item.name))
                setattr(group, item.name, parser.values[item.name])
                keys.add(item.name)
    return before, parser.resolved(*groups), keys


def write(run: Path, text: str, *, step: int = 4) -> Path:
    """A run's folder with its configuration and one checkpoint."""
    checkpoint = run / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (run / "resolved_config.yaml").write_text(text)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (checkpoint / "config.json").write_text("{}")
    seal(checkpoint)
    return checkpoint


def test_every_key_is_free_or_refused_by_name(
    resolved: tuple[str, str, set[str]], tmp_path: Path
) -> None:
    before, now, keys = resolved
    assert len(keys) > 250 and keys >= FREE, "a misspelt key"
    assert set(differences(before, now)) == keys - {"output_dir"}
    assert differences(before, before) == {}
    with pytest.raises(RookWorldError, match="resume_from_checkpoint") as refused:
        changed_keys(write(tmp_path / "run", before), now)
    told = {line.split(":")[0].removeprefix("  - ") for line in str(refused.value).splitlines()}
    assert told & keys == keys - FREE


def test_a_refusal_says_how_to_start_from_the_weights(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "run", "seed: 0\nlearning_rate: 0.1\n")
    with pytest.raises(RookWorldError) as refused:
        changed_keys(checkpoint, "seed: 1\nlearning_rate: 0.2\n")
    head, line, remedy = str(refused.value).splitlines()
    assert str(checkpoint) in head and line == "  - seed: was 0, is 1"
    assert f"--model_name_or_path {checkpoint} --output_dir {tmp_path}/run-2" in remedy


def test_fewer_steps_than_were_made_are_refused(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "run", "max_steps: 6\n", step=4)
    assert changed_keys(checkpoint, "max_steps: 4\n") == {"max_steps": [6, 4]}
    with pytest.raises(RookWorldError, match="has made 4 steps already; give more"):
        changed_keys(checkpoint, "max_steps: 3\n")
    # A key that no step would be made with is not recorded.
    with pytest.raises(RookWorldError, match=r"4 steps already.*leave learning_rate as before"):
        changed_keys(checkpoint, "max_steps: 4\nlearning_rate: 0.1\n")


def test_a_schedule_that_remembers_its_rate_keeps_it(tmp_path: Path) -> None:
    text = "lr_scheduler_type: reduce_lr_on_plateau\nlearning_rate: "
    with pytest.raises(RookWorldError, match=r"learning_rate: was 0\.1, is 0\.2"):
        changed_keys(write(tmp_path / "run", f"{text}0.1\n"), f"{text}0.2\n")


DERIVED = "seed: 0\n# What follows from the above.\n# steps_per_generation: 1\n"
OWN = "seed: 0\n# sha256 of mine.py: "


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ("seed: 0\n", "seed: 0\n# The defaults.\nlabels: stored\n", {}),  # of a newer version
        ("seed: 0\n", "seed: 0\nlabels: stored\n", {"labels": [None, "stored"]}),
        (DERIVED, "seed: 0\nsteps_per_generation: 1\n", {}),
        (f"{OWN}ab\n", f"{OWN}cd\n", {"sha256 of mine.py": ["ab", "cd"]}),
    ],
)
def test_a_default_and_what_follows_from_other_keys_are_no_changes(
    before: str, now: str, changed: dict[str, Any]
) -> None:
    assert differences(before, now) == changed


# --------------------------------------------------------------------------------------------------
# What is used
# --------------------------------------------------------------------------------------------------
FIRST: dict[str, Any] = {
    **NOT_KEPT,
    "save_strategy": "steps",
    "save_steps": 1,
    "preflight": False,
    "learning_rate": 1e-3,
    "beta": 0.1,
    "max_completion_length": 4,
}
CHANGED: dict[str, dict[str, Any]] = {
    "rate and intervals": {
        "learning_rate": 2e-3,
        "num_train_epochs": 5.0,
        "logging_steps": 7,
        "save_steps": 3,
        "max_completion_length": 5,
    },
    "steps and batches": {
        "max_steps": 9,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "logging_steps": 0.5,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "no",
    },
}


def used(trainer: Any) -> dict[str, Any]:
    """What a trainer goes by after one step, as far as it is numbers and words."""
    numbers: dict[str, Any] = {
        f"{name}.{key}": value
        for name, owner in {"trainer": trainer, **trainer.parts}.items()
        for key, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, SIMPLE) and not key.startswith("_")
    }
    schedule, groups = trainer.lr_scheduler, trainer.optimizer.param_groups
    numbers["schedule"] = [[f(step) for step in range(12)] for f in schedule.lr_lambdas]
    numbers["rates"] = [schedule.base_lrs, schedule.get_last_lr(), schedule.last_epoch]
    keys = ("lr", "betas", "eps", "weight_decay")
    numbers["groups"] = [{key: group[key] for key in keys} for group in groups]
    steps = ("logging_steps", "eval_steps", "save_steps", "max_steps", "num_train_epochs")
    numbers |= {name: getattr(trainer.state, name) for name in steps}
    numbers["weights"] = trainer.reward_weights.tolist()
    numbers["sampling"] = [trainer.sampling, trainer.samplings(["P: ", "A: "])]
    of_a_step = {"nonfinite.norm", "advantages.last", "trainer.current_gradient_accumulation_steps"}
    of_a_step |= {"trainer.beta"}  # the last loss's; `coefficient` is what comes
    of_a_call = {"trainer.is_in_train", "trainer.current_flos"}
    of_a_call |= {"trainer.regrouped", "trainer.resumed_from", "supervised.logps"}
    return {key: numbers[key] for key in numbers.keys() - of_a_step - of_a_call}


@pytest.mark.parametrize("name", CHANGED)
def test_a_resumed_run_uses_what_a_new_one_with_these_keys_would(
    name: str,
    random_gpt2: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    make_trainer: MakeTrainer,
    tmp_path: Path,
) -> None:
    changed = CHANGED[name]
    assert changed.keys() <= FREE

    start = str(tmp_path / "start")  # where the reference comes from
    random_gpt2.save_pretrained(start)

    def trainer(output: str, **keys: Any) -> Any:
        options = {**FIRST, **keys, "output_dir": str(tmp_path / output)}
        return make_trainer(GPT2LMHeadModel.from_pretrained(start), tokenizer, **options)

    def look(output: str, checkpoint: str | None = None) -> dict[str, Any]:
        """What a trainer goes by once it has made one step; then it ends."""
        looking = trainer(output, **{"max_steps": 2, **changed})
        seen: dict[str, Any] = {}

        class Look(TrainerCallback):
            def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 1:
                    seen.update(used(looking))
                    raise StopIteration

            on_step_end = on_epoch_begin

        looking.add_callback(Look())
        with pytest.raises(StopIteration):
            looking.train(resume_from_checkpoint=checkpoint)
        return seen

    trainer("run").train()
    resumed = look("run", str(tmp_path / "run" / "checkpoint-1"))
    assert resumed == look("new")
