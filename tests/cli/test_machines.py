"""Several machines: the options, and two groups of processes on loopback, one of them killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from accelerate.utils.other import get_free_port

from rookworld_rlvr.cli.main import command_line
from rookworld_rlvr.common.errors import ConfigurationError

from ..engines import wait_until
from ..support import REPOSITORY, started

ADDRESS = "--main_process_ip 127.0.0.2 --main_process_port 29500"
SMALL = "--per_device_train_batch_size 8 --heldout_rows 6 --synthetic_rows 100 --report_to none"
OFTEN = "--max_rows 2000 --logging_steps 1 --eval_steps 2 --save_steps 2"


def test_the_options_of_machines_reach_the_launcher_and_a_missing_one_is_named() -> None:
    words = f"--accelerate_config cpu --num_processes 2 --num_machines 2 --machine_rank 1 {ADDRESS}"
    launcher, _ = command_line("grpo", words.split())
    config = str(REPOSITORY / "accelerate_configs" / "cpu.yaml")
    expected = f"--num_processes 2 --num_machines 2 --machine_rank 1 {ADDRESS} --same_network"
    assert launcher == ["--config_file", config, *expected.split()]
    launcher, _ = command_line("grpo", ["--accelerate_config", "multi_node", "--machine_rank=0"])
    assert launcher[2:] == ["--machine_rank", "0", "--same_network"], "the file says the rest"
    for words, missing in (
        (f"--num_machines 2 {ADDRESS}", ["machine_rank"]),
        ("--num_machines 2 --machine_rank 0", ["main_process_ip", "main_process_port"]),
    ):
        with pytest.raises(ConfigurationError) as caught:
            command_line("grpo", ["--accelerate_config", "cpu", *words.split()])
        assert [fault.split(":")[0] for fault in caught.value.faults] == [f"--{x}" for x in missing]


class Machines:
    def __init__(self, folder: Path, *words: str) -> None:
        line = "grpo --accelerate_config cpu --num_processes 2 --num_machines 2 --output_dir run"
        line += f" --main_process_ip 127.0.0.2 --main_process_port {get_free_port()}"
        command = [sys.executable, "-um", "rookworld_rlvr.cli.main", *line.split(), *words]
        self.logs = [folder / f"machine{rank}.log" for rank in range(2)]
        options: Any = {"cwd": folder, "stderr": subprocess.STDOUT}
        self.launchers = [
            started(*command, f"--machine_rank={rank}", stdout=log.open("wb"), **options)
            for rank, log in enumerate(self.logs)
        ]

    def wait_for(self, text: str) -> None:
        def is_said() -> bool:
            assert all(launcher.poll() is None for launcher in self.launchers), self.said()
            return text in self.logs[0].read_text()

        wait_until(is_said)

    def said(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in self.logs)

    def kill(self, rank: int) -> None:
        """Kill a machine's processes as a power cut would, except that its connections are closed."""
        launcher = psutil.Process(self.launchers[rank].pid)
        for process in (launcher, *launcher.children(recursive=True)):
            process.send_signal(signal.SIGKILL)
        self.launchers[rank].wait()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_two_machines_one_of_which_is_killed(tmp_path: Path, killed: int) -> None:
    small = [*SMALL.split(), *OFTEN.split()]
    machines = Machines(tmp_path, *small, "--max_steps", "500")
    machines.wait_for("step     3/500")
    machines.kill(killed)
    other = 1 - killed
    assert machines.launchers[other].wait(timeout=60) == 1
    run = tmp_path / "run"
    reached = max(int(folder.name.split("-")[1]) for folder in run.glob("checkpoint-*"))
    more = ["--resume_from_checkpoint", "true", "--max_steps", str(reached + 2)]
    machines = Machines(tmp_path, *small, *more)
    assert [launcher.wait(240) for launcher in machines.launchers] == [0, 0], machines.said()
    sessions = json.loads((run / "provenance.json").read_text())["sessions"]
    assert [session["resumed_from"] for session in sessions] == [None, f"run/checkpoint-{reached}"]
    state = json.loads((run / "trainer_state.json").read_text())
    assert state["global_step"] == reached + 2
    steps = [log["step"] for log in state["log_history"] if "loss" in log]
    assert steps == list(range(1, reached + 3)), "each step once"
