import re
import time
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from rookworld_rlvr.training.callbacks import ShortProgressCallback


def test_a_log_is_one_short_line_or_some_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    state = TrainerState(global_step=5, max_steps=150, is_world_process_zero=True)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    callback, control = ShortProgressCallback(), TrainerControl()
    noise = {f"clip_ratio/{index}": 0.0 for index in range(20)}
    callback.on_log(args, state, control, {"preflight/alone_gap": 0.0})  # before training
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, {"reward": 0.51234, "kl": None, **noise})
    callback.on_log(args, state, control, {"eval_overall": 0.5, "eval_runtime": 3})
    shown = capsys.readouterr()
    lines = ["step     5/150  reward 0.5123", "step     5  held-out  overall 50.0%"]
    assert shown.out.splitlines() == lines and shown.err == "", "no bar where there is no terminal"

    names = (
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "kl",
        "mean_entropy",
        "grad_norm",
        "loss",
    )
    callback.on_log(args, state, control, dict.fromkeys(names, -0.0012345))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert [line.split()[-1] for line in lines] == ["-0.001234"] * 3, "a name stays with its number"
    assert " ".join(lines).split()[2:] == [word for name in names for word in (name, "-0.001234")]

    seconds = {"step_time": 1.2345, "time/sampling": 1.0, "time/loss": 0.25, "time/update": 0.2}
    callback.on_log(args, state, control, {"reward": 0.5, **seconds})
    assert capsys.readouterr().out == "step     5/150  reward 0.5  1.23 s a step  02:59 left\n"
    memory = {"memory/sampling": 0.5, "memory/loss": 12.0, "memory/update": 12.25}
    callback.on_log(args, state, control, {"reward": 0.5, **seconds, **memory})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    sampling         1.000 s     0.50 GiB",
        "    update           0.200 s    12.25 GiB",
        "      loss           0.250 s    12.00 GiB",
    ]

    callback.on_train_end(args, state, control)
    callback.on_log(args, state, control, {"train_runtime": 1.0})
    assert capsys.readouterr().out == "", "the end has no numbers of a step"
    state.is_world_process_zero = False
    callback.on_log(args, state, control, {"reward": 1.0})
    assert capsys.readouterr().out == ""


def test_a_line_without_seconds_in_the_log_has_the_mean_of_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in supervised training, whose log has none."""
    state = TrainerState(global_step=1, max_steps=9, is_world_process_zero=True)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    callback, control = ShortProgressCallback(), TrainerControl()
    callback.on_train_begin(args, state, control)

    def shown(*pauses: float) -> float:
        for pause in pauses:
            callback.on_step_begin(args, state, control)
            time.sleep(pause)
            callback.on_step_end(args, state, control)
        callback.on_log(args, state, control, {"loss": 1.0})
        (seconds,) = re.findall(r" (\S+) s a step", capsys.readouterr().out)
        return float(seconds)

    assert 0.2 <= shown(0.1, 0.3) < 0.4
    assert 0.1 <= shown(0.1) < 0.2, "those of the line before do not count again"
