"""Where a run runs: versions, devices, threads on the CPU. Import this before torch.

Two threads on two cores wait for each other at every small operation: the one that is done first spins.
If another process keeps one of the cores, that takes twenty times as long as the work itself. So a run
uses as many threads as there are idle cores when it starts, and a thread spins for about a millisecond
before it sleeps, not for 17 as GNU OpenMP has it. What the user sets in the environment wins.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import __version__

PACKAGES = "torch transformers trl accelerate datasets peft chess tokenizers numpy wandb".split()


SPINS = 20_000


SECONDS = 0.3  # for which cores are watched


_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # the second of several files


_NUMBER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)  # read by torch when it is loaded


def machine() -> dict[str, Any]:
    """Versions, platform, cores, devices and commit, ready for JSON.

    Keys: `versions` (by package), `python`, `platform`, `cores` (that this process may use),
    `threads` (of torch), `devices` (names of the GPUs; empty on a CPU), `commit` (of the git
    checkout that holds the package; None if the package was installed in another way).
    """
    import torch  # slow to import, and nothing else in this room needs it

    return {
        "versions": {"rookworld-rlvr": __version__, **{name: version(name) for name in PACKAGES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "devices": [*map(torch.cuda.get_device_name, range(torch.cuda.device_count()))],
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the checkout that holds the package, which may be a worktree of another."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # a checkout further up may be anybody's
        return None
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout.strip() or None


def cores() -> int | None:
    """CPU cores that this process may use; None if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def has_gpu() -> bool:
    """Whether there is a GPU that torch computes on."""
    import torch

    return bool(torch.cuda.is_available())


def is_fetched(name: str, revision: str | None = None) -> bool:
    """Whether a model's weights were fetched from the Hub before; False for what is no name there.

    Args:
        name: A Hub id.
        revision: A branch, tag or commit; None is the main branch.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = [try_to_load_from_cache(name, file, revision=revision) for file in _WEIGHTS]
    except HFValidationError:
        return False
    return any(isinstance(path, str) for path in found)


def reaches_hub(name: str, revision: str | None = None) -> bool:
    """Whether a model of the Hub can be loaded here: it was fetched before, or the Hub is reached.

    Nothing is asked of the Hub: a connection is opened and closed, which takes two seconds at most.
    """
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if is_fetched(name, revision):
        return True
    if constants.HF_HUB_OFFLINE:
        return False
    address = urlsplit(constants.ENDPOINT)
    proxy = urlsplit(getproxies().get(address.scheme, ""))
    used = proxy if proxy.hostname else address
    host, port = used.hostname, used.port or {"http": 80}.get(used.scheme, 443)
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def peak_memory() -> int:
    """The most bytes that tensors have taken on this process's GPU; without one, the process itself."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# --------------------------------------------------------------------------------------------------
# Threads
# --------------------------------------------------------------------------------------------------
def use_idle_cores() -> str:
    """Let torch compute on the cores that are idle now, at least one.

    Returns:
        A line for the start of a run.
    """
    import torch  # not above: see the module

    most = torch.get_num_threads()
    used = use_threads(min(most, idle_cores()))
    why = f" ({most} cores, of which others are at work on {most - used})" if used < most else ""
    return f"threads on the CPU: {used}{why}"


def use_threads(number: int) -> int:
    """Let torch compute with so many threads, unless the user's environment says how many.

    Sums depend on the number, so that a resumed run takes that of its checkpoint.

    Returns:
        The number of threads in use.
    """
    import torch  # not above: see the module

    if not any(name in os.environ for name in _NUMBER):
        torch.set_num_threads(number)
    return int(torch.get_num_threads())


def idle_cores() -> int:
    """How many of the cores that this process may use are idle, at least 1; it waits to see."""
    import psutil  # accelerate's

    shares = psutil.cpu_percent(SECONDS, percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(shares))
    idle: float = sum(1 - share / 100 for core, share in enumerate(shares) if core in allowed)
    return max(1, round(idle))
