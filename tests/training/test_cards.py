"""The card beside a model: what it says is what was run and measured, and no draft takes its place."""

import contextlib
import copy
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.training.model_card import Run, public, trained_rewards, write_card

from ..support import script

DRAFT = re.compile(r"fine-tuned version of|time machine|\[None\]|More Information Needed")
SMALL = """
    --max_rows 300 --synthetic_rows 30 --heldout_rows 3 --max_steps 2 --save_steps 1 --eval_steps 1
    --per_device_train_batch_size 8 --use_cpu --report_to none --output_dir out
    --num_generations 4 --max_completion_length 64
""".split()


def card_of(folder: Path) -> Any:
    text = (folder / "README.md").read_text()
    assert not DRAFT.search(text)
    card = ModelCard(text)
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    return card


def printed_by(card: Any, cwd: Path) -> list[str]:
    """What the card's Python prints in a folder, line by line."""
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.S)
    with contextlib.chdir(cwd), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue().splitlines()


def test_a_run_s_card_tells_what_was_measured_and_how_to_use_it(tmp_path: Path) -> None:
    script("grpo.py", *SMALL, cwd=tmp_path)
    folder = tmp_path / "out"
    card, results = card_of(folder), json.loads((folder / "results.json").read_text())
    assert str(tmp_path) not in str(card) and asset_path("") not in str(card)
    data = card.data
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
    assert f"The checkpoint of step {results['best_step']} of 2 was chosen" in card.text
    for words in ("a little too good", "given two faults on purpose", "synthetic_rows: 30"):
        assert words in card.text
    lines = (folder / "heldout_answers_after.jsonl").read_text().splitlines()
    answers = {answer["prompt"]: answer["completion"] for answer in map(json.loads, lines)}
    (shown,) = (prompt for prompt in answers if f"prompt = {prompt!r}\n" in card.text)
    assert printed_by(card, tmp_path) == answers[shown].splitlines()


def written(
    folder: Path, data: LoadedData, base: str, dataset: str, kept: Any = (), **more: Any
) -> Any:
    folder.mkdir(exist_ok=True)
    recipe = {"config": "/home/ann/mine.yaml", "engine_path": "/home/ann/fish", **more}
    half = {"environment/exact": proportion(1, 2)}
    keys = {"load_best_model_at_end": False, "num_generations": 4, "start_share": 0.0, **dict(kept)}
    values = {"before": half, "after": half, "answer_tokens": 48, "steps": 2}
    write_card(
        Run("grpo", folder, recipe, base, data, dataset, parameters=1, seconds=90.0),
        {"environment/exact": 0.5},
        ["grpo"],
        **values,
        args=SimpleNamespace(**keys),
        rewards=trained_rewards([{"name": "environment_exact"}], data),
        step=keys.get("step", 1),
    )
    return card_of(folder)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"step": 0, "guard": {"overall": 0.1}}, "This is the starting model: no checkpoint that"),
        ({"guard": {"overall": 0.1}}, "that were saved and kept the guard it has the highest"),
        ({"greater_is_better": False}, "it has the lowest `overall` on these same rows."),
        (
            {"metric_for_best_model": "suites/policy/expected_score"},
            "`suites/policy/expected_score`, an evaluation suite's, which has positions of its own.",
        ),
    ],
)
def test_why_weights_were_kept(packaged: LoadedData, tmp_path: Path, kept: Any, words: str) -> None:
    usual = {"load_best_model_at_end": True, "metric_for_best_model": "overall", "guard": None}
    kept = {**usual, "greater_is_better": True, **kept}
    assert words in written(tmp_path, packaged, "rookworld-nano", "rows.jsonl", kept).text


def test_the_hub_is_in_the_header(packaged: LoadedData, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    card = written(tmp_path / "a", packaged, "bob/large", "bob/rows")
    assert card.data.base_model == "bob/large" and card.data.datasets == ["bob/rows"]
    assert card.data.license is None and "base model's licence holds" in card.text
    base = Path("runs/sft_mine")  # has the form of a Hub id, but is a folder
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: other\nlicense_name: ours\n---\n")
    measured = {"eval_dataset_name": "/home/ann/test.jsonl"}
    other = written(tmp_path / "b", packaged, str(base), "/home/ann/rows.jsonl", **measured)
    assert "Held-out rows are those of `test.jsonl`." in other.text
    assert {result.dataset_name for result in other.data.eval_results} == {"test.jsonl"}
    assert "The saved model is no better than the starting model." in other.text
    assert other.data.base_model is None and other.data.license == "other"
    assert other.data.license_name == "ours"
    assert other.data.datasets is None and "`rows.jsonl`" in other.text
    assert "config: mine.yaml" in other.text and "engine_path: fish" in other.text
    assert "/home/ann" not in str(card) + str(other)


def test_the_card_lists_rewards_of_trained_tasks_alone_and_no_paths(packaged: LoadedData) -> None:
    data, specs = copy.deepcopy(packaged), [{"name": "environment_exact"}]
    assert trained_rewards(specs, data) == [("environment_exact", 1.0, "")]
    del data.report.train["environment"]
    assert trained_rewards(specs, data) == []
    assert public('[{"name": "/home/a b/short.py:short"}]') == '[{"name": "short.py:short"}]'
    assert public("[environment, policy]") == "[environment, policy]"
