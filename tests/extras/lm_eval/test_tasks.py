"""The tasks for lm-evaluation-harness give what `rookworld evaluate` gives, row by row.

`make test-lm-eval` installs the harness; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rookworld_rlvr.extras.lm_eval
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.evaluation.suite import Answerer, open_suites
from rookworld_rlvr.models.loading import PACKAGED_MODEL, resolve_model_path

from ...rows import ASKED_E4

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (make test-lm-eval)")
FOLDER = Path(rookworld_rlvr.extras.lm_eval.__file__).parent
MODEL = resolve_model_path(PACKAGED_MODEL)
SUITES = ("environment", "policy", "mate_in_one", "fill_in", "openings")
ROWS = 200


class Ours(Answerer):
    """The model as `rookworld evaluate` loads and decodes it; it keeps what it said."""

    def __init__(self) -> None:
        self.model = open_model(PACKAGED_MODEL, ModelArguments())
        self.decoding = self.model.decoding

    def answers(self, prompts: Sequence[str]) -> list[str]:
        self.said = self.model.answers(prompts)
        return self.said

    def samples(self, prompts: Sequence[str], count: int, decoding: Any = None) -> list[list[str]]:
        return [[""] * count for _ in prompts]  # the harness leaves out those of the suite openings


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """The harness's results, with every sample."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    metadata = {"suite_rows": ROWS, "pretrained": MODEL}  # the command adds the model itself
    return simple_evaluate(
        "hf",
        model_args={"pretrained": MODEL, "dtype": "float32"},
        device="cpu",
        batch_size=64,
        tasks=[f"rookworld_{name}" for name in SUITES],
        task_manager=TaskManager(include_path=FOLDER, include_defaults=False, metadata=metadata),
        bootstrap_iters=0,
    )


@pytest.mark.parametrize("name", SUITES)
def test_answers_and_scores_equal_row_by_row(ours: Ours, theirs: dict[str, Any], name: str) -> None:
    (suite,), _ = open_suites(SuiteArguments(suites=[name], suite_rows=ROWS), EngineArguments())
    result, task = suite.run(ours), f"rookworld_{name}"
    samples = theirs["samples"][task]
    assert len(samples) == ROWS
    assert [sample["doc"]["item"] for sample in samples] == list(suite.items)
    assert [sample["filtered_resps"][0] for sample in samples] == ours.said
    assert len(set(ours.said)) > 10
    metrics = {metric for metric in suite.metrics if not metric.startswith("sampled_")}
    assert {*theirs["higher_is_better"][task]} == metrics
    assert theirs["versions"][task] == suite.version
    for metric in metrics:
        values = {s["doc"]["item"]: s[metric] for s in samples if metric in s}
        assert values == result.values[metric], metric
        shown = theirs["results"][task][f"{metric},none"]
        assert shown == pytest.approx(result.metrics()[metric].value), metric


def test_the_command_takes_rows_seed_and_a_file(tmp_path: Path) -> None:
    openings = tmp_path / "openings.json"
    openings.write_text(json.dumps([{"prompt": ASKED_E4}]))
    metadata = {"suite_rows": 3, "suite_seed": 7, "openings_file": str(openings)}
    line = ["--model", "hf", "--model_args", f"pretrained={MODEL},dtype=float32"]
    line += ["--include_path", str(FOLDER), "--metadata", json.dumps(metadata), "--device", "cpu"]
    line += ["--tasks", "rookworld_openings,rookworld_policy", "--batch_size", "8", "--log_samples"]
    command = [sys.executable, "-m", "lm_eval", *line, "--output_path", str(tmp_path)]
    subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True)
    rows = {
        name: [json.loads(row) for row in file.read_text().splitlines()]
        for name in ("openings", "policy")
        for file in tmp_path.rglob(f"samples_rookworld_{name}_*.jsonl")
    }
    assert [row["doc"]["item"] for row in rows["openings"]] == ["row 1"]
    args = SuiteArguments(suites=["policy"], suite_rows=3, suite_seed=7)
    (suite,), _ = open_suites(args, EngineArguments())
    assert [row["doc"]["item"] for row in rows["policy"]] == list(suite.items)
