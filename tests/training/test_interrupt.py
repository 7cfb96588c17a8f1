"""How signals end a run: at the next whole step, with a checkpoint, and with a line on how to go on."""

import signal
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.training import callbacks
from rookworld_rlvr.training.callbacks import StopOnInterrupt
from rookworld_rlvr.training.heldout import HeldoutEvaluation
from rookworld_rlvr.training.preflight import PreflightCallback

from ..support import script

FEW = """
    --max_rows 300 --synthetic_rows 20 --heldout_rows 4 --max_steps 4 --logging_steps 1 --use_cpu
    --per_device_train_batch_size 8 --report_to none --output_dir run
""".split()
SMALL = ["grpo.py", *FEW, *"--eval_steps 2 --save_steps 2 --max_completion_length 8".split()]
INT, TERM = signal.SIGINT, signal.SIGTERM


def signalled(patch: Any, kind: type, event: str, *numbers: signal.Signals, step: int = 2) -> None:
    """Raise signals in an event of a callback, at a step, before the event is handled."""
    handle = getattr(kind, event)

    def raising(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            for number in numbers:
                signal.raise_signal(number)
        handle(self, args, state, control, **kwargs)

    patch.setattr(kind, event, raising)


@pytest.mark.parametrize(("words", "number"), [(SMALL, INT), (["sft.py", *FEW], TERM)])
def test_a_signal_finishes_the_step_and_saves(
    words: Any, number: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    assert_saves(words, number, tmp_path, monkeypatch)


def assert_saves(words: list[str], number: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A second one, which a scheduler or the launcher may send, changes nothing."""
    before = signal.getsignal(number)
    # That is in the third step.
    signalled(monkeypatch, StopOnInterrupt, "on_step_begin", number, number)
    done = script(*words, cwd=tmp_path, code=128 + number)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("interrupted")]
    assert "at step 3: run/checkpoint-3 is saved" in line
    assert "--resume_from_checkpoint auto" in line
    assert (tmp_path / "run" / "checkpoint-3" / "optimizer.pt").is_file()
    assert not (tmp_path / "run" / "results.json").exists(), "nothing is measured at the end"
    assert not list((tmp_path / "run").rglob("README.md")), "nor does TRL draft a card"
    assert signal.getsignal(number) is before


def test_a_signal_during_an_evaluation_saves_its_step(tmp_path: Path, monkeypatch: Any) -> None:
    run = HeldoutEvaluation.run

    def raising(self: HeldoutEvaluation, *args: Any) -> Any:
        if self.trainer.state.global_step == 2:
            signal.raise_signal(TERM)
        return run(self, *args)

    monkeypatch.setattr(HeldoutEvaluation, "run", raising)
    done = script(*SMALL, "--save_steps", "4", cwd=tmp_path, code=143)
    assert "step     2  held-out" in done.stdout, "it is not lost"
    assert "interrupted at step 2: run/checkpoint-2 is saved" in done.stdout


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(callbacks, "_TOGETHER_S", -1.0)
    signalled(monkeypatch, StopOnInterrupt, "on_step_begin", INT, INT, step=1)
    assert script(*SMALL, cwd=tmp_path, code=130).stderr.endswith("rookworld grpo: interrupted\n")
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_before_a_first_step_it_ends_at_once(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    signalled(monkeypatch, PreflightCallback, "on_train_begin", TERM, step=0)
    assert "step     1" not in script(*SMALL, cwd=tmp_path, code=143).stdout
    assert "before the first step: nothing to save" in capfd.readouterr().err
