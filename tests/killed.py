"""Runs a recipe's script in forked processes that are killed with SIGKILL at chosen moments.

A server process is forked from the tests' own when everything is imported, and each run from it, so
that a start takes no imports. Only the files carry over from one run to the next.
"""

import functools
import json
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rookworld_rlvr.training import checkpoints, preflight
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.heldout import HeldoutEvaluation
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

RECIPES = Path(__file__).parents[1] / "recipes"
LOG = "output.txt"
SOONEST_S = 0.1  # a phase's supposed length before it has been measured
PHASES: dict[str, tuple[Any, str]] = {
    "sampling": (RookWorldGRPOTrainer, "_generate"),
    "rewards": (RookWorldGRPOTrainer, "_calculate_rewards"),
    "update": (RookWorldGRPOTrainer, "training_step"),
    "evaluation": (HeldoutEvaluation, "run"),
    "saving": (WholeCheckpoints, "_save_checkpoint"),
    "sealing": (checkpoints, "entry"),  # and flushing a file: one call for each file
    "renaming": (checkpoints, "publish"),
}


@dataclass(frozen=True)
class Kill:
    """When a run is killed: during the `call`-th call of a phase, after a share of its length."""

    phase: str
    call: int
    share: float


def kills(seed: int, each: int) -> list[Kill]:
    """Kills in random order: so many in each phase, and a saving more."""
    rng = random.Random(seed)
    found = [Kill(name, 1, rng.random()) for name in ["saving", "renaming"] * each + ["saving"]]
    found += [Kill("sealing", rng.randint(1, 12), 0.0) for _ in range(each)]
    for phase in ("sampling", "rewards", "update", "evaluation"):
        found += [Kill(phase, rng.choice((1, 2)), rng.random()) for _ in range(each)]
    rng.shuffle(found)
    return found


def run(name: str, argv: Sequence[str], cwd: Path, kill: Kill | None = None) -> tuple[int, str]:
    """Run a script in a process of its own; its exit code (-9 if it was killed) and what it printed."""
    process = start(name, argv, cwd, kill)
    process.join(300)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode, (cwd / LOG).read_bytes().decode()


def start(name: str, argv: Sequence[str], cwd: Path, kill: Kill | None = None) -> BaseProcess:
    """A script that runs in a process of its own, and prints into `LOG` in its folder."""
    return forked(cwd / LOG, run_script, name, list(argv), str(cwd), kill)


def forked(log: Path, target: Callable[..., None], *args: Any, **variables: str) -> BaseProcess:
    """A function that runs in a process forked from the server, and prints into a file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # if there is no server of `serve`
    environment = {**os.environ, **variables}
    process = context.Process(target=_printing, args=(str(log), environment, target, *args))
    process.start()
    return process


def serve() -> None:
    """Fork the server of `forked`; multiprocessing would start one that imports everything again."""
    if sys.version_info >= (3, 14):
        return  # there a server wants a key
    resource_tracker.ensure_running()
    server: Any = forkserver._forkserver
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    alive, kept = os.pipe()  # the server ends when nobody has the second one any more
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        pid = os.fork()
        if not pid:
            os.close(kept)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest has its own
            torch.set_num_threads(1)  # bytes depend on it
            try:
                forkserver.main(listener.detach(), alive, [])
            finally:
                os._exit(0)
    os.close(alive)
    server._forkserver_address, server._forkserver_alive_fd = address, kept
    server._forkserver_pid = pid


def launched(port: int, rank: int) -> dict[str, str]:
    """The variables that a launcher, whose store is at a port, sets for one of two processes."""
    store = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    store |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    return store | {"RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"}


def _printing(log: str, environment: Any, target: Callable[..., None], *args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    target(*args)


def run_script(name: str, argv: Sequence[str], cwd: str, kill: Kill | None) -> None:
    os.chdir(cwd)
    os.environ["XDG_CACHE_HOME"] = str(Path(cwd, "cache"))
    preflight.PREFLIGHT_ROWS = 4
    if kill is not None:
        _arm(kill)
    sys.argv = [str(RECIPES / name), *argv]
    sys.path.insert(0, str(RECIPES))
    try:
        runpy.run_path(str(RECIPES / name), run_name="__main__")
    finally:
        if sys.modules["wandb"].run is not None:  # multiprocessing leaves the end of a process out
            sys.modules["wandb"].finish()


def _arm(kill: Kill) -> None:
    owner, name = PHASES[kill.phase]
    whole = getattr(owner, name)
    calls, last = 0, SOONEST_S

    @functools.wraps(whole)
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, last
        calls += 1
        if calls == kill.call:
            _die(kill.share * last)
        started = time.perf_counter()
        result = whole(*args, **kwargs)
        last = time.perf_counter() - started
        return result

    setattr(owner, name, watched)


def _die(delay: float) -> None:
    if delay:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind which does not tell the time."""
    names = ("heldout_answers_before.jsonl", "heldout_answers_after.jsonl", "health.jsonl")
    found: dict[str, Any] = {name: (folder / name).read_text() for name in names}
    weights = [*folder.glob("*.safetensors"), *folder.glob("checkpoint-*/*.safetensors")]
    weights += folder.glob("checkpoint-*/optimizer.pt")
    found |= {str(path.relative_to(folder)): path.read_bytes() for path in weights}
    tables = {path.name: pd.read_parquet(path) for path in folder.glob("completions/*.parquet")}
    found |= {name: table.to_json() for name, table in tables.items()}
    found["results"] = json.loads((folder / "results.json").read_text())["heldout"]
    found["log"] = log(folder)
    return found


def log(folder: Path) -> list[dict[str, Any]]:
    """A run's log without seconds, and without the mean loss since its last start."""
    return untimed(json.loads((folder / "trainer_state.json").read_text())["log_history"])


def untimed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("runtime", "per_second", "step_time", "train_loss", "peak_memory")
    return [
        {key: row[key] for key in row if not (key.endswith(timed) or "time/" in key)}
        for row in history
    ]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of what differs between two outcomes, for a message that can be read."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
