from pathlib import Path
from typing import Any

import pytest
import yaml
from trl import ModelConfig

from rookworld_rlvr.cli.checks import check_recipe
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.engine.truth import LabelArguments
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.training.config import RookWorldGRPOConfig, RunArguments

GOOD: dict[str, Any] = {
    "model_name_or_path": "rookworld-nano",
    "rewards": [{"name": "environment_exact"}, {"name": "policy_best_move", "weight": 0.5}],
    "bf16": False,
    "use_cpu": True,
    "report_to": [],
}


def parse(tmp_path: Path, recipe: dict[str, Any], *argv: str) -> tuple[Any, ...]:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    groups = [RunArguments, DataArguments, LabelArguments, ModelConfig]
    parser = StrictParser([*groups, RookWorldGRPOConfig, SuiteArguments])
    return parser.parse_strictly(["--config", str(path), *argv], check_recipe)


def faults_of(tmp_path: Path, recipe: dict[str, Any], *argv: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(tmp_path, recipe, *argv)
    return caught.value.faults


def test_recipe_and_overrides(tmp_path: Path) -> None:
    recipe = {**GOOD, "learning_rate": "1e-6", "max_steps": 7, "lora_r": 4, "use_peft": True}
    run, data, _, model, training, _ = parse(
        tmp_path, recipe, "--max_steps", "3", "--tasks", "environment", "policy", "--dry_run"
    )
    assert training.learning_rate == 1e-6, "PyYAML reads 1e-6 as a text"
    assert training.max_steps == 3
    assert data.tasks == ["environment", "policy"]
    assert run.dry_run is True
    assert model.lora_r == 4
    assert training.reward_weights == [1.0, 0.5]


def test_rewards_and_shares_can_be_given_as_json(tmp_path: Path) -> None:
    rewards = '[{"name": "graduated", "shaping": "linear", "weight": 2}]'
    argv = ["--rewards", rewards, "--synthetic_shares", '{"openings": 1.0}']
    _, data, _, _, training, _ = parse(tmp_path, GOOD, *argv)
    assert training.reward_weights == [2.0]
    assert data.synthetic_shares == {"openings": 1.0}


@pytest.mark.parametrize("key", ["eval_strategy", "save_strategy"])
def test_without_measured_checkpoints_none_is_the_best(tmp_path: Path, key: str) -> None:
    *_, training, _ = parse(tmp_path, GOOD, f"--{key}", "no")
    assert training.load_best_model_at_end is False


@pytest.mark.parametrize("given", ["graduated", "[graduated]", "[{name: graduated}]"])
def test_a_reward_can_be_given_by_its_name(tmp_path: Path, given: str) -> None:
    *_, training, _ = parse(tmp_path, GOOD, "--rewards", given)
    assert training.rewards == [{"name": "graduated"}]


@pytest.mark.parametrize(
    ("change", "argv", "words"),
    [
        ({"learning_rat": 1e-5}, (), ["learning_rat", "learning_rate"]),
        ({}, ("--learning_rat", "1"), ["learning_rat", "learning_rate"]),
        ({"max_steps": "many"}, (), ["max_steps", "many"]),
        ({"scale_rewards": "grup"}, (), ["scale_rewards", "did you mean group"]),
        ({"max_completion_length": 0}, (), ["max_completion_length: 0 is too small"]),
        ({"max_steps": 0}, (), ["max_steps: 0", "-1 to use num_train_epochs"]),
        ({"rewards": None}, (), ["rewards", "environment_exact"]),
        ({"dataset_name": "rookworld-nano-opening"}, (), ["rookworld-nano-openings"]),
        ({"dataset_name": "no/such/file.jsonl"}, (), ["no/such/file.jsonl"]),
        ({"tasks": ["polcy"]}, (), ["polcy", "policy"]),
        ({"synthetic_shares": {"openings": 0.5}}, (), ["add up to 0.5"]),
        ({"metric_for_best_model": "environment/exat"}, (), ["environment/exact"]),
        ({"metric_for_best_model": "rewards/x"}, (), ["does not choose; the usual ones"]),
        ({"disable_dropout": False}, (), ["disable_dropout"]),
        ({"synthetic_rows": None}, (), ["synthetic_rows", "value is missing"]),
        ({"load_in_4bit": True}, (), ["load_in_4bit"]),
        ({"lora_dropout": 0.3, "use_peft": True}, (), ["lora_dropout: 0.3 has no effect"]),
        ({"lora_r": 8, "use_peft": False}, (), ["lora_r: 8 does nothing without use_peft: true"]),
        ({"reward_weights": [1.0, 2.0]}, (), ["reward_weights", "rewards"]),
        ({}, ("--rewards", "[{"), ["rewards", "JSON", "write '[a, {name: b}]'"]),
        ({"synthetic_shares": [1]}, (), ["synthetic_shares", "[1]"]),
        ({"rewards": ["policy_format"]}, (), ["no reward for the task", "environment"]),
        ({"num_generations": 7}, (), ["num_generations"]),
        ({"loss_type": "dr-grpo"}, (), ["loss_type", "did you mean dr_grpo"]),
        ({"hub_strategy": "checkpoint"}, (), ["hub_strategy", "the final model is pushed"]),
    ],
)
def test_each_names_value_and_remedy(
    tmp_path: Path, change: dict[str, Any], argv: tuple[str, ...], words: list[str]
) -> None:
    found = faults_of(tmp_path, {**GOOD, **change}, *argv)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


def test_bf16_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    (fault,) = faults_of(tmp_path, {**GOOD, "use_cpu": False, "bf16": True})
    assert fault == "bf16: no GPU that supports bf16 was found; give --bf16 false"
