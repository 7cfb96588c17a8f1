"""The page on earlier scripts: what it prints can be typed, and does what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.cli.help_text import named_here
from rookworld_rlvr.cli.main import command_line
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import SCRIPTS
from rookworld_rlvr.common.files import find_recipe
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.rewards.composites import UNREADABLE, graduated

from ..support import REPOSITORY, recipe
from .pages import commands, fences

PAGE = REPOSITORY / "docs/coming-from.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
PRINTED = [words for _, text in fences(PAGE) for words in commands(text)]
KEYS = {name: StrictParser(recipe(name).GROUPS).actions.keys() for name in SCRIPTS}


def rendered(cell: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip()


def test_cells_of_the_tables_are_short_and_rows_whole() -> None:
    tables = re.findall(r"(?:^\|.*\|$\n)+", TEXT, re.M)
    assert len(tables) > 8
    for table in tables:
        rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1 and len(rows[0]) <= 6, table
        assert [cell for row in rows for cell in map(rendered, row) if len(cell) > 60] == []


def test_what_is_named_in_the_text_exists() -> None:
    spans = re.findall(r"`([^`]+)`", PROSE)
    typed = [span for span in spans if span.startswith("rookworld ")]
    assert len(typed) > 20
    for span in typed:
        command, *words = span.split()[1:]
        for name in re.findall(r"--config (\S+)", span):
            assert find_recipe(name).is_file()
        given = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert command not in SCRIPTS or given <= KEYS[command] | {"config"}, span
    ours = {"config"}.union(*KEYS.values())
    options = {name for span in spans for name in re.findall(r"(?<!\S)--(\w+)", span)}
    theirs = {"stable", "task_type", "task_conditional_gen", "ab_test_mode", "beta_adapt"}
    assert options - ours == theirs


def printed(config: str) -> Any:
    """What GRPO or a diagnosis takes of the page's command with this recipe that sets most keys."""
    words = max((words for words in PRINTED if config in words), key=len)
    name = words[1]
    line = command_line(name, [*words[2:], "--use_cpu"])[1][1:]
    parsed = StrictParser(recipe(name).GROUPS).parse_strictly(line)
    return {key: value for group in parsed for key, value in vars(group).items()}


def test_the_early_scripts_batch_has_its_numbers_and_no_term_over_legal_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.txt").touch()
    keys = printed("grpo_rookworld")
    log = {"beta": 0.1, "learning_rate": 1e-6, "seed": 42}
    log |= {"num_generations": 4, "per_device_train_batch_size": 16, "max_rows": 20}
    log |= {"gradient_accumulation_steps": 1, "loss_type": "grpo", "engine_depth": 10}
    assert {key: keys[key] for key in log} == log
    assert keys["task_sampling"] == {
        "policy": {"temperature": 0.5, "top_p": 0.9},
        "environment": {"temperature": 0.95, "top_p": 0.95},
    }
    assert keys["expected_score_coef"] == keys["soft_moves_coef"] == 0
    assert keys["labels"] == "stored_or_engine"


def test_the_judge_trainers_numbers_come_without_what_it_does_not_do() -> None:
    keys = printed("grpo_fill_in_judge")
    assert keys["per_device_train_batch_size"] == 16 * keys["num_generations"] == 128
    theirs = {"beta": 0.1, "learning_rate": 1e-5, "temperature": 0.8, "top_p": 0.95, "seed": 1337}
    theirs |= {"max_steps": 10_000, "warmup_steps": 100, "adam_beta2": 0.95, "weight_decay": 0.1}
    assert {key: keys[key] for key in theirs} == theirs
    assert keys["zero_variance"] == "keep" and keys["sft_coef"] == 0
    assert keys["loss_type"] == "dr_grpo" and keys["max_completion_length"] * 0.025 == 1.0
    assert keys["max_grad_norm"] == 0.025


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_iters", "max_steps"),
        ("warmup_iters", "warmup_steps"),
        ("out_dir", "output_dir"),
        ("wandb_log", "report_to"),
        ("generator_checkpoint", "model_name_or_path"),
        ("train_limit", "max_rows"),
    ],
)
def test_keys_of_the_judge_trainer_are_named(theirs: str, ours: str) -> None:
    assert named_here(theirs, KEYS["grpo"]).startswith(f"; here it is {ours}")
    assert f"`{theirs}`" in TEXT


@pytest.mark.parametrize("shaping", ["graduated", "linear", "binary", "continuous"])
def test_unreadable_answers_get_the_same_in_every_shaping(shaping: str) -> None:
    assert graduated({"format": 0.0}, shaping) == UNREADABLE == -0.3
    assert "| any, unreadable | −0.3 | −0.3;" in TEXT


def test_the_opening_sets_give_the_counts_of_the_page(real_data: Path) -> None:
    words = f"""--dataset_name {real_data}/opening_dataset_train.json --tasks environment
        --eval_dataset_name {real_data}/opening_dataset_eval.json --synthetic_rows 0"""
    (data,) = StrictParser([DataArguments]).parse_strictly(words.split())
    assert f"`opening_dataset_train.json` {len(load_data(data).train)} are trained on" in TEXT
