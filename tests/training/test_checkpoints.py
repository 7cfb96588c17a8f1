"""Checkpoints are whole or not there, damaged ones are named, and a run goes on exactly."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel, TrainerCallback

from rookworld_rlvr.cli.failures import is_disk_full
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.training.checkpoints import check_layout, seal
from rookworld_rlvr.training.resuming import checkpoints, damage, last_whole

from ..killed import log

Build = Callable[..., Any]


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def write(folder: Path, best: str | None = None) -> Path:
    """A checkpoint's files, not sealed yet."""
    folder.mkdir(parents=True)
    save_file({"w": torch.ones(100)}, folder / "model.safetensors")
    torch.save({"state": torch.ones(100)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": best}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the whole checkpoints 2, 4 and 10."""
    for step in (2, 4, 10):
        seal(write(tmp_path / "run" / f"checkpoint-{step}"))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "spoil", "fault"),
    [
        ("model.safetensors", flip, "does not have its size and checksum"),
        ("optimizer.pt", Path.unlink, "is missing"),
        ("manifest.json", Path.unlink, "is missing"),
        ("manifest.json", lambda file: file.write_text(file.read_text()[:-9]), "is not readable"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    name: str, spoil: Any, fault: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run / "checkpoint-10" / name)
    assert damage(run / "checkpoint-10") == f"{name} {fault}"
    assert last_whole(run) == run / "checkpoint-4"
    first, second = capsys.readouterr().out.splitlines()
    assert f"checkpoint-10 is damaged ({name} {fault})" in first
    assert second == f"going on from {run}/checkpoint-4"
    left = {path.name for path in run.iterdir()}
    assert left == {"checkpoint-2", "checkpoint-4", "damaged-checkpoint-10"}


def test_a_damaged_best_checkpoint_is_not_loaded(run: Path, capsys: Any) -> None:
    last = write(run / "checkpoint-12", best="elsewhere/run/checkpoint-4")
    seal(last)
    flip(run / "checkpoint-4" / "model.safetensors")
    assert last_whole(run) == last
    assert "checkpoint-4 was the best so far" in capsys.readouterr().out
    assert not (run / "checkpoint-4").exists()


STEPS: dict[str, Any] = {
    "reward_funcs": [lambda completions, **_: [float(len(set(text))) for text in completions]],
    "max_steps": 4,
    "save_steps": 1,
    "eval_strategy": "no",
    "logging_steps": 2,
    "save_total_limit": 9,
    "max_completion_length": 8,
    "learning_rate": 1e-2,
    "load_best_model_at_end": False,
}


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoints(run)]


@pytest.mark.parametrize(
    "window",
    [{}, {"num_iterations": 3}, {"steps_per_generation": 2}, {"gradient_accumulation_steps": 2}],
    ids=str,
)
def test_a_run_goes_on_exactly_inside_a_window_and_between_logs(
    build: Build, window: dict[str, int], random_gpt2: GPT2LMHeadModel, tmp_path: Path
) -> None:
    def train(name: str, checkpoint: str | None) -> Any:
        trainer = build(**STEPS, **window, output_dir=str(tmp_path / name))
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_state()
        return trainer.model.state_dict()

    whole = train("whole", None)
    resumed = train("resumed", str(tmp_path / "whole" / "checkpoint-1"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not torch.equal(whole["transformer.wte.weight"], random_gpt2.transformer.wte.weight)
    logs = (log(tmp_path / name) for name in ("whole", "resumed"))
    one, other = ([row for row in rows if "reward" in row] for rows in logs)
    assert one == other and [row["step"] for row in one] == [2, 4]


def test_a_run_goes_on_whatever_its_rewards_have_logged_and_keeps_its_threads(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL keeps such columns between two steps, and a checkpoint is read without pickle."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def logging(completions: list[str], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        lengths = np.array([float(len(text)) for text in completions])
        log_extra("share", list(lengths / 10))
        log_extra("path", [Path(text[:1]) for text in completions])
        log_metric("longest", lengths.max())
        return lengths.tolist()  # type: ignore[no-any-return]

    def train(steps: int, checkpoint: str | None = None) -> int:
        trainer = build(**{**STEPS, "reward_funcs": [logging], "max_steps": steps})
        trainer.train(resume_from_checkpoint=checkpoint)
        return int(trainer.state.global_step)

    before, checkpoint = torch.get_num_threads(), str(tmp_path / "run" / "checkpoint-1")
    try:
        torch.set_num_threads(before + 1)
        train(1)
        torch.set_num_threads(before)  # as if fewer cores were idle
        assert train(1, checkpoint) == 1, "it was killed after its last step"
        assert torch.get_num_threads() == before + 1
        assert train(2, checkpoint) == 2
    finally:
        torch.set_num_threads(before)


def evaluated(build: Build, output: Path | str, steps: int, checkpoint: str | None = None) -> Any:
    """A run's end; all answers are wrong, so that the first of equal checkpoints is the best."""
    options = {**STEPS, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    options |= {"save_total_limit": 1, "max_steps": steps, "output_dir": str(output)}
    trainer = build(**options)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def test_the_best_and_the_last_checkpoint_stay_beside_a_newer_damaged_one_and_in_a_folder_respelt(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers removes the last at the end, and with it where an interrupted run was to go on."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    evaluated(build, "run", 2)
    assert names(run) == ["checkpoint-1", "checkpoint-2"]
    write(run / "checkpoint-9")  # not sealed
    assert last_whole(run) == run / "checkpoint-2"
    trainer = evaluated(build, run, 3, f"{run}/checkpoint-2")
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-1"
    assert names(run) == ["checkpoint-1", "checkpoint-3"]
    assert damage(run / "checkpoint-3") is None


@pytest.mark.parametrize("is_taken", [False, True], ids=["gone", "another run's"])
def test_the_best_checkpoint_of_a_renamed_run(build: Build, tmp_path: Path, is_taken: bool) -> None:
    """An earlier run gets a number; its checkpoints name the best by the folder that it had then."""
    run, old = tmp_path / "run", tmp_path / "run.1"
    evaluated(build, run, 2)
    run.rename(old)
    if is_taken:
        evaluated(build, run, 1)
    trainer = evaluated(build, old, 3, f"{old}/checkpoint-2")
    assert trainer.state.best_model_checkpoint == f"{old}/checkpoint-1"
    assert names(old) == ["checkpoint-1", "checkpoint-3"]
    kept = load_file(old / "checkpoint-1" / "model.safetensors")["transformer.ln_f.weight"]
    assert trainer.model.transformer.ln_f.weight.detach().cpu().equal(kept), "loaded at the end"


@pytest.mark.parametrize("share", [0.5, 1.5], ids=["in the weights", "in the optimiser's state"])
def test_a_full_disk_leaves_the_last_checkpoint(build: Build, share: float, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same errors, without root's rights."""
    run = tmp_path / "run"

    class Fill(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            size = (run / "checkpoint-1" / "model.safetensors").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * size), before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = build(**STEPS)
    trainer.add_callback(Fill())
    try:
        with pytest.raises(Exception) as full:  # noqa: PT011
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_disk_full(full.value), "so that the command ends with one message"
    assert not (run / "_saving").exists()
    assert damage(run / "checkpoint-1") is None
    assert last_whole(run) == run / "checkpoint-1"


@pytest.mark.parametrize(("file", "kind"), [("global_step2", "DeepSpeed"), ("optimizer_0", "FSDP")])
def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path, file: str, kind: str) -> None:
    """The optimiser would begin anew, unsaid."""
    (tmp_path / file).mkdir()
    plain = SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False)
    said = f"written with {kind} and cannot be read plainly"
    with pytest.raises(ConfigurationError, match=said):
        check_layout(plain, str(tmp_path))
    (tmp_path / "optimizer.pt").touch()
    check_layout(plain, str(tmp_path))
