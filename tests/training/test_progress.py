"""What a run shows while it trains."""

from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from rookworld_rlvr.training.callbacks import ShortProgressCallback

from ..conftest import history, script

SMALL = """
    --max_rows 300 --synthetic_rows 20 --heldout_rows 6 --max_steps 1 --eval_steps 8 --save_steps 8
    --per_device_train_batch_size 8 --report_to none --max_completion_length 8 --use_cpu
""".split()


def test_a_log_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainerState(global_step=5, max_steps=150, is_world_process_zero=True)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    callback, control = ShortProgressCallback(), TrainerControl()
    noise = {f"clip_ratio/{index}": 0.0 for index in range(20)}
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, {"reward": 0.51234, "kl": None, **noise})
    callback.on_log(args, state, control, {"eval_overall": 0.5, "eval_runtime": 3})
    callback.on_train_end(args, state, control)
    callback.on_log(args, state, control, {"train_runtime": 1.0})
    state.is_world_process_zero = False
    callback.on_log(args, state, control, {"reward": 1.0})
    shown = capsys.readouterr()
    lines = ["step     5/150  reward 0.5123", "step     5  held-out  overall 50.0%"]
    assert shown.out.splitlines() == lines and shown.err == "", "no bar where there is no terminal"


def test_at_80_columns_no_line_breaks_in_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "grad_norm", "loss")
    state = TrainerState(global_step=5, max_steps=150, is_world_process_zero=True)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    logs = dict.fromkeys(names, -0.0012345)
    ShortProgressCallback().on_log(args, state, TrainerControl(), logs)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert [line.split()[-1] for line in lines] == ["-0.001234"] * 3, "a name stays with its number"
    assert " ".join(lines).split()[2:] == [word for name in names for word in (name, "-0.001234")]


def test_a_model_that_can_do_nothing_is_named_at_step_0_and_a_run_s_end_is_evaluated(
    tmp_path: Path, start: str
) -> None:
    untaught = ["--model_name_or_path", start, "--output_dir", "run"]
    done = script("grpo.py", *SMALL, *untaught, cwd=tmp_path)
    said = " ".join(done.stdout.split())  # findings are wrapped
    assert "step 0 warning nothing_parses: 0%" in said and "run rookworld sft first" in said
    assert "step     1  held-out  overall" in done.stdout
    assert "model: run (step 1 of 1)" in done.stdout
    logs = history(tmp_path / "run")
    (last,) = [log for log in logs if "learning_rate" in log]
    assert last["step"] == 1 and {"loss", "grad_norm"} <= last.keys(), "fewer than logging_steps"
