"""What a command says before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.cli.early import check_early, first_line, known_keys, options
from rookworld_rlvr.cli.main import SCRIPTS
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.shipped import shipped_names

from ..conftest import RECIPES, recipe

GRPO = RECIPES / "grpo.py"
MAIN = """
import os, runpy, sys
from rookworld_rlvr.cli.main import main

def run_here(program, line):
    if line[1] == "-P":
        sys.argv = line[3:]
        runpy.run_module(line[3], run_name="__main__")
    sys.argv = line[1:]
    runpy.run_path(line[1], run_name="__main__")

os.execv = run_here
for line in sys.argv[1:]:
    sys.argv = ["rookworld", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print("exit code", ended.code, file=sys.stderr)
    assert "torch" not in sys.modules, line
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("script", sorted(SCRIPTS.values()))
def test_the_keys_read_from_the_source_are_those_of_the_parser(script: str) -> None:
    keys = set(StrictParser(recipe(script).GROUPS)._actions_by_key) - {"config"}
    known = known_keys(RECIPES / f"{script}.py")
    assert keys <= known
    assert len(known - keys) < 60, "so few that a misspelt key is hardly one of them"


@pytest.mark.parametrize("name", shipped_names("recipes"))
def test_packaged_recipes_have_no_early_fault(name: str) -> None:
    others = {"judge": "train_judge", "prepare": "prepare_data"}
    kind = name.split("_")[0]
    script = others.get(kind, kind)
    check_early(RECIPES / f"{script}.py", {"config": [name]})


def test_a_recipe_of_another_command_is_called_so() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_early(GRPO, {"config": ["judge_nano"]})
    (fault,) = caught.value.faults
    assert "is a recipe of another command: rookworld judge" in fault


def test_what_is_no_early_fault() -> None:
    """What is measured beside models, and what waits for the dataclasses."""
    check_early(RECIPES / "evaluate.py", {"model_name_or_path": ["random", "oracle"]})
    check_early(GRPO, options(["--learning_rate", "-1", "--no_preflight", "--max-steps=3"]))
    with pytest.raises(ConfigurationError, match="there is no folder 'oracle'"):
        check_early(GRPO, {"model_name_or_path": ["oracle"]})


def test_a_fault_that_needs_no_torch_comes_without_it() -> None:
    Path("mine.yaml").write_text("max_step: 3\n")
    faults = {
        "grpo --lerning_rate 1": "unknown option --lerning_rate; did you mean learning_rate",
        "grpo --lr=1": "unknown option --lr; here it is learning_rate",
        "grpo --config grpo_nano actor.kl_loss_coef=0.05": "'actor.kl_loss_coef=0.05' does not belong "
        "to any key; write --kl_loss_coef 0.05; here it is beta",
        "grpo --config mine.yaml": "mine.yaml: unknown key 'max_step'; did you mean max_steps",
        "grpo --config ours.yaml": "'ours.yaml' is neither a file nor a packaged recipe",
        "evaluate --model_name_or_path random runs/nope": "there is no folder 'runs/nope'",
        "analyse --model runs/nope": "there is no folder 'runs/nope'",
        "play --model runs/nope": "there is no folder 'runs/nope'",
        "report --run nope": "'nope' is not a folder",
        "gpro": "did you mean grpo",
    }
    command = [sys.executable, "-c", MAIN, *faults]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    *parts, rest = done.stderr.split("exit code 2\n")
    assert not rest
    for (line, fault), part in zip(faults.items(), parts, strict=True):
        assert fault in part, line


def test_the_first_line_names_recipe_and_folder(tmp_path: Path) -> None:
    def said(words: str) -> str:
        return first_line(GRPO, options(words.split()))

    usual = "recipe grpo_nano, as no --config is given; output in runs/grpo_nano"
    assert said("--max_steps 3") == usual
    assert said("--model_name_or_path rookworld-nano") == usual
    assert "output" not in first_line(RECIPES / "diagnose.py", {})
    assert said("--output_dir mine").endswith("output in mine")
    assert said("--config grpo_mixed").endswith("grpo_mixed.yaml; output in runs/grpo_mixed")
    assert said("--dataset_name rows.jsonl").endswith("output in runs/rows")
    assert said("--model_name_or_path ann/big") == (
        "no --config is given, so ann/big is trained with TRL's defaults; of the recipe grpo_nano only "
        "rewards, dataset_name, dtype, bf16; output in runs/big"
    )
    (tmp_path / "mine.yaml").write_text("name: seeds")
    sweep = first_line(RECIPES / "sweep.py", {"config": [str(tmp_path / "mine.yaml")]})
    assert sweep.endswith("output in runs/seeds")
    own = first_line(RECIPES / "sft.py", options(["--dataset_name", "rows.jsonl"]))
    assert own.startswith("no --config is given, so rookworld-nano is trained with TRL's defaults")
    for start in ("runs/grpo_nano", str(tmp_path / "grpo_nano")):
        assert said(f"--model_name_or_path {start}").endswith("output in runs/grpo_nano-grpo")
    assert said("--model_name_or_path runs/big").endswith("output in runs/big-grpo")


def values_of(script: str, *words: str) -> tuple[dict[str, Any], set[str]]:
    """The values of a script's keys, and the keys that are not the dataclasses' defaults."""
    parser = StrictParser(recipe(script).GROUPS, recipe(script).RECIPE)
    groups = parser.parse_strictly(words)
    return {key: value for group in groups for key, value in vars(group).items()}, {*parser.values}


@pytest.mark.parametrize(("script", "rate"), [("grpo", 1e-6), ("sft", 2e-5)])  # TRL's
def test_another_model_has_neutral_defaults_and_a_folder_of_its_own(
    script: str, rate: float
) -> None:
    values, given = values_of(script, "--model_name_or_path", "ann/big", "--max_steps", "5")
    assert (values["learning_rate"], values["output_dir"]) == (rate, "runs/big")
    assert values["max_steps"] == 5 and values.get("max_completion_length", 160) == 160
    assert given <= {
        "model_name_or_path", "max_steps", "rewards", "dataset_name", "dtype", "bf16", "output_dir"
    }  # fmt: skip


def test_own_rows_fine_tune_the_packaged_model() -> None:
    """They are not mixed into the recipe that makes it from scratch, with its synthetic rows."""
    Path("mine.jsonl").write_text("{}")
    for words in (["--dataset_name", "mine.jsonl"], ["--model_name_or_path", "rookworld-nano"]):
        values, _ = values_of("sft", *words, "--use_cpu", "--bf16", "false")
        assert (values["model_name_or_path"], values["new_model"]) == ("rookworld-nano", None)
        assert values["synthetic_rows"] == 0 and values["output_dir"] != "runs/sft_nano"
