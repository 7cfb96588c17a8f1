"""Checkpoints are whole or not there, damaged ones are named, and a run goes on exactly."""

import json
import re
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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


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


WRONG = r"does not have its size and checksum"
DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "flipped": ("model.safetensors", flip, rf"model\.safetensors {WRONG}"),
    "missing": ("optimizer.pt", Path.unlink, r"optimizer\.pt is missing"),
    "no manifest": ("manifest.json", Path.unlink, r"manifest\.json is missing"),
    "manifest": ("manifest.json", cut, r"manifest\.json is not readable"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    kind: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, spoil, words = DAMAGES[kind]
    spoil(run / "checkpoint-10" / name)
    fault = damage(run / "checkpoint-10")
    assert fault is not None and re.match(words, fault)
    assert last_whole(run) == run / "checkpoint-4"
    first, second = capsys.readouterr().out.splitlines()
    assert fault in first and "checkpoint-10 is damaged" in first
    assert second == f"going on from {run}/checkpoint-4"
    names = {path.name for path in run.iterdir()}
    assert names == {"checkpoint-2", "checkpoint-4", "damaged-checkpoint-10"}


def test_a_damaged_best_checkpoint_is_not_loaded_at_the_end(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = write(run / "checkpoint-12", best="elsewhere/run/checkpoint-4")
    seal(last)
    flip(run / "checkpoint-4" / "model.safetensors")
    assert last_whole(run) == last
    assert "checkpoint-4 was the best so far" in capsys.readouterr().out
    assert not (run / "checkpoint-4").exists()


def vowels(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """A reward that differs from one random completion to the next."""
    return [float(sum(letter in "aeiou" for letter in text)) for text in completions]


STEPS: dict[str, Any] = {
    "reward_funcs": [vowels],
    "max_steps": 4,
    "save_steps": 1,
    "eval_strategy": "no",
    "logging_steps": 2,
    "save_total_limit": 9,
    "max_completion_length": 8,
    "learning_rate": 1e-2,
    "load_best_model_at_end": False,
}


@pytest.mark.parametrize(
    "window",
    [{}, {"num_iterations": 3}, {"steps_per_generation": 2}, {"gradient_accumulation_steps": 2}],
    ids=str,
)
def test_a_run_goes_on_exactly_inside_a_window_and_between_logs(
    build: Build, window: dict[str, int], random_gpt2: GPT2LMHeadModel, tmp_path: Path
) -> None:
    def train(name: str, checkpoint: str | None) -> dict[str, torch.Tensor]:
        output = {"output_dir": str(tmp_path / name)}
        trainer = build(**STEPS, **window, **output)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_state()
        return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    whole = train("whole", None)
    resumed = train("resumed", str(tmp_path / "whole" / "checkpoint-1"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not torch.equal(whole["transformer.wte.weight"], random_gpt2.transformer.wte.weight)
    logs = [log(tmp_path / name) for name in ("whole", "resumed")]
    one, other = ([row for row in rows if "reward" in row] for rows in logs)
    assert one == other and [row["step"] for row in one] == [2, 4]


def test_a_run_goes_on_whatever_its_rewards_have_logged(build: Build, tmp_path: Path) -> None:
    """TRL keeps such columns between two steps, and a checkpoint is read without pickle."""

    def logging(completions: list[str], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        lengths = np.array([float(len(text)) for text in completions])
        log_extra("share", list(lengths / 10))
        log_extra("path", [Path(text[:1]) for text in completions])
        log_metric("longest", lengths.max())
        return lengths.tolist()  # type: ignore[no-any-return]

    options = {**STEPS, "reward_funcs": [logging], "max_steps": 1}
    build(**options).train()
    again = build(**{**options, "max_steps": 2})
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert again.state.global_step == 2


def test_a_run_that_was_killed_after_its_last_step_trains_no_further_and_keeps_its_threads(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = {**STEPS, "max_steps": 1}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        build(**options).train()
        torch.set_num_threads(before)  # as if fewer cores were idle
        again = build(**options)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert again.state.global_step == 1


def test_the_last_whole_checkpoint_stays_although_a_damaged_one_is_newer(
    build: Build, tmp_path: Path
) -> None:
    run, options = tmp_path / "run", {**STEPS, "save_total_limit": 1}
    build(**{**options, "max_steps": 2}).train()
    assert [path.name for path in checkpoints(run)] == ["checkpoint-2"]
    write(run / "checkpoint-9")
    cut(run / "checkpoint-9" / "optimizer.pt")
    assert last_whole(run) == run / "checkpoint-2"
    more = build(**{**options, "max_steps": 3})
    more.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert [path.name for path in checkpoints(run)] == ["checkpoint-3"]
    assert damage(run / "checkpoint-3") is None


EVALUATED: dict[str, Any] = {
    **STEPS,
    "max_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "save_total_limit": 1,
}
"""All answers are wrong, so the first of equals is the best."""


def test_the_best_and_the_last_checkpoint_stay_although_the_folder_is_spelt_differently(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers removes the last at the end, and with it where an interrupted run was to go on."""
    monkeypatch.chdir(tmp_path)

    def train(output: str, steps: int, checkpoint: str | None = None) -> list[str]:
        options = {**EVALUATED, "output_dir": output, "max_steps": steps}
        trainer = build(**options)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-1"
        return [path.name for path in checkpoints(tmp_path / "run")]

    assert train("run", 2) == ["checkpoint-1", "checkpoint-2"]
    output = str(tmp_path / "run")
    assert train(output, 3, f"{output}/checkpoint-2") == ["checkpoint-1", "checkpoint-3"]


@pytest.mark.parametrize("is_taken", [False, True], ids=["gone", "another run's"])
def test_the_best_checkpoint_is_found_although_its_run_was_renamed(
    build: Build, tmp_path: Path, is_taken: bool
) -> None:
    """An earlier run gets a number; its checkpoints name the best by the folder that it had then."""
    run, old = tmp_path / "run", tmp_path / "run.1"

    def train(folder: Path, steps: int, checkpoint: str | None = None) -> Any:
        options = {**EVALUATED, "output_dir": str(folder), "max_steps": steps}
        trainer = build(**options)
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer

    train(run, 2)
    run.rename(old)
    if is_taken:
        train(run, 1)
    trainer = train(old, 3, f"{old}/checkpoint-2")
    assert trainer.state.best_model_checkpoint == f"{old}/checkpoint-1"
    assert [path.name for path in checkpoints(old)] == ["checkpoint-1", "checkpoint-3"]
    kept = load_file(old / "checkpoint-1" / "model.safetensors")["transformer.ln_f.weight"]
    assert trainer.model.transformer.ln_f.weight.detach().cpu().equal(kept), "loaded at the end"


@pytest.mark.parametrize("share", [0.5, 1.5], ids=["in the weights", "in the optimiser's state"])
def test_a_full_disk_leaves_the_last_checkpoint_and_one_message(
    build: Build, share: float, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("file", "layout"), [("global_step2", "DeepSpeed"), ("optimizer_0", "FSDP")]
)
def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path, file: str, layout: str) -> None:
    """The optimiser would begin anew, unsaid."""
    (tmp_path / file).mkdir()
    plain = SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False)
    with pytest.raises(ConfigurationError, match=f"written with {layout}, cannot be read plainly"):
        check_layout(plain, str(tmp_path))
    (tmp_path / "optimizer.pt").touch()
    check_layout(plain, str(tmp_path))
