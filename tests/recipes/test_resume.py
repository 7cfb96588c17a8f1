"""A recipe that is stopped goes on with the same command."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

from rookworld_rlvr.common.files import asset_path

from ..killed import differences, outcome
from ..support import history, script, script_on_two

SMALL = """
    --dataset_name rows.parquet --heldout_rows 6 --max_steps 4 --per_device_train_batch_size 8
    --max_completion_length 16 --eval_steps 2 --save_steps 2 --logging_steps 1
    --use_cpu --output_dir run --resume_from_checkpoint auto
""".split()
OFF = ["--report_to", "none"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = pd.read_parquet(asset_path("nano_openings.parquet"))
    rows.iloc[::40].to_parquet(tmp_path / "rows.parquet")
    return tmp_path


def run(folder: Path, *more: str) -> str:
    return script("grpo.py", *SMALL, *OFF, *more, cwd=folder).stdout


def stop(run: Path) -> None:
    """Remove what a run writes at its end, as if it had been killed before."""
    for name in ("README.md", "results.json", "model.safetensors", "heldout_answers_after.jsonl"):
        (run / name).unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def bytes_of(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_auto_starts_goes_on_and_knows_the_end(folder: Path) -> None:
    run_folder = folder / "run"
    assert "no checkpoint in run yet" in run(folder)
    whole = outcome(run_folder)
    assert "the run in run is finished" in run(folder)
    assert outcome(run_folder) == whole and not (folder / "run.1").exists()

    run(folder, "--resume_from_checkpoint", "run/checkpoint-2", "--output_dir", "other")
    sides = (json.loads((at / "results.json").read_text()) for at in (run_folder, folder / "other"))
    first, second = ({m: r["before"] for m, r in side["heldout"].items()} for side in sides)
    assert first == second, "before training, not at the checkpoint"
    assert (folder / "other" / "heldout_answers_before.jsonl").is_file()

    stop(run_folder)
    cut(run_folder / "checkpoint-4" / "optimizer.pt")
    shutil.copytree(run_folder / "checkpoint-4", run_folder / "_saving" / "checkpoint-6")
    said = run(folder)
    assert "checkpoint-6 was being written" in said
    assert "checkpoint-4 is damaged (optimizer.pt does not have" in said
    assert "run/damaged-checkpoint-4" in said and "going on from run/checkpoint-2" in said
    assert differences(outcome(run_folder), whole) == []

    for checkpoint in run_folder.glob("checkpoint-*"):
        cut(checkpoint / "model.safetensors")
    stop(run_folder)
    before = bytes_of(run_folder)
    done = script("grpo.py", *SMALL, *OFF, cwd=folder, code=2)
    assert "every checkpoint in run is damaged" in done.stderr
    assert bytes_of(run_folder) == before


def test_a_changed_key_is_taken_and_recorded_or_refused(folder: Path) -> None:
    """From the last step of a finished run, whose schedule has come to 0."""
    run(folder, "--warmup_steps", "0", "--max_steps", "2")
    before = bytes_of(folder / "run")
    more = "--warmup_steps 0 --resume_from_checkpoint true".split()
    others = ["--seed", "7", "--task_shares", '{"environment": 0.5, "policy": 0.5}']
    done = script("grpo.py", *SMALL, *OFF, *more, *others, cwd=folder, code=2)
    assert "- seed: was 0, is 7" in done.stderr and "- task_shares: was " in done.stderr
    assert bytes_of(folder / "run") == before

    said = run(folder, *more, "--learning_rate", "5e-5")
    line = "from step 2: learning_rate 0.0001 -> 5e-05; max_steps 2 -> 4"
    assert f"{line}\n" in said
    for name in ("resolved_config.yaml", "README.md", "log.txt"):
        assert f"{line}\n" in (folder / "run" / name).read_text(), name
    rates = [row["learning_rate"] for row in history(folder / "run") if "learning_rate" in row]
    assert rates == pytest.approx([1e-4, 5e-5, 2.5e-5, 5e-5 * (1 - math.cos(math.pi / 4)) / 2])


@pytest.mark.slow
def test_two_processes_save_and_go_on_together(folder: Path) -> None:
    script_on_two("grpo.py", *SMALL, *OFF, cwd=folder)
    names = {path.name for path in (folder / "run" / "checkpoint-4").iterdir()}
    assert {"between_steps_0.pt", "between_steps_1.pt", "rng_state_1.pth"} <= names
    whole = outcome(folder / "run")
    stop(folder / "run")
    cut(folder / "run" / "checkpoint-4" / "rng_state_1.pth")
    said = script_on_two("grpo.py", *SMALL, *OFF, cwd=folder)
    assert said.count("checkpoint-4 is damaged (rng_state_1.pth does not have") == 1
    assert differences(outcome(folder / "run"), whole) == []
