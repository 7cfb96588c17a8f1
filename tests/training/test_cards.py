"""The card beside a model: what it says is what was run and measured, and no draft takes its place."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.training import model_card
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.model_card import Run, write_grpo_card

from ..conftest import script
from ..hub import TOKEN, stand_in

DRAFT = re.compile(r"fine-tuned version of|time machine|\[None\]|More Information Needed")
GRPO = """
    --max_rows 300 --synthetic_rows 60 --heldout_rows 5 --max_steps 2 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 8 --num_generations 4 --max_completion_length 64 --logging_steps 1
    --use_cpu --report_to none --output_dir out
""".split()
SFT = """
    --max_rows 300 --synthetic_rows 60 --heldout_rows 5 --max_steps 2 --save_steps 1 --warmup_steps 0
    --per_device_train_batch_size 8 --use_cpu --report_to none --output_dir out
""".split()
JUDGE = """
    --synthetic_rows 100 --max_rows 300 --heldout_rows 10 --train_pairs 20 --heldout_pairs 10
    --ranked_prompts 0 --max_steps 1 --save_steps 1 --per_device_train_batch_size 8
    --use_cpu --report_to none --output_dir out
""".split()


def card_of(folder: Path) -> Any:
    text = (folder / "README.md").read_text()
    assert not DRAFT.search(text)
    card = ModelCard(text)
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    return card


def card_by(name: str, *words: str, cwd: Path) -> Any:
    """The card of a small run of a recipe, in a folder that it does not name."""
    done = script(name, *words, cwd=cwd)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    card = card_of(cwd / "out")
    assert str(cwd) not in str(card) and asset_path("") not in str(card)
    return card


def printed_by(card: Any, cwd: Path) -> list[str]:
    """What the card's Python prints in a folder, line by line."""
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.S)
    out = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().splitlines()


def test_a_run_s_card_tells_what_was_measured_and_how_to_use_it(tmp_path: Path) -> None:
    card, folder = card_by("grpo.py", *GRPO, cwd=tmp_path), tmp_path / "out"
    results, data = json.loads((folder / "results.json").read_text()), card.data
    assert {r.metric_type: r.metric_value for r in data.eval_results} == {
        name: result["after"] for name, result in results["heldout"].items()
    }
    for name, result in results["heldout"].items():
        cells = [f"`{name}`", str(result["n"])]
        for when in ("before", "after"):
            low, high = result[f"interval_{when}"]
            cells += [f"{result[when]:.1%}", f"[{low:.1%}, {high:.1%}]"]
        assert f"| {' | '.join(cells)} |" in card.text
    assert data.license == "gpl-3.0" and data.library_name == "transformers"
    assert data.base_model is None and data.datasets is None, "neither is on the Hub"
    assert "trained from `rookworld-nano`, which comes with rookworld-rlvr" in card.text
    assert f"The checkpoint of step {results['best_step']} of 2 was chosen" in card.text
    assert "a little too good" in card.text and "given two faults on purpose" in card.text
    assert "nothing about playing strength" in card.text
    assert "| `environment_exact` | 1 |  |" in card.text
    assert "rookworld grpo --max_rows 300" in card.text and "synthetic_rows: 60" in card.text
    assert "2402.03300" in card.text and "trl 1.16" in card.text
    lines = (folder / "heldout_answers_after.jsonl").read_text().splitlines()
    answers = {answer["prompt"]: answer["completion"] for answer in map(json.loads, lines)}
    (shown,) = (prompt for prompt in answers if f"prompt = {prompt!r}\n" in card.text)
    assert printed_by(card, tmp_path) == answers[shown].splitlines()


def test_supervised_fine_tuning_tells_before_and_after(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model_name_or_path: rookworld-nano\n")
    card = card_by("sft.py", "--config", str(recipe), *SFT, cwd=tmp_path)
    assert "| held-out metric | n | before | 95% interval | after |" in card.text
    assert "| `policy/format` | 5 | 100.0% |" in card.text, "the base model's"
    assert "not used to choose a checkpoint" in card.text and "bibtex" in card.text
    assert "rookworld sft --config mine.yaml --max_rows" in card.text
    assert printed_by(card, tmp_path), "it can be used as it says"


def test_a_model_from_scratch_has_no_before(tmp_path: Path) -> None:
    shape = '{"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 512, "vocab_size": 300}'
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"new_model: {shape}\nbf16: false\n")
    card = card_by("sft.py", "--config", str(recipe), *SFT, cwd=tmp_path)
    assert "| held-out metric | n | after | 95% interval |" in card.text
    assert "from scratch" in card.text and "on purpose" not in card.text
    assert "the licence of rookworld-rlvr and of its data" in card.text


def test_a_judge_s_card(tmp_path: Path) -> None:
    card = card_by("train_judge.py", *JUDGE, cwd=tmp_path)
    pairs = json.loads((tmp_path / "out" / "judge_report.json").read_text())["pairs"]
    shown = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert shown.pop("pairs/all") == pairs["accuracy"]
    assert shown == {f"pairs/{kind}": one["accuracy"] for kind, one in pairs["by_kind"].items()}
    assert card.data.pipeline_tag == "text-classification"
    (score,) = printed_by(card, tmp_path)
    float(score)


def test_checkpoints_bring_no_draft(build: Callable[..., Any], tmp_path: Path) -> None:
    """What an interrupted run leaves: no card rather than one that is not true."""
    build(save_steps=1, eval_steps=1, preflight=False).train()
    assert (tmp_path / "run" / "checkpoint-1").is_dir()
    assert not list((tmp_path / "run").rglob("README.md"))


# --------------------------------------------------------------------------------------------------
# Where things come from
# --------------------------------------------------------------------------------------------------
def written(folder: Path, data: LoadedData, **changes: Any) -> Any:
    folder.mkdir(exist_ok=True)
    rewards = [{"name": "environment_exact"}]
    run: dict[str, Any] = {
        "command": "grpo",
        "argv": ["--config=/home/ann/mine.yaml", "--seed", "3"],
        "folder": folder,
        "recipe": {"rewards": rewards, "engine_path": "/home/ann/fish"},
        "base": "rookworld-nano",
        "data": data,
        "dataset": "rookworld-nano-openings",
        "parameters": 1,
        "seconds": 90.0,
    }
    half = {"environment/exact": proportion(1, 2)}
    keys = {"output_dir": str(folder), "report_to": "none", "use_cpu": True, "bf16": False}
    args = RookWorldGRPOConfig(rewards=rewards, **keys)
    write_grpo_card(Run(**{**run, **changes}), half, half, args=args, step=1, steps=2)
    return card_of(folder)


def test_what_is_on_the_hub_is_in_the_header_and_no_folder_is_in_the_text(
    packaged: LoadedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with stand_in() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        hub.models["bob/large"] = {"cardData": {"license": "mit"}}
        card = written(tmp_path / "a", packaged, base="bob/large", dataset="bob/rows")
        assert card.data.base_model == "bob/large" and card.data.datasets == ["bob/rows"]
        assert card.data.license == "mit" and "`mit`, the licence of the base model." in card.text
        assert "on purpose" not in card.text
        other = written(tmp_path / "b", packaged, base="bob/other", dataset="/home/ann/rows.jsonl")
    assert other.data.license is None and "base model's licence holds" in other.text
    assert other.data.datasets is None and "`rows.jsonl`" in other.text
    assert "--config=mine.yaml --seed 3" in other.text and "engine_path: fish" in other.text
    assert "/home/ann" not in str(card) + str(other)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/home/ann lee/mine.jsonl", "mine.jsonl"),
        ("--x=/home/ann/a:/home/ann/b", "--x=a:b"),
        ("--x=/home/ann lee/short.py:short", "--x=short.py:short"),
        ('--x=[{"name": "/home/ann lee/short.py:short"}]', '--x=[{"name": "short.py:short"}]'),
        ("--x=[environment, policy]", "--x=[environment, policy]"),
        ("https://a.b/c/", "https://a.b/c/"),
    ],
)
def test_a_path_is_shortened_value_by_value(word: str, shown: str) -> None:
    assert model_card._public_word(word) == shown


def test_the_card_lists_rewards_of_trained_tasks_alone(
    packaged: LoadedData, tmp_path: Path
) -> None:
    data = copy.deepcopy(packaged)
    assert "| `environment_exact` | 1 |" in written(tmp_path / "a", data).text
    del data.report.train["environment"]
    assert "environment_exact" not in written(tmp_path / "b", data).text.partition("## How it")[0]


def test_a_folder_s_licence_is_in_its_own_card(
    packaged: LoadedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runs/sft_mine`` has the form of a Hub id, but is a folder."""
    monkeypatch.chdir(tmp_path)
    base = Path("runs/sft_mine")
    base.mkdir(parents=True)
    card = written(tmp_path / "a", packaged, base=str(base))
    assert card.data.license is None and card.data.base_model is None
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    card = written(tmp_path / "b", packaged, base=str(base))
    assert card.data.license == "apache-2.0" and card.data.base_model is None
