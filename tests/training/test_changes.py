"""A run that goes on takes another value of a key or refuses it by name, and records what it used."""

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
from rookworld_rlvr.data.judge_pairs import JudgeDataArguments
from rookworld_rlvr.training.changes import FIXED, changed_keys, differences, step_of
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


def test_every_key_is_recorded_or_refused(
    resolved: tuple[str, str, set[str]], tmp_path: Path
) -> None:
    before, now, keys = resolved
    assert len(keys) > 250
    assert set(differences(before, now)) == keys - {"output_dir"}
    assert differences(before, before) == {}
    with pytest.raises(RookWorldError, match="resume_from_checkpoint") as refused:
        changed_keys(write(tmp_path / "run", before), now)
    told = {line.split(":")[0].removeprefix("  - ") for line in str(refused.value).splitlines()}
    assert told & keys == FIXED & keys
    judges = {item.name for item in dataclasses.fields(JudgeDataArguments)}
    assert FIXED - keys == judges | {"new_model"}, "a misspelt key"


def test_a_refusal_says_how_to_start_from_the_weights(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "run", "seed: 0\nlearning_rate: 0.1\n")
    with pytest.raises(RookWorldError) as refused:
        changed_keys(checkpoint, "seed: 1\nlearning_rate: 0.2\n")
    head, line, remedy = str(refused.value).splitlines()
    assert str(checkpoint) in head and line == "  - seed: was 0, is 1"
    assert f"--model_name_or_path {checkpoint} --output_dir {tmp_path}/run-2" in remedy


def test_fewer_steps_than_were_made_are_refused(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "run", "max_steps: 6\n")
    made = step_of(checkpoint)
    assert changed_keys(checkpoint, f"max_steps: {made}\n") == {"max_steps": [6, made]}
    with pytest.raises(RookWorldError, match=rf"has made {made} steps already; give more"):
        changed_keys(checkpoint, f"max_steps: {made - 1}\n")


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


def test_steps_that_are_made_anew_are_compared_with_what_was_used_before_them(
    tmp_path: Path,
) -> None:
    """A session changed the rate at step 4 and was killed; the run goes on from step 4, or from 2."""
    for step in (4, 2):
        checkpoint = write(tmp_path / str(step), "learning_rate: 0.2\n", step=step)
        session = {"from_step": 4, "changed": {"learning_rate": [0.1, 0.2]}}
        (checkpoint.parent / "provenance.json").write_text(json.dumps({"sessions": [{}, session]}))
        assert changed_keys(checkpoint, "learning_rate: 0.1\n") == {}
        assert changed_keys(checkpoint, "learning_rate: 0.2\n") == {"learning_rate": [0.1, 0.2]}


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
    "optimiser, sampling, loss": {
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 3,
        "weight_decay": 0.2,
        "adam_beta1": 0.8,
        "adam_beta2": 0.9,
        "adam_epsilon": 1e-6,
        "max_grad_norm": 0.5,
        "num_train_epochs": 5.0,
        "logging_steps": 7,
        "save_steps": 3,
        "beta": 0.3,
        "kl_estimator": "k1",
        "kl_warmup_steps": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "repetition_penalty": 1.1,
        "min_p": 0.1,
        "rewards": [{"name": "environment_state", "weight": 3.0}],
        "scale_rewards": "batch",
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "delta": 4.0,
        "loss_type": "dapo",
        "mask_truncated_completions": True,
        "importance_sampling_level": "sequence",
        "entropy_coef": 0.1,
        "use_bias_correction_kl": False,
        "top_entropy_quantile": 0.5,
        "baseline": "ema",
        "baseline_decay": 0.5,
        "zero_variance": "skip",
        "max_completion_length": 5,
    },
    "three phases, adaptive KL, groups": {
        "lr_three_phases": True,
        "lr_linear_share": 0.5,
        "warmup_steps": 1,
        "max_steps": 9,
        "kl_control": "adaptive",
        "kl_target": 0.1,
        "kl_horizon": 100,
        "beta": 0.2,
        "kl_warmup_steps": 5,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "num_iterations": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 0.5,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "task_sampling": {"policy": {"temperature": 0.5}},
        "zero_variance": "resample",
        "save_strategy": "no",
        "average_tokens_across_devices": False,
    },
    "a schedule's own keys, the supervised term": {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 1e-4},
        "sft_coef": 0.1,
        "steps_per_generation": 2,
        "beta": 0.0,
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
    if "kl" in trainer.parts:
        controller = trainer.parts["kl"].controller
        numbers["coefficient"] = [controller.coefficient(step) for step in range(4)]
    schedule, groups = trainer.lr_scheduler, trainer.optimizer.param_groups
    numbers["schedule"] = [[f(step) for step in range(12)] for f in schedule.lr_lambdas]
    numbers["rates"] = [schedule.base_lrs, schedule.get_last_lr(), schedule.last_epoch]
    keys = ("lr", "initial_lr", "betas", "eps", "weight_decay")
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
    assert not FIXED & changed.keys()

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
