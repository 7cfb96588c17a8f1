from pathlib import Path
from typing import Any

import pytest
import yaml

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.training.arguments import StepArguments
from rookworld_rlvr.training.config import check_recipe, idle_keys

from .. import support

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
    parser = StrictParser(support.recipe("grpo").GROUPS)
    return parser.parse_strictly(["--config", str(path), *argv], check_recipe)


def test_recipe_and_overrides(tmp_path: Path) -> None:
    recipe = {**GOOD, "learning_rate": "1e-6", "max_steps": 7, "lora_r": 4, "use_peft": True}
    argv = "--max_steps 3 --tasks environment policy --dry_run".split()
    argv += ["--synthetic_shares", '{"openings": 1.0}']
    run, data, _, model, training, _ = parse(tmp_path, recipe, *argv)
    assert training.learning_rate == 1e-6, "PyYAML reads 1e-6 as a text"
    assert (training.max_steps, training.reward_weights) == (3, [1.0, 0.5])
    assert (data.tasks, data.synthetic_shares) == (["environment", "policy"], {"openings": 1.0})
    assert run.dry_run is True and model.lora_r == 4
    for key in ("eval_strategy", "save_strategy"):  # without measured checkpoints none is the best
        *_, training, _ = parse(tmp_path, GOOD, f"--{key}", "no")
        assert training.load_best_model_at_end is False
    for given in ("graduated", "[graduated]", "[{name: graduated}]"):
        *_, training, _ = parse(tmp_path, GOOD, "--rewards", given)
        assert training.rewards == [{"name": "graduated"}]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--learning_rat 1", ["learning_rat", "learning_rate"]),
        ({"max_steps": 0}, ["max_steps: 0", "-1 to use num_train_epochs"]),
        ({"rewards": None}, ["rewards", "environment_exact"]),
        ({"metric_for_best_model": "environment/exat"}, ["environment/exact"]),
        ({"metric_for_best_model": "rewards/x"}, ["does not choose; the usual ones"]),
        ({"disable_dropout": False}, ["disable_dropout"]),
        ({"synthetic_rows": None}, ["synthetic_rows", "value is missing"]),
        ({"load_in_4bit": True}, ["load_in_4bit"]),
        ({"lora_dropout": 0.3, "use_peft": True}, ["lora_dropout: 0.3 has no effect"]),
        ({"lora_r": 8, "use_peft": False}, ["lora_r: 8 does nothing without use_peft: true"]),
        ({"reward_weights": [1.0, 2.0]}, ["reward_weights", "rewards"]),
        ("--rewards [{", ["rewards", "JSON", "write '[a, {name: b}]'"]),
        ({"synthetic_shares": [1]}, ["synthetic_shares", "[1]"]),
        ({"tasks": ["polcy"]}, ["polcy", "policy"]),
        ({"rewards": ["policy_format"]}, ["no reward for the task", "environment"]),
        ({"num_generations": 7}, ["num_generations"]),
        (
            {"eval_steps": 10, "save_steps": 15},
            ["not a multiple of eval_steps, 10", "give --save_steps 20"],
        ),
        ({"optim": "adamw_8bit"}, ["optim: adamw_8bit needs bitsandbytes", "leave optim out"]),
        ({"use_liger_kernel": True}, ["use_liger_kernel: true needs liger-kernel"]),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, ["min_lr", "give lr_scheduler_kwargs"]),
        ({"neftune_noise_alpha": 5.0}, ["neftune_noise_alpha: 5.0", "leave it out"]),
        ({"use_cpu": False, "bf16": True}, ["bf16: no GPU that", "give --bf16 false"]),
        ({"loss_type": "dr-grpo"}, ["loss_type", "did you mean dr_grpo"]),
        ({"scale_rewards": "grup"}, ["scale_rewards", "did you mean group"]),
        ({"max_completion_length": 0}, ["max_completion_length: 0 is too small"]),
        ({"hub_strategy": "checkpoint"}, ["hub_strategy", "the final model is pushed"]),
    ],
)
def test_each_names_value_and_remedy(
    given: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    change, argv = ({}, given.split()) if isinstance(given, str) else (given, [])
    with pytest.raises(ConfigurationError) as caught:
        parse(tmp_path, {**GOOD, **change}, *argv)
    (fault,) = caught.value.faults
    assert all(word in fault for word in words), fault


def test_terms_over_moves_say_that_they_have_nothing_to_do() -> None:
    args = StepArguments(expected_score_coef=1.0, soft_moves_coef=2.0)
    assert idle_keys(["environment"], args).startswith(
        "expected_score_coef, soft_moves_coef: nothing"
    )
    assert idle_keys(["environment", "policy"], args) == idle_keys([], StepArguments()) == ""
