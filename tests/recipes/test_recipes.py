"""Every shipped recipe is parsed and run small, as a user would: by its script."""

import json
import random
import re
import sqlite3
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.cli.run import SCRIPTS
from rookworld_rlvr.data.synthesis import opening_positions
from rookworld_rlvr.tasks.registry import TASKS

from .. import killed
from ..rows import write_jsonl
from ..support import RECIPES, history, script
from ..training.test_cards import card_of, printed_by

GRPO = sorted({*RECIPES.glob("grpo_*.yaml")} - {*RECIPES.glob("*_judge.yaml")})
"""Those that need a judge are in test_judge.py."""
ALIKE = "environment fill_in learning mixed nano openings_hole".split()
"""What these do is done by others that are run, or by many other tests."""
SMALL = """
    --model_name_or_path rookworld-nano --dataset_name rookworld-nano-openings
    --max_rows 1000 --synthetic_rows 30 --heldout_rows 3 --other_task_rows 4 --max_steps 2
    --per_device_train_batch_size 16 --gradient_accumulation_steps 1
    --num_generations 8 --max_completion_length 16 --eval_steps 1 --save_steps 1 --logging_steps 1
    --dtype float32 --bf16 false --use_cpu --report_to none --dataloader_pin_memory false
""".split()
ONE_STEP = [*SMALL, *"--max_steps 1 --max_rows 300".split()]
FENS = list(dict.fromkeys(islice(opening_positions(3, 6), 200)))


def run(name: str, *argv: str, cwd: Path) -> str:
    done = script(name, *argv, cwd=cwd)
    return done.stdout + done.stderr


def run_apart(name: str, *argv: str, cwd: Path) -> str:
    """`run` in a process of its own, whose end also ends W&B's, and whose output is a file."""
    code, printed = killed.run(name, argv, cwd)
    assert code == 0, printed[-3000:]
    assert "\r" not in printed, "a file has whole lines, and no bars"
    return printed


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_launch_command(path: Path) -> None:
    head, keys = path.read_text().split("\n\n")[0], yaml.safe_load(path.read_text())
    assert re.fullmatch(r"# [A-Z].*\.", head.split("\n")[0]), "a sentence on what it is"
    command = re.search(r"^#   rookworld (\w+)(.*)$", head, re.M)
    assert command is not None
    assert command[1] == path.stem.split("_")[0] and command[1] in SCRIPTS
    assert f"--config recipes/{path.name}" in command[2] or path.stem in ("grpo_nano", "sft")
    if command[1] == "grpo":
        goes_on = "auto" if keys["model_name_or_path"] == "jrahn/RookWorld-LM-124M" else None
        assert keys.get("resume_from_checkpoint") == goes_on, "long ones go on"


def assert_rows(printed: str, tasks: list[str]) -> None:
    assert re.search(r"train/held-out overlap +0 positions", printed)
    for task in tasks:
        assert len(re.findall(rf"^{task} row \d", printed, re.M)) == 3


@pytest.mark.parametrize("path", GRPO, ids=lambda path: path.stem)
def test_a_grpo_recipe_runs_small(path: Path, tmp_path: Path) -> None:
    out, keys = tmp_path / "run", yaml.safe_load(path.read_text())
    tasks = keys.get("tasks", ["environment", "policy"])
    small = [*ONE_STEP, "--output_dir", str(out)]
    small += ["--synthetic_fill_in_rows", "40"] if "fill_in" in tasks else []
    small += ["--pass_samples", "2"] if "pass_samples" in keys else []
    if path.stem.removeprefix("grpo_") in ALIKE:
        printed = run("grpo.py", "--config", str(path), *small, "--dry_run", cwd=tmp_path)
        return assert_rows(printed, tasks)
    printed = run("grpo.py", "--config", str(path), *small, cwd=tmp_path)
    for task in tasks:
        assert re.search(rf"{task}/format +3 .*\[", printed), "a row of the table"
    results = json.loads((out / "results.json").read_text())
    assert results["steps"] == 1 and max(results["preflight"].values()) <= 1e-4
    assert (out / "checkpoint-1").is_dir()
    assert yaml.safe_load((out / "resolved_config.yaml").read_text())["max_steps"] == 1
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    logits = model(**tokenizer("P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1", return_tensors="pt")).logits
    assert torch.isfinite(logits).all()


def test_sft_without_a_recipe_fine_tunes_the_packaged_model(tmp_path: Path) -> None:
    words = "--synthetic_rows 30 --max_rows 60 --heldout_rows 3 --max_steps 1 --use_cpu"
    words += " --output_dir out --per_device_train_batch_size 8 --warmup_steps 0 --report_to none"
    run("sft.py", *words.split(), cwd=tmp_path)
    card = card_of(tmp_path / "out")
    for words in ("synthetic_rows: 30", "policy/best_move", "trained from `rookworld-nano`"):
        assert words in card.content
    assert "| held-out metric | n | before |" in card.text and str(tmp_path) not in card.content
    assert "not used to choose a checkpoint" in card.text and card.data.license == "gpl-3.0"
    assert printed_by(card, tmp_path), "it can be used as it says"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.n_layer == 4


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("grpo_fill_in", "sft_fill_in"),
        ("grpo_three_tasks", "sft_fill_in"),
        ("grpo_openings_hole", "sft_openings_hole"),
    ],
)
def test_a_recipe_names_the_one_that_makes_its_model(name: str, maker: str, tmp_path: Path) -> None:
    done = script("grpo.py", "--config", str(RECIPES / f"{name}.yaml"), cwd=tmp_path, code=2)
    assert f"rookworld sft --config recipes/{maker}.yaml" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_dry_run_loads_no_model_and_leaves_nothing(tmp_path: Path) -> None:
    small = "--max_rows 300 --synthetic_rows 20".split()
    printed = run("grpo.py", "--dry_run", *small, cwd=tmp_path)
    assert "max_steps: " in printed
    last = " ".join(printed.split("\n\n")[-1].split())
    work = r"150 steps on [\d,]+ rows, some of them repeated"
    assert re.match(rf"this recipe can run: {work}, on the CPU; .*run the same", last)
    assert_rows(printed, ["environment", "policy"])
    scores = re.findall(r"environment_exact (\d\.\d+)", printed)
    assert scores == ["1.000", "0.000", "0.000"] * 3, "right, wrong and unreadable"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ("--max_completion_length 250", "give at most"),
        ("--max_rows 300 --per_device_train_batch_size 4096", "do not fill one generation"),
        ("--model_name_or_path nobody/nothing", "cannot load the tokenizer 'nobody/nothing'"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path: Path, argv: str, reason: str) -> None:
    assert reason in script("grpo.py", *ONE_STEP, *argv.split(), cwd=tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.usefixtures("stockfish")
def test_rows_without_values_are_valued_as_the_training_goes(tmp_path: Path) -> None:
    lines = [f"P: {fen} M: a2a3 E: 0.0 B: a2a3" for fen in FENS]
    (tmp_path / "rows.txt").write_text("\n".join(lines) + "\n")
    options = "--dataset_name rows.txt --tasks policy --labels stored_or_engine --engine_depth 2"
    options += " --metric_for_best_model policy/format --synthetic_rows 0"
    options += " --output_dir run --engine_cache values.sqlite"
    rewards = json.dumps([{"name": "weighted_policy"}, {"name": "policy_format", "weight": 0.1}])
    run("grpo.py", *ONE_STEP, *options.split(), "--rewards", rewards, cwd=tmp_path)
    (logged,) = [log for log in history(tmp_path / "run" / "checkpoint-1") if "reward" in log]
    assert logged["rewards/weighted_policy/without_truth"] == logged["engine/given_up"] == 0
    with sqlite3.connect(tmp_path / "values.sqlite") as cache:
        (kept,) = cache.execute("SELECT COUNT(*) FROM action_values").fetchone()
    assert 3 < kept <= 5, "three held-out positions, and the two prompts of the step"


NO_KING = (
    "8/3q4/1K4P1/8/8/7p/8/2p5 b - - 5 77+d7e7+d7e7+8/4q3/1K4P1/8/8/7p/8/2p5 w - - 6 78+0.001+0+0"
)


def mixed_rows(path: Path, policy: list[str], environment: list[str]) -> str:
    lines = random.Random(0).sample([*policy, *environment], len(policy) + len(environment))
    return write_jsonl(path, lines)


@pytest.fixture
def generated(tmp_path: Path) -> list[str]:
    """GRPO on rows as the public generators make them: policy rows have no values."""
    policy = [f"P: {fen} M: a2a3 E: 0.0 B: a2a3" for fen in FENS[:80]]
    asked = [f"{fen}+{action}+{action}+" for fen in FENS[:80] for action in ("a2a4", "e1e5")]
    environment = [f"{prompt}{TASKS['environment'].truth(f'A: {prompt}')}" for prompt in asked]
    name = mixed_rows(tmp_path / "rows.jsonl", policy, [*environment, *[NO_KING] * 5])
    config = ["--config", str(RECIPES / "grpo_rookworld.yaml"), *ONE_STEP]
    return [*config, "--dataset_name", name, "--synthetic_rows", "0", "--output_dir", "run"]


@pytest.mark.usefixtures("stockfish")
def test_rows_as_the_public_generators_make_them(generated: list[str], tmp_path: Path) -> None:
    printed = run("grpo.py", *generated, "--engine_depth", "2", cwd=tmp_path)
    assert re.search(r"no rule of chess can judge them +5\n +5  a king is missing", printed)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 1
    assert NO_KING in (tmp_path / "run" / "quarantine.jsonl").read_text()


def test_without_an_engine_one_message_names_it(generated: list[str], tmp_path: Path) -> None:
    done = script("grpo.py", *generated, "--engine_path", "/nowhere/fish", cwd=tmp_path, code=2)
    assert "no program '/nowhere/fish'; install one" in done.stderr


@pytest.mark.parametrize("name", ["grpo_environment", "grpo_rookworld"])
@pytest.mark.usefixtures("stockfish")
def test_the_real_rows_are_ready_to_train(name: str, real_data: Path, tmp_path: Path) -> None:
    policy = (real_data / "rook_val_500.txt").read_text().splitlines()
    steps = [json.loads(row)["text"] for row in (real_data / "arbiter_rows_2000.jsonl").open()]
    rows = mixed_rows(tmp_path / "rows.jsonl", policy, steps)
    words = f"--config {RECIPES}/{name}.yaml --dataset_name {rows} --synthetic_rows 0"
    words += " --engine_depth 2 --bf16 false --dry_run"
    printed = run("grpo.py", *words.split(), cwd=tmp_path)
    assert re.search(r"^rows read +2500$", printed, re.M) and "quarantined" not in printed
    judged = r"no rule of chess can judge them +136\n +71  a pawn .*\n +59  a king"
    assert re.search(judged, printed)
    asked = ["environment"] if name == "grpo_environment" else ["environment", "policy"]
    assert [task for task in TASKS if f"\n{task} row 3: " in printed] == asked
