"""Rounds of `rookworld evolve`: the same after kills, and refused when they could not go on."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from ... import killed
from ...engines import wait_until
from ...support import script

SMALL = """
model_name_or_path: rookworld-nano
recipe: grpo_policy_nano
train: {max_steps: 4, eval_steps: 2, save_steps: 2, heldout_rows: 20, use_cpu: true,
  per_device_train_batch_size: 16, moves_extra: 1, synthetic_rows: 40, max_rows: 600,
  report_to: none, guard: {environment/exact: 0.5}}
output_dir: out
"""
SIZES = {"rounds": 2, "games": 6, "plies": 3, "match_games": 2, "engine_depth": 4}


def write(folder: Path, **keys: object) -> str:
    (folder / "evolve.yaml").write_text(yaml.safe_dump({**yaml.safe_load(SMALL), **SIZES, **keys}))
    return f"--config={folder}/evolve.yaml"


@pytest.mark.slow
def test_killed_rounds_end_as_if_nothing_had_happened(tmp_path: Path, stockfish: str) -> None:
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    for folder in (whole, disturbed):
        folder.mkdir()
        write(folder)
    words = ["--config=evolve.yaml", f"--engine_path={stockfish}"]
    code, said = killed.run("evolve.py", words, whole)
    assert code == 0, said[-3000:]

    out = disturbed / "out"
    for moment in ("round-001/train/checkpoint-2", "round-002/rows.parquet"):
        process = killed.start("evolve.py", words, disturbed)
        wait_until((out / moment).exists)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert not (out / "round-002/match.json").exists()
    code, said = killed.run("evolve.py", words, disturbed)
    assert code == 0, said[-3000:]
    ledger = (whole / "out/ledger.jsonl").read_bytes()
    assert (out / "ledger.jsonl").read_bytes() == ledger
    for name in ("rows.parquet", "match.json", "match.pgn", "train/model.safetensors"):
        for number in (1, 2):
            path = f"out/round-{number:03}/{name}"
            assert (disturbed / path).read_bytes() == (whole / path).read_bytes(), path

    first, second = map(json.loads, ledger.splitlines())
    assert [len(entry["weights"][0]) for entry in (first, second)] == [64, 64]
    assert second["start"] == (first["model"] if first["accepted"] else "rookworld-nano")
    assert second["rows_before"] == (
        first["rows_before"] + first["policy_rows"] + first["environment_rows"]
    )
    assert first["policy_rows"] > 0 and first["half_moves"] == 18
    script("report.py", "--run=out", cwd=whole)
    assert "round-002/train" in (whole / "out/report.html").read_text()

    again = script("evolve.py", *words, cwd=whole)
    assert "training prints" not in again.stdout, "all is done"
    other = script("evolve.py", *words, "--plies=4", cwd=whole, code=2)
    assert "(plies was 3, is 4)" in other.stderr


def test_a_dry_run_says_what_the_rounds_would_do(tmp_path: Path, stockfish: str) -> None:
    done = script("evolve.py", write(tmp_path, engine_path=stockfish), "--dry_run", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert said.startswith("these rounds can run: 2, each with 6 games of 3 plies")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"recipe": "grpo_environment", "train": {"use_cpu": True}}, "does not train the policy"),
        ({"train": {"max_stps": 4}}, "train: unknown key 'max_stps'; did you mean max_steps"),
        ({"engine_path": "/nowhere"}, "/nowhere"),
    ],
)
def test_faults_come_before_games(keys: Any, reason: str, tmp_path: Path, stockfish: str) -> None:
    config = write(tmp_path, **{"engine_path": stockfish, **keys})
    done = script("evolve.py", config, cwd=tmp_path, code=2)
    assert reason in " ".join(done.stderr.split()) and not (tmp_path / "out").exists()
