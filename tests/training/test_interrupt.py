"""How signals end a run: at the next whole step, with a checkpoint, and with a line on how to go on."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.training import callbacks
from rookworld_rlvr.training.callbacks import StopOnInterrupt
from rookworld_rlvr.training.heldout import HeldoutEvaluation
from rookworld_rlvr.training.preflight import PreflightCallback

from .. import killed
from ..conftest import script

FEW = """
    --max_rows 300 --synthetic_rows 20 --heldout_rows 6 --max_steps 4 --logging_steps 1 --use_cpu
    --per_device_train_batch_size 8 --report_to none --output_dir run
""".split()
JUDGE = [*FEW, *"--synthetic_rows 100 --train_pairs 32 --heldout_pairs 4".split()]
SMALL = [*FEW, *"--eval_steps 2 --save_steps 2 --max_completion_length 8".split()]


def signalled(
    monkeypatch: pytest.MonkeyPatch, kind: type, event: str, *numbers: signal.Signals, step: int = 2
) -> None:
    """Raise signals in an event of a callback, at a step, before the event is handled."""
    handle = getattr(kind, event)

    def raising(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            for number in numbers:
                signal.raise_signal(number)
        handle(self, args, state, control, **kwargs)

    monkeypatch.setattr(kind, event, raising)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("grpo.py", SMALL),
        ("sft.py", FEW),
        ("train_judge.py", JUDGE),
    ],
)
def test_sigterm_finishes_the_step_saves_and_says_how_to_go_on(
    name: str, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one, which a scheduler may send, changes nothing."""
    before = signal.getsignal(signal.SIGTERM)
    twice = (signal.SIGTERM, signal.SIGTERM)
    signalled(monkeypatch, StopOnInterrupt, "on_step_begin", *twice)  # that is in the third step
    done = script(name, *keys, cwd=tmp_path, code=143)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("interrupted")]
    assert "at step 3: run/checkpoint-3 is saved" in line
    assert "--resume_from_checkpoint auto" in line
    assert (tmp_path / "run" / "checkpoint-3" / "optimizer.pt").is_file()
    assert not (tmp_path / "run" / "results.json").exists(), "nothing is measured at the end"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_an_evaluation_saves_the_step_that_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = HeldoutEvaluation.run

    def raising(self: HeldoutEvaluation, *args: Any) -> Any:
        if self.trainer.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return run(self, *args)

    monkeypatch.setattr(HeldoutEvaluation, "run", raising)
    done = script("grpo.py", *SMALL, "--save_steps", "4", cwd=tmp_path, code=143)
    assert "step     2  held-out" in done.stdout, "it is not lost"
    assert "interrupted at step 2: run/checkpoint-2 is saved" in done.stdout


def test_a_second_ctrl_c_ends_at_once_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_TOGETHER_S", -1.0)
    twice = (signal.SIGINT, signal.SIGINT)
    signalled(monkeypatch, StopOnInterrupt, "on_step_begin", *twice, step=1)
    done = script("grpo.py", *SMALL, cwd=tmp_path, code=130)
    assert done.stderr.endswith("rookworld grpo: interrupted\n")
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_before_the_first_step_there_is_nothing_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    signalled(monkeypatch, PreflightCallback, "on_train_begin", signal.SIGTERM, step=0)
    done = script("grpo.py", *SMALL, cwd=tmp_path, code=143)
    assert "step     1" not in done.stdout
    assert "before the first step: nothing to save" in capfd.readouterr().err


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    many = "--max_steps 500 --eval_steps 500 --save_steps 500".split()
    process = killed.start("grpo.py", [*SMALL, *many], tmp_path)
    printed = tmp_path / killed.LOG
    while process.is_alive() and not (printed.exists() and "step     2/500" in printed.read_text()):
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    assert process.exitcode == 128 + signal.SIGINT
    out = printed.read_text()
    assert "Traceback" not in out
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert f"interrupted at step {step}: run/{checkpoint.name} is saved" in out
