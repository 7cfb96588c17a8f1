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

from ..support import history, script

ONE_TASK = """
    --tasks environment --max_rows 300 --synthetic_rows 60 --max_steps 1 --eval_steps 8
    --save_steps 8 --heldout_rows 6 --per_device_train_batch_size 16 --num_generations 4
    --max_completion_length 48 --use_cpu --report_to none --output_dir run --other_task_rows 12
    --warmup_steps 0 --use_peft --lora_r 4
""".split()


def train(folder: Path, *more: str) -> tuple[dict[str, Any], str]:
    """A run's held-out results and what it printed."""
    done = script("grpo.py", *ONE_TASK, *more, cwd=folder)
    return json.loads((folder / "run" / "results.json").read_text())["heldout"], done.stdout


def test_rows_of_other_tasks_are_held_out_and_come_on_demand() -> None:
    args = DataArguments(tasks=["environment"], max_rows=500, synthetic_rows=40, heldout_rows=5)
    data = load_data(args, other_task_rows=30)
    assert [row["task"] for row in data.others] == ["policy"] * 30
    trained = {rules.position_key(fen) for fen in data.train["fen"]}
    assert trained.isdisjoint(rules.position_key(row["fen"]) for row in data.others)
    plain = load_data(args)
    assert plain.others == []
    assert plain.train.to_list() == data.train.to_list()
    assert plain.heldout.to_list() == data.heldout.to_list()
    assert plain.report == data.report


def test_an_unchanged_model_forgets_nothing(tokenizer: Any, tmp_path: Path) -> None:
    results, printed = train(tmp_path, "--learning_rate", "0")
    rows = load_data(DataArguments(tasks=["policy"], max_rows=300, heldout_rows=12)).heldout
    model = loading.load_model(loading.PACKAGED_MODEL).eval()
    answers = complete(model, tokenizer, rows["prompt"][:], max_new_tokens=ANSWER_TOKENS)
    expected = evaluate_completions(rows, answers)
    assert {name for name in results if "other/" in name} == {f"other/{name}" for name in expected}
    for name, right in expected.items():
        one = results[f"other/{name}"]
        assert (one["before"], one["after"], one["n"]) == (right.value, right.value, right.n)
    assert "other/policy/all_legal " in printed
    # Fewer steps than eval_steps and logging_steps: the end is evaluated and logged all the same.
    assert "step     1  held-out  overall" in printed and "model: run (step 1 of 1)" in printed
    (last,) = [log for log in history(tmp_path / "run") if "learning_rate" in log]
    assert last["step"] == 1 and {"loss", "grad_norm"} <= last.keys()
    assert "| `other/policy/all_legal` | 12 |" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.slow
def test_a_failed_measurement_leaves_the_final_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(measurements, "evaluate_completions", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path)
    assert loading.load_model(str(tmp_path / "run")).num_parameters() > 0
    assert {"adapter", "trainer_state.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.slow
def test_a_start_that_is_gone_leaves_the_results(tmp_path: Path, monkeypatch: Any) -> None:
    loads, genuine = iter((True, False)), loading.load_start

    def gone(*args: Any) -> Any:
        if next(loads):
            return genuine(*args)
        raise RookWorldError("planted: the start is gone")

    monkeypatch.setattr(loading, "load_start", gone)
    results, printed = train(tmp_path)
    assert "planted: the start is gone" in printed
    assert results and not any(name.startswith("other/") for name in results)


def test_a_model_that_can_do_nothing_is_named_at_step_0(start: str, tmp_path: Path) -> None:
    said = " ".join(train(tmp_path, "--model_name_or_path", start)[1].split())  # it is wrapped
    assert "step 0 warning nothing_parses: 0%" in said and "run rookworld sft first" in said
