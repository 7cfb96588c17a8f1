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
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, {"reward": 0.51234, "kl": None, **noise})
    callback.on_log(args, state, control, {"eval_overall": 0.5, "eval_runtime": 3})
    shown = capsys.readouterr()
    lines = ["step     5/150  reward 0.5123", "step     5  held-out  overall 50.0%"]
    assert shown.out.splitlines() == lines and shown.err == "", "no bar where there is no terminal"

    names = ("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "grad_norm", "loss")
    callback.on_log(args, state, control, dict.fromkeys(names, -0.0012345))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert [line.split()[-1] for line in lines] == ["-0.001234"] * 3, "a name stays with its number"
    assert " ".join(lines).split()[2:] == [word for name in names for word in (name, "-0.001234")]

    callback.on_train_end(args, state, control)
    callback.on_log(args, state, control, {"train_runtime": 1.0})
    state.is_world_process_zero = False
    callback.on_log(args, state, control, {"reward": 1.0})
    assert capsys.readouterr().out == ""
