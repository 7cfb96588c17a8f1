"""A run on one of the packaged data's tasks, and what it reports about the other."""

import json
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import ANSWER_TOKENS, complete
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.metrics import evaluate_completions
from rookworld_rlvr.training import measurements

from ..conftest import script

ONE_TASK = """
    --tasks environment --max_rows 300 --synthetic_rows 100 --max_steps 1 --eval_steps 1
    --save_steps 1 --heldout_rows 10 --per_device_train_batch_size 16 --num_generations 4
    --max_completion_length 48 --use_cpu --report_to none --output_dir run --other_task_rows 12
    --warmup_steps 0
""".split()
LORA = ["--use_peft", "--lora_r", "4"]


def train(folder: Path, *more: str) -> tuple[dict[str, Any], str]:
    """A run's ``results.json`` and what it printed."""
    done = script("grpo.py", *ONE_TASK, *more, cwd=folder)
    return json.loads((folder / "run" / "results.json").read_text()), done.stdout


def test_rows_of_other_tasks_are_held_out_and_come_on_demand() -> None:
    args = DataArguments(tasks=["environment"], max_rows=2_000, synthetic_rows=100, heldout_rows=5)
    data = load_data(args, other_task_rows=30)
    assert [row["task"] for row in data.others] == ["policy"] * 30
    trained = {rules.position_key(fen) for fen in data.train["fen"]}
    assert trained.isdisjoint(rules.position_key(row["fen"]) for row in data.others)
    plain = load_data(args)
    assert plain.others == []
    assert plain.train.to_list() == data.train.to_list()
    assert plain.heldout.to_list() == data.heldout.to_list()
    assert plain.report == data.report


def test_an_unchanged_model_forgets_nothing(tmp_path: Path) -> None:
    results, printed = train(tmp_path, "--learning_rate", "0", *LORA)
    rows = load_data(DataArguments(tasks=["policy"], max_rows=300, heldout_rows=12)).heldout
    answers = complete(
        loading.load_model(loading.PACKAGED_MODEL).eval(),
        loading.load_tokenizer(loading.PACKAGED_MODEL),
        rows["prompt"][:],
        max_new_tokens=ANSWER_TOKENS,
    )
    expected = evaluate_completions(rows, answers)
    others = {name: one for name, one in results["heldout"].items() if name.startswith("other/")}
    assert set(others) == {f"other/{name}" for name in expected}
    for name, right in expected.items():
        one = others[f"other/{name}"]
        assert (one["before"], one["after"], one["n"]) == (right.value, right.value, right.n)
    assert "other/policy/all_legal " in printed
    assert "| `other/policy/all_legal` | 12 |" in (tmp_path / "run" / "README.md").read_text()


def test_a_measurement_that_fails_leaves_the_final_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(measurements, "evaluate_completions", failing)
    with pytest.raises(ValueError, match="planted"):
        train(tmp_path, *LORA)
    assert loading.load_model(str(tmp_path / "run")).num_parameters() > 0
    assert (tmp_path / "run" / "adapter").is_dir()
    assert (tmp_path / "run" / "trainer_state.json").is_file()


def test_a_start_that_is_gone_leaves_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, genuine = iter((True, False)), loading.load_start

    def gone(*args: Any) -> Any:
        if next(loads):
            return genuine(*args)
        raise RookWorldError("planted: the start is gone")

    monkeypatch.setattr(loading, "load_start", gone)
    results, printed = train(tmp_path, *LORA)
    assert "planted: the start is gone" in printed
    assert results["heldout"] and not any(name.startswith("other/") for name in results["heldout"])
