"""Several machines: the options, and two groups of processes on loopback, one of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from accelerate.utils.other import get_free_port

from rookworld_rlvr.cli.main import command_line
from rookworld_rlvr.common.errors import ConfigurationError

from ..conftest import REPOSITORY

ADDRESS = "--main_process_ip 127.0.0.2 --main_process_port 29500"
SMALL = "--per_device_train_batch_size 8 --heldout_rows 6 --synthetic_rows 100 --report_to none"
OFTEN = "--max_rows 2000 --logging_steps 1 --eval_steps 2 --save_steps 2"


def test_the_options_of_machines_reach_the_launcher() -> None:
    words = f"--accelerate_config cpu --num_processes 2 --num_machines 2 --machine_rank 1 {ADDRESS}"
    launcher, line = command_line("grpo", [*words.split(), "--max_steps", "3"])
    config = str(REPOSITORY / "accelerate_configs" / "cpu.yaml")
    expected = f"--num_processes 2 --num_machines 2 --machine_rank 1 {ADDRESS} --same_network"
    assert launcher == ["--config_file", config, *expected.split()]
    assert line[1:] == ["--max_steps", "3"]
    launcher, _ = command_line("grpo", ["--accelerate_config", "multi_node", "--machine_rank=0"])
    assert launcher[2:] == ["--machine_rank", "0", "--same_network"], "the file says the rest"


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (f"--num_machines 2 {ADDRESS}", ["machine_rank"]),
        ("--num_machines 2 --machine_rank 0", ["main_process_ip", "main_process_port"]),
    ],
)
def test_what_machines_need_is_named(words: str, missing: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        command_line("grpo", ["--accelerate_config", "cpu", *words.split()])
    assert [fault.split(":")[0] for fault in caught.value.faults] == [f"--{key}" for key in missing]


class Machines:
    """Two groups of one process each, as two machines that share a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        port = str(get_free_port())
        self.logs = [folder / f"machine{rank}.log" for rank in range(2)]
        self.launchers = [self._start(folder, rank, port, *words) for rank in range(2)]

    def _start(self, folder: Path, rank: int, port: str, *words: str) -> subprocess.Popen[bytes]:
        line = "grpo --accelerate_config cpu --num_processes 2 --num_machines 2 --output_dir run"
        line += f" --machine_rank {rank} --main_process_ip 127.0.0.2 --main_process_port {port}"
        command = [sys.executable, "-um", "rookworld_rlvr.cli.main", *line.split(), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.logs[rank].open("wb") as log:
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def wait_for(self, text: str) -> None:
        """Wait until the first machine has printed a text."""
        until = time.monotonic() + 240
        while text not in self.logs[0].read_text():
            assert all(launcher.poll() is None for launcher in self.launchers), self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.2)

    def said(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in self.logs)

    def kill(self, rank: int) -> None:
        """Kill a machine's processes as a power cut would, except that its connections are closed."""
        launcher = psutil.Process(self.launchers[rank].pid)
        for process in (launcher, *launcher.children(recursive=True)):
            process.send_signal(signal.SIGKILL)
        self.launchers[rank].wait()

    def codes(self) -> list[int]:
        """Exit codes; a hang ends in `TimeoutExpired`."""
        return [launcher.wait(timeout=240) for launcher in self.launchers]


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
    assert machines.codes() == [0, 0], machines.said()
    sessions = json.loads((run / "provenance.json").read_text())["sessions"]
    assert [session["resumed_from"] for session in sessions] == [None, f"run/checkpoint-{reached}"]
    state = json.loads((run / "trainer_state.json").read_text())
    assert state["global_step"] == reached + 2
    steps = [log["step"] for log in state["log_history"] if "loss" in log]
    assert steps == list(range(1, reached + 3)), "each step once"
