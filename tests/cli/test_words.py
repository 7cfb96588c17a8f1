"""Other code's names for our keys, and recipes by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookworld_rlvr.cli.main import SCRIPTS
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.words import words
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.shipped import find_recipe

from ..conftest import RECIPES, recipe


def faults(command: str, *line: str) -> list[str]:
    """What a command's parser finds wrong with a command line."""
    try:
        StrictParser(recipe(SCRIPTS[command]).GROUPS).parse_strictly(line)
    except ConfigurationError as error:
        return error.faults
    return []


def test_every_word_leads_to_a_key_of_grpo_and_hides_none() -> None:
    known = StrictParser(recipe("grpo").GROUPS)._actions_by_key.keys()
    names = words()["names"]
    assert names.keys() <= known
    assert words()["notes"].keys() <= names.keys()
    others = [other for group in names.values() for other in group]
    assert len(others) == len(set(others)) and known.isdisjoint(others)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "learning_rate"),
        ("batch_size", "per_device_train_batch_size (which counts completions, not prompts)"),
        ("adaptive_kl", "kl_control (adaptive, with a kl_target)"),
    ],
)
def test_a_key_by_another_name_is_named(word: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{word}: 1\n")
    fault, *_ = faults("grpo", f"--{word}", "1")
    assert fault.startswith(f"command line: unknown option --{word}; here it is {key}")
    fault, *_ = faults("grpo", "--config", str(tmp_path / "mine.yaml"))
    assert fault.startswith(f"{tmp_path}/mine.yaml: unknown key {word!r}; here it is {key}")


def test_a_command_without_the_key_does_not_name_it() -> None:
    fault, *_ = faults("report", "--lr", "1")
    assert "unknown option --lr; choose one of output_file, run" in fault


def test_a_file_comes_before_a_packaged_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("grpo_mixed.yaml", "recipes/grpo_mixed.yaml"):  # the second as in a clone
        assert find_recipe(name) == RECIPES / "grpo_mixed.yaml"
    (tmp_path / "grpo_mixed.yaml").write_text("seed: 1")
    assert find_recipe("grpo_mixed.yaml") == Path("grpo_mixed.yaml")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("grpo_mixd", "did you mean grpo_mixed"),
        ("configs/grpo_mixed.yaml", "did you mean grpo_mixed"),
        ("zzz", "rookworld recipes lists these"),
    ],
)
def test_an_unknown_recipe_is_one_message(name: str, remedy: str) -> None:
    (fault,) = faults("sft", "--config", name, "--max_steps", "ten")
    assert fault.startswith(f"--config: {name!r} is neither a file nor a packaged recipe; {remedy}")
