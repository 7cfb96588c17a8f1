"""Other code's names for our keys, recipes by name, and what is said before torch is loaded."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.cli.help_text import help_entries
from rookworld_rlvr.cli.main import check_keys, first_line, keys_of
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import SCRIPTS, options
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import find_recipe, read_asset

from ..support import RECIPES, ran, recipe


def faults(command: str, *line: str) -> list[str]:
    try:
        StrictParser(recipe(command).GROUPS).parse_strictly(line)
    except ConfigurationError as error:
        return error.faults
    return []


def test_every_word_leads_to_a_key_of_grpo_and_hides_none() -> None:
    known = StrictParser(recipe("grpo").GROUPS).actions.keys()
    names = help_entries()["names"]
    assert names.keys() <= known and help_entries()["notes"].keys() <= names.keys()
    of_evaluate = StrictParser(recipe("evaluate").GROUPS).actions.keys()
    others = [other for key in names if key not in of_evaluate for other in names[key]]
    assert len(others) == len(set(others)) and known.isdisjoint(others)
    assert known.isdisjoint(other for key in of_evaluate & names.keys() for other in names[key])


def test_a_key_by_another_name_is_named_and_so_is_an_unknown_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("adaptive_kl: 1\n")
    said = "unknown key 'adaptive_kl'; here it is kl_control (adaptive, with a kl_target)"
    fault, *_ = faults("grpo", "--adaptive_kl", "1")
    assert fault.startswith(f"command line: {said}")
    fault, *_ = faults("grpo", "--config", str(tmp_path / "mine.yaml"))
    assert fault.startswith(f"{tmp_path}/mine.yaml: {said}")
    fault, *_ = faults("audit", "--lr", "1")
    assert "unknown key 'lr'; choose one of " in fault, "it has no such key"
    for name, tip in (("grpo_mixd", "did you mean grpo_mixed"), ("zzz", "rookworld recipes lists")):
        (fault,) = faults("sft", "--config", name, "--max_steps", "ten")
        assert f"--config: {name!r} is neither a file nor a packaged recipe; {tip}" in fault


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_comes_before_a_packaged_recipe(elsewhere: Path) -> None:
    for name in ("grpo_mixed.yaml", "recipes/grpo_mixed.yaml"):  # the second as in a clone
        assert find_recipe(name) == RECIPES / "grpo_mixed.yaml"
    (elsewhere / "grpo_mixed.yaml").write_text("seed: 1")
    assert find_recipe("grpo_mixed.yaml") == Path("grpo_mixed.yaml")


MAIN = """
import sys
from importlib.metadata import version
from rookworld_rlvr.cli.main import main
for sys.argv[1:] in map(str.split, sys.argv[1:]):
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 2
assert "torch" not in sys.modules
"""
FAULTS = {
    "grpo --lr=1": "unknown key 'lr'; here it is learning_rate",
    "grpo --config mine.yaml": "mine.yaml: unknown key 'learning_rat'; did you mean",
    "evaluate --items 40": "unknown key 'items'; here it is suite_rows",
    "evaluate --max_steps 40": "unknown key 'max_steps'; --help lists",  # of another command
    "evaluate --model_name_or_path runs/no": "there is no folder 'runs/no'",
}


def has_versions_of_the_table() -> bool:
    return all(version(name) == its for name, its in read_asset("keys.yaml")["versions"].items())


@pytest.mark.skipif(not has_versions_of_the_table(), reason="other versions of TRL")
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_key_of_a_parser_is_refused_early(name: str) -> None:
    actions = StrictParser(recipe(name).GROUPS).actions.keys()
    assert keys_of(RECIPES / f"{name}.py") == actions - {"config"}
    check_keys(RECIPES / f"{name}.py", dict.fromkeys(actions, ()))


def test_with_other_versions_the_script_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.cli.main.version", lambda name: "99.0")
    check_keys(RECIPES / "grpo.py", {"a_key_of_tomorrow": ("1",)})


@pytest.mark.skipif(not has_versions_of_the_table(), reason="other versions of TRL")
def test_faults_that_need_no_torch_come_without_it(elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("learning_rat: 1\n")
    said = ran(sys.executable, "-c", MAIN, *FAULTS).stderr
    assert all(fault in said for fault in FAULTS.values()), said


def test_the_first_line_names_recipe_and_folder(elsewhere: Path) -> None:
    def said(words: str, name: str = "grpo") -> str:
        return first_line(RECIPES / f"{name}.py", dict(options(words.split())))

    assert said("--max_steps 3").startswith("recipe grpo_nano, as no --config is given; output in")
    assert said("", "evaluate") == "loading …" and said("", "audit") == ""
    for line, end in (
        ("--output_dir mine", "output in mine"),
        ("--config grpo_mixed", "grpo_mixed.yaml; output in runs/grpo_mixed"),
        ("--dataset_name rows.jsonl", "output in runs/grpo-rows"),
        ("--model_name_or_path ann/big", "packaged model's recipe); output in runs/grpo-big"),
    ):
        assert said(line).endswith(end)


def test_help_says_which_recipe_a_bare_command_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def said(name: str, *keys: str) -> str:
        module = recipe(name)
        with pytest.raises(SystemExit):
            StrictParser(module.GROUPS, module.RECIPE).parse_strictly(["--help", *keys])
        return capsys.readouterr().out

    for name in SCRIPTS.keys() & {"grpo", "evolve", "sweep"}:  # the last two can be taken away
        usual = f"{name}_nano"
        text = f"Without --config it takes the recipe {usual}, whose values differ"
        assert text in said(name) and text in said(name, "seed")
    assert "Without --config" not in said("sft"), "its recipe has the defaults"
    assert "learning (https://huggingface.co/papers/2501.12948) use" in said("grpo", "beta")


def values_of(script: str, *words: str) -> tuple[dict[str, Any], set[str]]:
    """The values of a script's keys, and the keys that are not the dataclasses' defaults."""
    parser = StrictParser(recipe(script).GROUPS, recipe(script).RECIPE)
    groups = parser.parse_strictly(words)
    return {key: value for group in groups for key, value in vars(group).items()}, {*parser.values}


@pytest.mark.parametrize(("script", "rate"), [("grpo", 1e-6), ("sft", 2e-5)])  # TRL's
def test_another_model_has_neutral_defaults(script: str, rate: float, elsewhere: Path) -> None:
    values, given = values_of(script, "--model_name_or_path", "ann/big", "--max_steps", "5")
    assert (values["learning_rate"], values["output_dir"]) == (rate, f"runs/{script}-big")
    assert values["max_steps"] == 5 and values["model_name_or_path"] == "ann/big"
    neutral = "model_name_or_path max_steps rewards dataset_name dtype bf16 output_dir"
    assert given <= {*neutral.split()}


def test_own_rows_fine_tune_the_packaged_model(elsewhere: Path) -> None:
    """They are not mixed into the recipe that made it, with its synthetic rows."""
    Path("mine.jsonl").write_text("{}")
    for line, folder in (
        (["--dataset_name", "mine.jsonl"], "runs/sft-mine"),
        (["--model_name_or_path", "rookworld-nano"], "runs/sft"),
        ([], "runs/sft"),
    ):
        values, _ = values_of("sft", *line, "--use_cpu")
        assert (values["model_name_or_path"], values["learning_rate"]) == ("rookworld-nano", 2e-5)
        assert values["synthetic_rows"] == 0 and values["output_dir"] == folder
