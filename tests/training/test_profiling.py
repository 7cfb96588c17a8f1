from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.profiling import ProfileSteps

from ..conftest import script

SMALL = """
    --max_steps 4 --per_device_train_batch_size 8 --num_generations 4 --heldout_rows 4
    --eval_steps 4 --save_steps 4 --logging_steps 1 --max_completion_length 8 --use_cpu
    --report_to none --output_dir run
""".split()


def test_the_steps_that_were_asked_for_are_traced(tmp_path: Path) -> None:
    done = script("grpo.py", *SMALL, "--profile_steps", "[2, 3]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "run" / "profile").iterdir()
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    steps = [name for name in names if name.startswith("Optimizer.step")]
    assert len(steps) == 2
    printed = done.stdout.splitlines()
    head = next(i for i, line in enumerate(printed) if line.startswith("operation"))
    table = printed[head + 1 : head + 11]
    seconds = [float(line.split()[-1]) for line in table]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0
    assert {"aten::addmm"} <= {line.split()[0] for line in table}
    assert str(path.relative_to(tmp_path)) in printed[head + 11]
    last = next(line for line in reversed(printed[:head]) if line.startswith("step "))
    assert last.startswith("step     2/4"), "the third step is not logged yet"


def test_a_run_that_is_stopped_leaves_what_it_took(
    random_gpt2: Any, tokenizer: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    class Stop(TrainerCallback):  # as the health monitor does
        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step == 2

    trainer = make_trainer(random_gpt2, tokenizer, max_steps=9, logging_steps=1)
    trainer.add_callback(Stop())
    trainer.add_callback(ProfileSteps([2, 9]))
    trainer.train()
    assert [path.name for path in (tmp_path / "run" / "profile").iterdir()] == ["steps_to_2.json"]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([12, 10], "[12, 10] is not two ascending steps; give the first and the last step"),
        ([10], "[10] is not two ascending steps"),
        ([0, 3], "0 is too small; give the first and the last step"),
        ([1, "x"], "'x' is not a whole number; give the first"),
        (7, "7 is not a list; give the first"),
        ([10, 21], "21 is beyond max_steps, 20; give earlier steps"),
    ],
)
def test_steps_that_cannot_be_profiled_are_a_fault(value: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RookWorldGRPOConfig(
            rewards=[{"name": "graduated"}],
            profile_steps=value,
            max_steps=20,
            use_cpu=True,
            bf16=False,
        )
    (found,) = caught.value.faults
    assert fault in found and found.startswith("profile_steps: ")


@pytest.mark.parametrize(("text", "value"), [("[3, 3]", [3, 3]), ("null", None)])
def test_steps_may_come_from_the_command_line(text: str, value: Any) -> None:
    rewards = [{"name": "graduated"}]
    config = RookWorldGRPOConfig(rewards=rewards, profile_steps=text, use_cpu=True, bf16=False)
    assert config.profile_steps == value, "a diagnosis gives null"
