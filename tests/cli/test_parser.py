"""What a script reads, what it says of its keys, and how it ends."""

import dataclasses
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookworld_rlvr.cli import parser
from rookworld_rlvr.cli.run import POSITIONAL, SCRIPTS
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.training import config

from ..support import RECIPES, recipe, script


def grpo() -> parser.StrictParser:
    return parser.StrictParser(recipe("grpo").GROUPS, recipe("grpo").RECIPE)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--config broken.yaml --max_steps 0", "broken.yaml is not valid YAML"),
        ("--output_dir thesis", "holds files that are not from a run"),
    ],
)
def test_what_stops_all_else_is_the_only_fault(words: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("rewards: [\nlearning_rate: -1\n")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    done = script("grpo.py", *words.split(), cwd=tmp_path, code=2)
    assert not done.stdout
    assert done.stderr.startswith("rookworld grpo: ") and reason in done.stderr
    assert "max_steps" not in done.stderr


def test_all_mistakes_are_refused_at_once_before_anything(tmp_path: Path) -> None:
    own = "bf16: false\nlearning_rat: 1\nrewards: [enviroment_exact]\n"
    (tmp_path / "file.yaml").write_text(own)
    words = "--learning_rate -1 --report_to wnb --temperature -1 --top_p 2 --zero_variance kep --seed -1"
    words += " --model_name_or_path nowhere --output_dir file.yaml/run --dataset_name none.txt"
    strange = ["--config", "file.yaml", "--max_steps", "many", "--no_such_key", "1"]
    done = script("grpo.py", *words.split(), *strange, cwd=tmp_path, code=2)
    assert not done.stdout, "nothing was loaded"
    faults = [line for line in done.stderr.splitlines() if line.startswith("  - ")]
    keys = {word[2:] for word in words.split() if word.startswith("--")}
    assert {fault.split()[1].rstrip(":") for fault in faults} > keys
    assert f"{len(faults)} faults" in done.stderr and len(faults) == len(keys) + 4
    for name in ("'learning_rat'", "enviroment_exact", "max_steps", "no_such_key"):
        assert sum(name in fault for fault in faults) == 1, done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "file.yaml"], "nothing is left behind"


def test_a_resolved_recipe_begins_with_what_differs_from_the_defaults() -> None:
    made = grpo()
    words = "--use_cpu --bf16 false --output_dir nowhere --seed 3 --per_device_train_batch_size 16"
    given = ["--rewards", '[{"name": "graduated", "weight": 2}]', "--trust_remote_code", "true"]
    groups = made.parse_strictly([*words.split(), *given])
    assert [g.trust_remote_code for g in groups if hasattr(g, "trust_remote_code")] == [True]
    resolved = made.resolved(*groups)
    assert "trust_remote_code" not in resolved, "it is given anew each time"
    changed, default, derived = re.split("^# .*\n", resolved, flags=re.MULTILINE)[1:4]
    assert yaml.safe_load(changed)["seed"] == 3
    assert yaml.safe_load(changed)["rewards"] == [{"name": "graduated", "weight": 2}]
    assert yaml.safe_load(default)["num_generations"] == 8
    assert not derived and "# generation_batch_size: " in resolved


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("grpo_*.yaml")))
def test_every_resolved_recipe_can_be_parsed(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/whole_games.parquet").touch()  # rows that another command makes
    first = grpo()
    words = ["--bf16", "false", "--output_dir", str(tmp_path / "run")]
    arguments = first.parse_strictly(["--config", str(RECIPES / f"{name}.yaml"), *words])
    (tmp_path / "resolved.yaml").write_text(first.resolved(*arguments))
    same = grpo().parse_strictly(["--config", str(tmp_path / "resolved.yaml")])
    for group, other in zip(arguments, same, strict=True):
        for field in dataclasses.fields(group):
            value = getattr(group, field.name)
            is_plain = isinstance(value, str | int | float | list | dict | None)
            if is_plain and field.name not in parser._OF_A_CALL:
                assert getattr(other, field.name) == value, field.name


def test_help_begins_with_what_people_turn_and_knows_any_key(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [str(RECIPES / "grpo.py")])

    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            grpo().parse_strictly(words)
        assert ended.value.code == 0
        return capsys.readouterr().out

    text = shown("--help")
    lines = text.splitlines()
    assert lines[0].startswith("rookworld grpo ") and len(lines) < 180
    assert all(len(line) <= 80 for line in lines)
    often = text.partition("\n\nWhere rows come from")[0]
    keys = "learning_rate max_steps output_dir beta num_generations temperature bf16 seed"
    for key in keys.split():
        assert f"\n  --{key} " in often or f"\n  --{key}\n" in often, key
    for line, following in itertools.pairwise(lines):
        described = re.match(r"  --\S.*  \S", line) or following.startswith("      ")
        assert not line.startswith("  --") or described, f"{line}: no word on it"
    assert "adam_beta1" not in text and "adam_beta1" in shown("--help", "adam_beta1")


def value_of(key: str, *words: str) -> object:
    usual = "--use_cpu --bf16 false --output_dir nowhere --max_steps 9".split()
    groups = grpo().parse_strictly([*usual, *words])
    (value,) = (getattr(group, key) for group in groups if hasattr(group, key))
    return value


NO_CODE = ".*would let this file run code.* --trust_remote_code true on the command line"


def test_a_list_may_be_given_as_words() -> None:
    rewards = value_of("rewards", "--rewards", "environment_exact", "policy_format")
    assert rewards == [{"name": "environment_exact"}, {"name": "policy_format"}]
    words = ["--optim_target_modules", "attn", "mlp"]
    assert value_of("optim_target_modules", *words) == ["attn", "mlp"]


def test_the_model_has_one_spelling_and_keeps_the_older_one(capsys: Any) -> None:
    for words in ("--model ann/big", "--model=ann/big", "--model_name_or_path ann/big"):
        assert value_of("model_name_or_path", *words.split()) == "ann/big"
    with pytest.raises(SystemExit):
        grpo().parse_strictly(["--help", "model"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("--model ") and "In recipes: model_name_or_path." in shown


@pytest.mark.parametrize(
    ("line", "models"),
    [
        ("rookworld-nano random", ["rookworld-nano", "random"]),
        ("rookworld-nano --model random", ["rookworld-nano", "random"]),
        ("--model rookworld-nano --model random", ["rookworld-nano", "random"]),
        ("--suites policy", ["rookworld-nano"]),
    ],
)
def test_what_can_mean_one_thing_only_needs_no_key(line: str, models: list[str]) -> None:
    made = parser.StrictParser(recipe("evaluate").GROUPS, positional=POSITIONAL["evaluate"])
    _, model_args, _ = made.parse_strictly(line.split())
    assert model_args.model_name_or_path == models


@pytest.mark.parametrize("command", sorted(POSITIONAL.keys() & SCRIPTS.keys()))
def test_what_needs_no_key_is_a_key_and_in_the_help(command: str, tmp_path: Path) -> None:
    said = script(f"{command}.py", "--help", cwd=tmp_path).stdout.splitlines()[0]
    name = {"report": "RUN ...", "evaluate": "MODEL ...", "export": "MODEL"}[command]
    assert said.startswith(f"rookworld {command} [{name}] [--config RECIPE]")


def test_one_thing_is_not_given_twice(tmp_path: Path) -> None:
    words = ("rookworld-nano", "--model", "rookworld-games")
    done = script("export.py", *words, cwd=tmp_path, code=2)
    assert "--model is given and 'rookworld-nano' stands alone; leave one out" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--max_steps 3 4", "--max_steps takes one value; leave '4' out"),
        ("learning_rate=1e-5", "'learning_rate=1e-5' belongs to no --key"),
        ("rows.jsonl", "; write --dataset_name rows.jsonl"),
        ("thesis", "; write --model thesis"),
        ("--config recipe.yaml", "recipe.yaml: .*max_steps.*: invalid int value: 'ten'"),
        ("--config recipy.yaml", "did you mean .*recipe.yaml"),
        ("--report_to tensorboard", "report_to: tensorboard is not installed, or"),
        ("--help learning_rat", "did you mean learning_rate"),
        ("--config trusts.yaml", "trusts.yaml: trust_remote_code: " + NO_CODE),
        ("--config keys.yaml", "keys.yaml: model_init_kwargs: " + NO_CODE),
    ],
)
def test_a_fault_says_what_to_do(words: str, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    Path("thesis").mkdir()
    Path("recipe.yaml").write_text("model_name_or_path: rookworld-nano\nmax_steps: ten\n")
    Path("trusts.yaml").write_text("trust_remote_code: 'yes'\n")
    Path("keys.yaml").write_text("model_init_kwargs: '{\"trust_remote_code\": true}'\n")
    monkeypatch.setattr(config, "get_available_reporting_integrations", lambda: ["wandb"])
    with pytest.raises(ConfigurationError, match=said):
        grpo().parse_strictly([*words.split(), "--use_cpu", "--bf16", "false"])


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("scale_rewards: false", "none"),
        ("scale_rewards: True", "group"),
        ("scale_rewards: 'False'", "none"),
        ("eval_strategy: no", "no"),
        ("task_shares: {policy: 9e-1, environment: 1e-1}", {"policy": 0.9, "environment": 0.1}),
    ],
)
def test_what_yaml_reads_otherwise_than_people(line: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"{line}\nmodel_name_or_path: rookworld-nano\n")
    assert value_of(line.split(":")[0], "--config", str(tmp_path / "recipe.yaml")) == value
