"""What a command says before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookworld_rlvr.cli.early import check_early, first_line, known_keys, options
from rookworld_rlvr.cli.main import SCRIPTS
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.words import shipped_names
from rookworld_rlvr.common.errors import ConfigurationError

from ..conftest import RECIPES, recipe

GRPO = RECIPES / "grpo.py"
MAIN = "from rookworld_rlvr.cli.main import main; main()"


@pytest.mark.parametrize("script", sorted(SCRIPTS.values()))
def test_the_keys_read_from_the_source_are_those_of_the_parser(script: str) -> None:
    keys = set(StrictParser(recipe(script).GROUPS)._actions_by_key) - {"config"}
    found = known_keys(RECIPES / f"{script}.py")
    assert keys <= found
    assert len(found - keys) < 60, "so few that a misspelt key is hardly one of them"


def test_what_is_measured_beside_models_is_no_fault() -> None:
    check_early(RECIPES / "evaluate.py", {"model_name_or_path": ["random", "oracle"]})
    with pytest.raises(ConfigurationError, match="'oracle' is neither packaged"):
        check_early(GRPO, {"model_name_or_path": ["oracle"]})


@pytest.mark.parametrize("name", shipped_names("recipes"))
def test_packaged_recipes_have_no_early_fault(name: str) -> None:
    scripts = {"grpo": "grpo", "sft": "sft", "judge": "train_judge", "prepare": "prepare_data"}
    script = scripts.get(name.split("_")[0], "sweep")
    check_early(RECIPES / f"{script}.py", {"config": [name]})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("grpo --lerning_rate 1", "unknown option --lerning_rate; did you mean learning_rate"),
        ("grpo --lr=1", "unknown option --lr; here it is learning_rate"),
        ("grpo --config mine.yaml", "mine.yaml: unknown key 'max_step'; did you mean max_steps"),
        ("grpo --config ours.yaml", "'ours.yaml' is neither a file nor a packaged recipe"),
        ("evaluate --model_name_or_path random runs/nope", "there is no folder 'runs/nope'"),
        ("analyse --model runs/nope", "there is no folder 'runs/nope'"),
        ("play --model runs/nope", "there is no folder 'runs/nope'"),
        ("report --run nope", "'nope' is not a folder"),
        ("gpro", "did you mean grpo"),
    ],
)
def test_a_fault_that_needs_no_torch_comes_without_it(
    words: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("max_step: 3\n")
    begun = time.monotonic()
    line = [sys.executable, "-X", "importtime", "-c", MAIN, *words.split()]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.endswith("| torch")]
    assert time.monotonic() - begun < 10, "2 s on an idle machine"


def test_the_first_line_names_recipe_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

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
    own = first_line(RECIPES / "sft.py", options(["--dataset_name", "rows.jsonl"]))
    assert own.startswith("no --config is given, so rookworld-nano is trained with TRL's defaults")
    for start in ("runs/grpo_nano", str(tmp_path / "grpo_nano")):
        assert said(f"--model_name_or_path {start}").endswith("output in runs/grpo_nano-grpo")
    assert said("--model_name_or_path runs/big").endswith("output in runs/big-grpo")


@pytest.mark.parametrize("script", ["grpo", "sft"])
def test_another_model_has_neutral_defaults_and_a_folder_of_its_own(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = StrictParser(recipe(script).GROUPS, recipe(script).RECIPE)
    groups = made.parse_strictly(["--model_name_or_path", "ann/big", "--max_steps", "5"])
    found = {key: value for group in groups for key, value in vars(group).items()}
    rate = {"grpo": 1e-6, "sft": 2e-5}[script]  # TRL's
    assert (found["learning_rate"], found["output_dir"]) == (rate, "runs/big")
    assert found["max_steps"] == 5 and found.get("max_completion_length", 512) == 512
    assert made.values.keys() <= {
        "model_name_or_path", "max_steps", "rewards", "dataset_name", "dtype", "bf16", "output_dir"
    }  # fmt: skip


def test_own_rows_fine_tune_the_packaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not mixed into the recipe that makes it from scratch, with its synthetic rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text("{}")
    sft = recipe("sft")
    for words in (["--dataset_name", "mine.jsonl"], ["--model_name_or_path", "rookworld-nano"]):
        made = StrictParser(sft.GROUPS, sft.RECIPE)
        groups = made.parse_strictly([*words, "--use_cpu", "--bf16", "false"])
        found = {key: value for group in groups for key, value in vars(group).items()}
        assert (found["model_name_or_path"], found["new_model"]) == ("rookworld-nano", None)
        assert found["synthetic_rows"] == 0 and found["output_dir"] != "runs/sft_nano"


def test_a_fault_of_another_kind_waits_for_the_dataclasses() -> None:
    check_early(GRPO, options(["--learning_rate", "-1", "--no_preflight", "--max-steps=3"]))
    with pytest.raises(ConfigurationError, match="1 fault"):
        check_early(GRPO, options(["--learning_rat", "-1"]))
