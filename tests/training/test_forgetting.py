"""A run on one of the packaged data's tasks, and what it reports about the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import ANSWER_TOKENS, complete
from rookworld_rlvr.reports.run import page, read_runs
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.metrics import evaluate_completions
from rookworld_rlvr.training import measurements
from rookworld_rlvr.training.measurements import answer_kls, measure_others

from ..conftest import RECIPES, launch, script

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
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "run" / "results.json").read_text()), done.stdout


def test_the_kl_along_answers_is_that_of_each_row_alone(random_gpt2: GPT2LMHeadModel) -> None:
    policy = random_gpt2.eval()
    torch.manual_seed(1)
    start = GPT2LMHeadModel(policy.config).eval()
    prompts, answers = [[5, 6, 7, 8], [9], [10, 11]], [[1, 2], [3, 4, 5, 6], [7]]
    expected = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            p, q = (net(input_ids=ids).logits[0].softmax(-1).double() for net in (policy, start))
        places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        expected.append(sum(float((p[t] * (p[t] / q[t]).log()).sum()) for t in places))
    assert answer_kls(policy, start, prompts, answers) == pytest.approx(expected, rel=1e-4)
    assert min(expected) > 0.1


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


@pytest.mark.parametrize("adapters", [[], LORA], ids=["full", "lora"])
def test_an_unchanged_model_forgets_nothing(adapters: list[str], tmp_path: Path) -> None:
    results, printed = train(tmp_path, "--learning_rate", "0", *adapters)
    unmoved = {"environment": 0, "policy": 0}
    assert results["kl_to_start"] == pytest.approx(unmoved, abs=1e-6 if adapters else 0)
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
    assert "environment 0.0000, policy 0.0000" in printed


def test_a_step_on_one_task_is_seen_in_the_other(tmp_path: Path) -> None:
    results, printed = train(tmp_path, "--learning_rate", "3e-3")
    kl = results["kl_to_start"]
    assert kl["environment"] > 0 and kl["policy"] > 0
    change = results["heldout"]["other/policy/all_legal"]
    assert change["before"] > 0 and change["n"] == 12
    assert "other/policy/all_legal " in printed
    folder = tmp_path / "run"
    card = (folder / "README.md").read_text()
    assert "| `other/policy/all_legal` | 12 |" in card
    assert f"environment {kl['environment']:.4f}, policy {kl['policy']:.4f}." in card
    report = page(read_runs([str(folder)]))
    assert "KL to the starting model" in report and f"policy {kl['policy']:.4f}." in report


@pytest.mark.slow
def test_two_processes_merge_adapters_and_log_the_measurement_once(tmp_path: Path) -> None:
    words = [str(RECIPES / "grpo.py"), *ONE_TASK, *LORA, "--learning_rate", "1e-2"]
    two = launch(*words, cwd=tmp_path)
    assert two.returncode == 0, two.stdout[-3000:] + two.stderr[-3000:]
    assert two.stdout.count("KL to the starting model") == 1
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    (logged,) = (log for log in state["log_history"] if "kl/start/policy" in log)
    assert logged["kl/start/policy"] == results["kl_to_start"]["policy"] > 1e-6


def test_a_measurement_that_fails_leaves_the_final_model_and_is_made_only_where_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> list[float]:
        raise ValueError("planted")

    monkeypatch.setattr(measurements, "answer_kls", failing)
    with pytest.raises(ValueError, match="planted"):
        train(tmp_path, *LORA)
    assert loading.load_model(str(tmp_path / "run")).num_parameters() > 0
    assert (tmp_path / "run" / "adapter").is_dir()
    assert (tmp_path / "run" / "trainer_state.json").is_file()
    results, printed = train(tmp_path, "--other_task_rows", "0")
    assert "kl_to_start" not in results
    assert not any(name.startswith("other/") for name in results["heldout"])
    report = page(read_runs([str(tmp_path / "run")]))
    for text in (printed, report, (tmp_path / "run" / "README.md").read_text()):
        assert "KL to the starting model" not in text and "other/" not in text


def test_a_start_that_is_gone_costs_the_measurement_and_not_the_run(
    build: Callable[..., Any], packaged: LoadedData, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone() -> torch.nn.Module:
        raise RookWorldError("cannot load the model 'runs/start'")

    data = LoadedData(packaged.train, packaged.heldout, packaged.report, packaged.heldout.to_list())
    assert measure_others(build(), data, gone) == {}
    assert "is not measured: cannot load the model 'runs/start'" in capsys.readouterr().out
