"""Every file of accelerate_configs/ by accelerate's own loader and launcher."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType

from rookworld_rlvr.cli.main import command_line

from ..support import REPOSITORY, ran

CONFIGS = REPOSITORY / "accelerate_configs"
ALL = sorted(CONFIGS.rglob("*.yaml"))
TYPES = dict.fromkeys(("cpu", "multi_gpu", "multi_node"), "MULTI_GPU")  # for `cpu` see its comment
TYPES |= {"single_gpu": "NO", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED"}
SLURM = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": """shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done""",
    "rookworld": f"""{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" """,
}


PARSER = launch_command_parser()


def load(path: Path) -> ClusterConfig:
    return load_config_from_file(str(path))


def test_accelerate_loads_every_configuration() -> None:
    """The loader takes any key of a plugin; the launcher would carry a misspelt one along unseen."""
    assert {path.stem for path in ALL} == set(TYPES)
    known = vars(PARSER.parse_args(["script.py"]))
    for path in ALL:
        keys = yaml.safe_load(path.read_text())
        for plugin in ("fsdp_config", "deepspeed_config"):
            assert keys.get(plugin, {}).keys() <= known.keys()
        config, on_cpu = load(path), path.stem == "cpu"  # raises on an unknown key
        assert config.distributed_type == DistributedType[TYPES[path.stem]]
        assert config.num_processes % config.num_machines == 0
        assert (config.use_cpu, config.mixed_precision) == (on_cpu, "no" if on_cpu else "bf16")


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_it_opens_with_its_launch_commands_which_accelerate_takes(path: Path) -> None:
    comment = re.match(r"(#.*\n)+", path.read_text())
    assert comment is not None and "# Change: " in comment[0]
    commands = re.findall(r"^#   (accelerate launch|rookworld grpo) (.*)$", comment[0], re.M)
    assert commands
    for _, line in commands:
        own = rf"--(config_file accelerate_configs/|accelerate_config ){path.stem}\b"
        assert re.search(own, line)
        assert all((REPOSITORY / word).is_file() for word in line.split() if "/" in word), line
    command, line = commands[0]
    words = [str(REPOSITORY / word) if "/" in word else word for word in line.split()]
    if command == "rookworld grpo":
        launcher, script = command_line("grpo", words)
        words = [*launcher, *script]
    args, *_ = _validate_launch_command(PARSER.parse_args(words))
    assert args.training_script == str(REPOSITORY / "recipes" / "grpo.py")
    assert args.num_processes == load(path).num_processes


def test_slurm_reserves_and_starts_the_machines(tmp_path: Path) -> None:
    """With stand-ins for Slurm's two commands, which run the command on each of two machines."""
    for name, text in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_GPUS_PER_NODE": "8", "SLURM_JOB_NODELIST": "node[1-2]"}
    env = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    own = ["--rewards", '[{"name": "graduated"}]']
    done = ran("bash", str(CONFIGS / "slurm.sh"), *own, env=env)
    for rank, line in enumerate(done.stdout.splitlines()):
        command, *words = json.loads(line)
        assert command == "grpo"
        launcher, script = command_line("grpo", words)
        assert script[1:] == own
        args, *_ = _validate_launch_command(PARSER.parse_args([*launcher, *script]))
        found = (args.num_machines, args.num_processes, args.machine_rank, args.main_process_ip)
        assert found == (2, 16, rank, "node1")
    assert len(done.stdout.splitlines()) == 2
    text = (CONFIGS / "slurm.sh").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.M))
    assert len(asked) == text.count("#SBATCH")
    config = load(CONFIGS / "multi_node.yaml")
    assert int(asked["nodes"]) == config.num_machines
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == config.num_processes
    assert asked["ntasks-per-node"] == "1", "the launcher starts a process for each GPU"
